"""Timed launches that are in no entry of the catalogue, as entries: other batches and tokens of its kernels, for the H200.

An entry is a launcher at a timed measurement. The catalogue declares what it may write.
"""

from collections.abc import Callable
from functools import cache

from ..gpu.rehearsal import H200
from ..gpu.variants import Place, timed_launches, variant
from . import catalogue
from .capture import Launch, launches_of
from .entry import Entry
from .on_device import on_device


@cache
def entries() -> tuple[Entry, ...]:
    """One for each launcher and place, in the order of the measurements; for sm_90."""
    have = set()
    for entry in catalogue.entries():
        if H200 in entry.on:
            with on_device(H200):
                have |= {variant(launch) for launch in launches_of(entry.call)}
    found: dict[tuple[str, Place], list[Launch]] = {}
    for one, (place, launch) in timed_launches().items():
        if one not in have:
            found.setdefault((launch.launcher, place), []).append(launch)
    return tuple(_entry(launcher, place, launches) for (launcher, place), launches in found.items())


def _entry(launcher: str, place: Place, launches: list[Launch]) -> Entry:
    return Entry(launcher, f"timed in {place.part}, B={place.batch}", place.model, _again(launches), None, on=(H200,))


def _again(launches: list[Launch]) -> Callable[[], None]:
    """A call that makes the same launches."""

    def call() -> None:
        for launch in launches:
            launch.kernel[launch.grid](*launch.args, **launch.kwargs)

    return call
