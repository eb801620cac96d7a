"""Argument checks, derived from the annotations.

A function marked `@checked` states its shapes once, in its signature, with the names of `shapes.py`. Before its body runs,
every array, including those inside records, is compared with its annotation. An axis letter has one size in the whole call;
the axis `_` may have any size. Nothing has been computed or written when a check fails.
"""

import dataclasses
import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

import numpy as np

from .errors import EmptyWindow, ParameterError, PrecisionError, ShapeMismatch
from .functions import Numbers

P = ParamSpec("P")
R = TypeVar("R")


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Check the arguments of every call of `function` against their annotations.

    Raises: PrecisionError, ShapeMismatch, EmptyWindow.
    """
    signature = inspect.signature(function)

    @functools.cache
    def hints() -> dict[str, Any]:
        return typing.get_type_hints(function)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        bound = signature.bind(*args, **kwargs)
        sizes: dict[str, tuple[int, str]] = {}
        for name, value in bound.arguments.items():
            for label, array, hint in _arrays(name, value, hints().get(name)):
                _check(f"{function.__name__}: {label}", label, array, hint, sizes)
        return function(*args, **kwargs)

    return call


def check_record(record: Any) -> None:
    """Check the arrays of a record against the annotations of its class. Records call it when they are created."""
    sizes: dict[str, tuple[int, str]] = {}
    kind: Any = type(record)
    for name, hint in _fields(kind).items():
        for label, array, array_hint in _arrays(name, getattr(record, name), hint):
            _check(f"{kind.__name__}.{label}", label, array, array_hint, sizes)


def check_groups(groups: int, heads: int) -> None:
    """Raise ParameterError unless the number of groups (of B and C, or of keys) divides the number of heads."""
    if groups < 1 or heads % groups:
        raise ParameterError(f"{groups} groups do not divide {heads} heads; every group must have the same number of heads")


@functools.cache
def _fields(kind: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _arrays(label: str, value: Any, hint: Any) -> Iterator[tuple[str, Any, Any]]:
    """The arrays of one argument, each with its allowed array types."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type | Numbers):
        kind: Any = type(value)
        for name, field_hint in _fields(kind).items():
            yield from _arrays(f"{label}.{name}", getattr(value, name), field_hint)
        return
    arrays, optional = _array_types(hint)
    if not arrays or (value is None and optional):
        return
    # A union of array types (D per head, or per head and channel) is decided by the number of axes.
    fitting = [option for option in arrays if np.ndim(value) == len(_axes(option))]
    yield label, value, (fitting or arrays)[0]


@functools.cache
def _array_types(hint: Any) -> tuple[tuple[Any, ...], bool]:
    """The array types among the alternatives of a hint, and whether None is one of them."""
    union = isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union
    options = typing.get_args(hint) if union else (hint,)
    return tuple(option for option in options if hasattr(option, "dim_str")), type(None) in options


@functools.cache
def _axes(hint: Any) -> tuple[str, ...]:
    return tuple(hint.dim_str.split())


_name = functools.cache(str)
"""The name of a dtype, cached because NumPy builds it again on every call."""


def _check(where: str, label: str, array: Any, hint: Any, sizes: dict[str, tuple[int, str]]) -> None:
    axes = _axes(hint)
    dtype = getattr(array, "dtype", type(array).__name__)
    if not isinstance(array, np.ndarray | Numbers) or _name(dtype) not in hint.dtypes:
        needed = " or ".join(hint.dtypes)
        raise PrecisionError(f"{where} is {dtype}; it must be a NumPy array of {needed}: convert it first")
    if array.ndim != len(axes):
        raise ShapeMismatch(f"{where} has shape {array.shape}, but its axes are ({' '.join(axes)})")
    for axis, size in zip(axes, array.shape, strict=True):
        if axis == "_":
            continue
        first, owner = sizes.setdefault(axis, (size, label))
        if first != size:
            raise ShapeMismatch(
                f"{where} has shape {array.shape} for the axes ({' '.join(axes)}), "
                f"but axis {axis} has size {first} in {owner}; the two must be equal"
            )
        if axis == "t" and size == 0:
            raise EmptyWindow(f"{where} has no tokens; a window needs at least its root")
