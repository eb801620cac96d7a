"""Draws that depend on a seed alone, in every process.

Hypothesis also draws numbers and strings found in the source of the user's own imported modules
(`hypothesis.internal.constants_ast`). Another process, which imports others, would draw other examples by the same seed.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from hypothesis.internal.conjecture import engine, providers
from hypothesis.internal.constants_ast import Constants

FROM_MODULES = "_get_local_constants"
SHRINKING, FOREVER = "MAX_SHRINKING_SECONDS", 1 << 30


@contextmanager
def by_seed_alone() -> Iterator[None]:
    """Inside, Hypothesis draws no constants of imported modules. A version without them is left as it is."""
    if not hasattr(providers, FROM_MODULES):
        yield
        return
    kept: Any = providers.CONSTANTS_CACHE.cache  # what was found for each kind of draw, with constants of modules
    kept.clear()
    try:
        with mock.patch.object(providers, FROM_MODULES, return_value=Constants()):
            yield
    finally:
        kept.clear()


@contextmanager
def without_the_clock() -> Iterator[None]:
    """Inside, Hypothesis shrinks for as long as the test lets anything fail: its own five minutes are of a clock on the wall,
    so a busy machine would report a larger failure."""
    if not hasattr(engine, SHRINKING):
        yield
        return
    with mock.patch.object(engine, SHRINKING, FOREVER):
        yield
