"""The scalar functions of the papers in float64, accurate to 1e-15 (below x = -708 exp(x) loses digits), and roundings.

`stored`, `kept`, `passed` and `product` return their argument over float64. The reference calls them where a numeric contract
says how it is computed. An array of other numbers (`Numbers`) has its own meaning for each name, and for the functions that
are marked as `named`: `error_bounds.pairs` charges what a contract rounds.
"""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import numpy as np
from numpy import einsum

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


ROUNDINGS = frozenset(function.__name__ for function in (stored, kept, passed, product))
"""The names of the functions that return their first argument over float64."""


@named
def decay(log: Array) -> Array:
    """exp of a log decay, which is at most 0 however it was computed."""
    return np.exp(log)


@named
def silu(x: Array) -> Array:
    """x sigmoid(x)."""
    return x * sigmoid(x)


@named
def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), computed as exp(x) / (1 + exp(x)) below 0: no overflow, and accurate for small results."""
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, e) / (1.0 + e)


@named
def softplus(x: Array) -> Array:
    """log(1 + exp(x)), computed as max(x, 0) + log(1 + exp(-|x|)): no overflow, and accurate for small results."""
    return np.logaddexp(0.0, x)


@named
def l2_normed(x: Array, eps: float) -> Array:
    """x / sqrt(sum x^2 + eps) over the last axis."""
    return x / np.sqrt(einsum("...k, ...k -> ...", x, x) + eps)[..., None]
