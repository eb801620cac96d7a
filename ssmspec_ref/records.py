"""Records of arrays: frozen dataclasses whose fields share their leading axes, sliced and joined field by field.

A window record has the axes (b t ...) in every field; a state record (b ...). The backtracking paths use only these few
functions to store, slice, gather and scatter records.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

import numpy as np

from .checks import check_record
from .functions import Numbers
from .shapes import Array

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Record:
    """A frozen group of arrays, checked against its annotations when it is created."""

    def __post_init__(self) -> None:
        check_record(self)


def each(function: Callable[..., Any], *records: T) -> T:
    """Apply `function` to every array of the records, field by field; other fields are taken from the first record."""
    return cast(T, _each(function, *records))


def _each(function: Callable[..., Any], *records: Any) -> Any:
    first = records[0]
    if isinstance(first, np.ndarray | Numbers):
        return function(*records)
    if not dataclasses.is_dataclass(first) or isinstance(first, type):
        return first
    fields = {f.name: _each(function, *(getattr(r, f.name) for r in records)) for f in dataclasses.fields(first)}
    return dataclasses.replace(first, **fields)


def arrays(record: Any) -> Iterator[Array]:
    """Every array of a record, in the order of its fields."""
    if isinstance(record, np.ndarray):
        yield record
    elif dataclasses.is_dataclass(record) and not isinstance(record, type):
        for field in dataclasses.fields(record):
            yield from arrays(getattr(record, field.name))


def rows(record: T, index: Array) -> T:
    """The rows `index` of a record, in that order; a row may occur more than once."""
    return each(lambda a: a[index], record)


def prefix(window: T, length: int) -> T:
    """The first `length` tokens of a window."""
    return each(lambda a: a[:, :length], window)


def along(window: T, path: Array) -> T:
    """Row by row, the tokens `path[b, :]` of a window; negative entries repeat token 0 and must be masked."""
    safe = np.maximum(path, 0)
    return each(lambda a: np.take_along_axis(a, safe.reshape(safe.shape + (1,) * (a.ndim - 2)), axis=1), window)


def concat(first: T, second: T) -> T:
    """Two windows concatenated along the tokens."""
    return each(lambda a, b: np.concatenate([a, b], axis=1), first, second)


def where(row: Array, yes: T, no: T) -> T:
    """For each row, one record or the other."""
    return each(lambda a, b: np.where(row.reshape(row.shape + (1,) * (a.ndim - 1)), a, b), yes, no)


def masked(window: T, live: Array) -> T:
    """A window with 0 in every field of the tokens that are not live."""
    return each(lambda a: np.where(live.reshape(live.shape + (1,) * (a.ndim - 2)), a, 0.0), window)
