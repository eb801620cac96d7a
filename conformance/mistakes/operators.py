"""What a mistake does to one array: a part is lost or cut off, another row is taken, a number is rounded or limited.

Each operator makes a function of the array alone, so that planted faults apply it to an input or an output by its name, and
diagnosis to a leaf of a case.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from ssmspec_ref.shapes import Array, Path

from ..judge.draw import stored

Operator = Callable[[Any], Any]


def places(own: Array, axis: int) -> Array:
    """The index along an axis, in a shape that broadcasts over the array."""
    return np.arange(own.shape[axis]).reshape([-1 if n == axis % own.ndim else 1 for n in range(own.ndim)])


def of_rows(mask: Array, own: Array) -> Array:
    """A value for each row (or row and token), in a shape that broadcasts over an array of these rows."""
    return mask.reshape(mask.shape + (1,) * (own.ndim - mask.ndim))


def drop(axis: int, first: int, instead: Any = 0) -> Operator:
    """Zeros, or what is given, from an index of an axis on."""
    return lambda own: np.where(places(own, axis) < first, own, instead)


def cut(axis: int, most: int) -> Operator:
    """The array up to an index of an axis."""
    return lambda own: np.take(own, range(min(most, own.shape[axis])), axis)


def rolled(axis: int = 0, step: int = 1) -> Operator:
    """Of every index that of the index before it; of the first that of the last."""
    return lambda own: np.roll(own, step, axis)


def everywhere(axis: int, index: int) -> Operator:
    """Of every index that of one index."""
    return lambda own: np.broadcast_to(np.take(own, [index], axis), own.shape).copy()


def put(tokens: slice, value: float) -> Operator:
    """One value for some tokens."""

    def made(own: Array) -> Array:
        new = own.copy()
        new[:, tokens] = value
        return new

    return made


def repeated(axis: int, most: int) -> Operator:
    """From an index of an axis on the entries from 0 on again: an offset without the number of its tile."""
    return lambda own: np.take(own, np.arange(own.shape[axis]) % most, axis)


def rounded_to(storage: Any) -> Operator:
    """Each number in a narrower format."""
    return lambda own: stored(own, storage)


def at_least(least: float) -> Operator:
    return lambda own: np.maximum(own, least)


def at_most(most: float) -> Operator:
    return lambda own: np.minimum(own, most)


def zero(own: Array) -> Array:
    return np.zeros_like(own)


def one(own: Array) -> Array:
    return np.ones_like(own)


def without_the_root(path: Path) -> Path:
    """The entries of a path above 0, moved to its beginning: 0, the root, is taken for padding."""
    kept = np.full_like(path, -1)
    for b, row in enumerate(path):
        kept[b, : (row > 0).sum()] = row[row > 0]
    return kept


def live_only(own: Array, live: Array | None) -> Array:
    """0 for every token that is not live."""
    return own if live is None else np.where(of_rows(live, own), own, 0)


def in_order(ancestors: Array) -> Array:
    """Every node sees all nodes before it."""
    live = np.einsum("btt -> bt", ancestors)
    order: Array = np.tri(ancestors.shape[1], dtype=bool) & live[:, None, :] & live[:, :, None]
    return order


def nonempty_before(bounds: Array) -> Array:
    """How many sequences before each are not empty."""
    has = (np.diff(bounds) > 0).astype(np.int64)
    return np.asarray(np.cumsum(has) - has)


def state_of_the_nonempty(S: Array, bounds: Array) -> Array:
    """A sequence with tokens begins from the state of place c, where c sequences before it are not empty."""
    return S[np.where(np.diff(bounds) > 0, nonempty_before(bounds), np.arange(len(S)))]
