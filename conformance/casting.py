"""Inputs in the type of a kernel, with the strides that the case gave them."""

from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from ssmspec_ref.shapes import Array


def cast(a: Array, dtype: Any) -> Array:
    """The same values in another type, with the same strides, counted in elements, and NaN (0 for integers) in the gaps.

    `a.astype(dtype)` and torch's `to` return a compact array: a kernel that reads it with wrong strides passes. The result is
    writable, and `torch.from_numpy` keeps its strides. Strides that are not whole elements, or negative, raise ValueError.
    """
    steps = [stride // a.itemsize for stride in a.strides]
    if any(stride % a.itemsize or stride < 0 for stride in a.strides):
        raise ValueError(
            f"the array has strides of {a.strides} bytes for elements of {a.itemsize}; give whole, positive steps"
        )
    numbers = np.dtype(dtype)
    size = 1 + sum((n - 1) * step for n, step in zip(a.shape, steps, strict=True)) if a.size else 0
    held = np.full(size, np.nan if numbers.kind == "f" else 0, dtype=numbers)
    view = as_strided(held, a.shape, [step * numbers.itemsize for step in steps])
    view[...] = a
    return view
