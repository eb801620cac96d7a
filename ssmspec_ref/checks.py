"""Argument checks, read off the annotations.

A function marked `@checked` states its shapes once, in its signature, through the names of `shapes.py`. Before its body
runs, every array, and every array inside a record, is compared with its annotation; an axis letter has one size in the
whole call, and the axis `_` any size. Nothing has been computed or written when a check fails.
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
    """Check the arrays of a record against the annotations of its class; records call it when they are made."""
    sizes: dict[str, tuple[int, str]] = {}
    kind: Any = type(record)
    for name, hint in _fields(kind).items():
        for label, array, array_hint in _arrays(name, getattr(record, name), hint):
            _check(f"{kind.__name__}.{label}", label, array, array_hint, sizes)


def check_groups(groups: int, heads: int) -> None:
    """Raise ParameterError unless the groups (of B and C, of keys) divide the heads, so that each serves equally many."""
    if groups < 1 or heads % groups:
        raise ParameterError(f"{groups} groups do not divide {heads} heads; give each group equally many heads")


@functools.cache
def _fields(kind: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _arrays(label: str, value: Any, hint: Any) -> Iterator[tuple[str, Any, Any]]:
    """The arrays under one argument, each with the array types that it may have."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
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
    """The array types among the alternatives of a hint, and whether None is another."""
    union = isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union
    options = typing.get_args(hint) if union else (hint,)
    return tuple(option for option in options if hasattr(option, "dim_str")), type(None) in options


@functools.cache
def _axes(hint: Any) -> tuple[str, ...]:
    return tuple(hint.dim_str.split())


_name = functools.cache(str)
"""The name of a dtype, which NumPy puts together anew on every call."""


def _check(where: str, label: str, array: Any, hint: Any, sizes: dict[str, tuple[int, str]]) -> None:
    axes = _axes(hint)
    dtype = getattr(array, "dtype", type(array).__name__)
    if not isinstance(array, np.ndarray) or _name(dtype) not in hint.dtypes:
        needed = " or ".join(hint.dtypes)
        raise PrecisionError(f"{where} came as {dtype}, but a NumPy array of {needed} is needed; convert it first")
    if array.ndim != len(axes):
        raise ShapeMismatch(f"{where} came with shape {array.shape}, but its axes are ({' '.join(axes)})")
    for axis, size in zip(axes, array.shape, strict=True):
        if axis == "_":
            continue
        first, owner = sizes.setdefault(axis, (size, label))
        if first != size:
            raise ShapeMismatch(
                f"{where} came with shape {array.shape} for the axes ({' '.join(axes)}), "
                f"but axis {axis} has size {first} in {owner}; give both the same {axis}"
            )
        if axis == "t" and size == 0:
            raise EmptyWindow(f"{where} holds no token; a window needs at least its root")
