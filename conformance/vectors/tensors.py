"""Arguments of an operation as named tensors, and tensor files that are written identically every time."""

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save

from ssmspec_ref.shapes import Array


def named(value: Any, name: str) -> Iterator[tuple[str, Array | str]]:
    """Every array and number in a value by its path, `rounds.0.window.x`; None is left out, a string stays a string."""
    if value is None:
        return
    if isinstance(value, str):
        yield name, value
    elif isinstance(value, np.ndarray):
        yield name, compact(value)
    elif isinstance(value, bool | np.bool_ | int | np.integer):
        yield name, np.array(value)
    elif isinstance(value, float | np.floating):
        yield name, np.array(float(value))
    elif isinstance(value, tuple | list) and value and not isinstance(value[0], int | float):
        for number, part in enumerate(value):
            yield from named(part, f"{name}.{number}")
    elif isinstance(value, tuple | list):
        yield name, compact(np.array(value, dtype=np.float64 if any(isinstance(x, float) for x in value) else np.int64))
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from named(getattr(value, field.name), f"{name}.{field.name}")
    else:
        raise TypeError(f"{name} is {type(value).__name__}; a vector holds arrays, numbers, strings and records of them")


def compact(a: Array) -> Array:
    """The array in float32 if it is exactly representable."""
    if a.dtype == np.float64 and np.array_equal(a.astype(np.float32).astype(np.float64), a, equal_nan=True):
        return np.ascontiguousarray(a.astype(np.float32))
    return np.ascontiguousarray(a)


def upwards(bound: Array) -> Array:
    """A bound in float32, rounded up."""
    narrow = bound.astype(np.float32)
    return np.where(narrow.astype(np.float64) < bound, np.nextafter(narrow, np.float32(np.inf)), narrow).astype(np.float32)


def dump(tensors: Mapping[str, Array]) -> bytes:
    return bytes(save({name: np.ascontiguousarray(tensors[name]).reshape(tensors[name].shape) for name in sorted(tensors)}))


def read(path: Path) -> dict[str, Array]:
    return dict(load_file(path)) if path.exists() else {}
