"""Where an implementation may round, by name. Over float64 each of these functions returns its argument.

The reference calls them where a numeric contract says how it is computed. An array of other numbers (`Numbers`) has its own
meaning for each name, and for the functions that are marked as `named`: `error_bounds.pairs` charges what a contract rounds.
"""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import numpy as np

from .shapes import Array

P = ParamSpec("P")
R = TypeVar("R")


class Numbers:
    """An array of other numbers, which functions of the reference take in place of an array of float64."""

    dtype = np.dtype(np.float64)

    @property
    def shape(self) -> tuple[int, ...]:
        """As that of an array."""
        raise NotImplementedError

    @property
    def ndim(self) -> int:
        """How many axes there are."""
        return len(self.shape)

    def named(self, name: str, *rest: Any, **more: Any) -> Any:
        """What the function of this name is of these numbers."""
        raise NotImplementedError


def named(function: Callable[P, R]) -> Callable[P, R]:
    """A function that other numbers may have a meaning for; it is asked of the first argument."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if isinstance(args[0], Numbers):
            found: R = args[0].named(function.__name__, *args[1:], **kwargs)
            return found
        return function(*args, **kwargs)

    return call


@named
def stored(S: Array, axis: int = -1) -> Array:
    """The state between two tokens, which may be stored and read; `axis` is that of the blocks with one scale."""
    return S


@named
def kept(a: Array) -> Array:
    """A part of a state that is stored once and copied from then on."""
    return a


@named
def passed(a: Array) -> Array:
    """A value that a later stage reads in the format of outputs."""
    return a


@named
def product(a: Array) -> Array:
    """A sum of products, in any order and association, whose operands a matrix unit may round."""
    return a
