"""Arrays of ring elements that code written for float64 takes: the oracle runs over them as it is.

A `Ring` is an array of float64 whose bits are the elements. What only moves elements works unchanged, and every operation
of NumPy is replaced by that of `algebra`; an operation without a rule raises NotInRing.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

import ssmspec_ref.functions

from ..errors import NotInRing
from . import algebra
from .algebra import Elements


class Ring(np.ndarray):
    """Elements mod 2^64 in an array of float64."""

    def astype(self, dtype: Any, *given: Any, **named: Any) -> Any:
        """A copy. Raises: NotInRing for another format: code in NumPy must compute in float64."""
        if np.dtype(dtype) != np.float64:
            raise NotInRing(f"it casts an array of NumPy to {np.dtype(dtype)}")
        return self.copy()

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = None, **named: Any) -> Any:
        given = [elements(x) for x in inputs]
        if ufunc.__name__ == "add" and method in ("reduce", "accumulate"):
            found: Any = getattr(ufunc, method)(*given, **named)
        elif method == "__call__" and (ufunc in NATURAL or ufunc.__name__ in RULES):
            with np.errstate(over="ignore"):
                found = RULES[ufunc.__name__](*given) if ufunc.__name__ in RULES else ufunc(*given, **named)
        else:
            raise NotInRing(f"numpy's {ufunc.__name__} ({method}) has no rule in the ring")
        if out is not None:
            out[0].view(np.ndarray).view(np.uint64)[...] = found
            return out[0]
        return ring(found)

    def __array_function__(self, func: Callable[..., Any], types: Any, args: Any, kwargs: Any) -> Any:
        if func.__name__ == "clip":
            return _clipped(*args, **kwargs)
        if func.__name__ not in MOVES:
            raise NotInRing(f"numpy's {func.__name__} has no rule in the ring")
        with np.errstate(over="ignore"):
            return ring(func(*(_given(x) for x in args), **{name: _given(x) for name, x in kwargs.items()}))


def ring(found: Any) -> Any:
    """An array of elements as a `Ring`; what is no array of elements as it is."""
    if isinstance(found, tuple | list):
        return type(found)(map(ring, found))
    if isinstance(found, np.uint64):
        found = np.array(found)
    return found.view(np.float64).view(Ring) if isinstance(found, np.ndarray) and found.dtype == np.uint64 else found


def elements(value: Any) -> Any:
    """The elements of an array or a number. An array that began as zeros or ones and was written to holds elements among
    these: what is a small integer, or infinite, is that number, and anything else an element."""
    if isinstance(value, Ring):
        return value.view(np.ndarray).view(np.uint64)
    if isinstance(value, np.ndarray) and value.ndim and value.dtype == np.float64:
        with np.errstate(invalid="ignore"):
            number = np.isinf(value) | ((np.abs(value) < SMALL) & (value == np.rint(value)))
        return np.where(number, algebra.constants(np.where(number, value, 0.0)), value.view(np.uint64))
    if isinstance(value, np.ndarray | np.generic | float | int):
        return algebra.constants(value)
    return value


def _given(value: Any) -> Any:
    """An argument of a function that moves elements: numbers with a point are constants, others are indices and masks."""
    if isinstance(value, tuple | list):
        return type(value)(map(_given, value))
    floats = isinstance(value, float) or (isinstance(value, np.ndarray | np.generic) and value.dtype.kind == "f")
    return elements(value) if isinstance(value, Ring) or floats else value


def _clipped(a: Any, low: Any, high: Any) -> Any:
    """The larger of a and low, then the smaller of it and high."""
    return ring(algebra.minimum(algebra.maximum(elements(a), elements(low)), elements(high)))


def _divided(a: Elements, b: Elements) -> Elements:
    return a * algebra.inverse(b)


def _softplus(zero: Elements, x: Elements) -> Elements:
    """logaddexp(0, x)."""
    if np.any(zero):
        raise NotInRing("it adds exponentials")
    return algebra.softplus(x)


SMALL = 1 << 20
NATURAL = (np.add, np.subtract, np.multiply, np.negative, np.square, np.matmul, np.equal, np.not_equal)
RULES: dict[str, Callable[..., Any]] = {
    "divide": _divided,
    "exp": algebra.exp,
    "exp2": algebra.exp,
    "sqrt": algebra.sqrt,
    "logaddexp": _softplus,
    "minimum": algebra.minimum,
    "maximum": algebra.maximum,
}
MOVES = {
    "append", "array_equal", "ascontiguousarray", "broadcast_arrays", "broadcast_to", "concatenate", "copy", "cumsum",
    "einsum", "empty_like", "expand_dims", "flip", "moveaxis", "ndim", "outer", "repeat", "reshape", "roll", "shape",
    "squeeze", "stack", "sum", "swapaxes", "take", "take_along_axis", "tile", "transpose", "tril", "where", "zeros_like",
}  # fmt: skip


@contextmanager
def opaque() -> Iterator[None]:
    """The reference's sigmoid is opaque inside the block."""
    kept = ssmspec_ref.functions.sigmoid

    def sigmoid(x: Any) -> Any:
        return ring(algebra.sigmoid(elements(x))) if isinstance(x, Ring) else kept(x)

    ssmspec_ref.functions.sigmoid = sigmoid
    try:
        yield
    finally:
        ssmspec_ref.functions.sigmoid = kept
