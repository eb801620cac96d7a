"""An input in another type keeps its strides, so that a kernel with wrong ones reads NaN."""

import numpy as np
import pytest
import torch
from numpy.lib.stride_tricks import as_strided

from conformance.casting import cast
from conformance.run.calls import spaced
from ssmspec_ref.shapes import Array


def as_if_compact(a: Array) -> Array:
    """What a kernel reads that takes an array for a compact one: the fault."""
    steps = np.cumprod([1, *a.shape[:0:-1]])[::-1] * a.itemsize
    return as_strided(a, a.shape, steps)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
def test_values_and_strides_are_kept(dtype: str) -> None:
    a = spaced(np.arange(24.0).reshape(2, 3, 4))
    b = cast(a, dtype)
    assert np.array_equal(a, b)
    assert b.dtype == dtype
    assert [s // b.itemsize for s in b.strides] == [s // a.itemsize for s in a.strides]
    assert torch.from_numpy(b).stride() == tuple(s // a.itemsize for s in a.strides)


def test_a_wrong_stride_shows_after_a_cast_and_is_hidden_by_astype() -> None:
    a = spaced(np.arange(24.0).reshape(2, 3, 4))
    assert np.isnan(as_if_compact(cast(a, "float32"))).any()
    assert np.array_equal(as_if_compact(a.astype("float32")), a)


def test_expanded_transposed_and_empty_arrays_keep_theirs() -> None:
    expanded = np.broadcast_to(np.arange(3.0), (2, 3))
    assert cast(expanded, "float32").strides == (0, 4)
    assert cast(np.arange(6.0).reshape(2, 3).T, "float32").strides == (4, 12)
    assert cast(np.zeros((0, 3)), "float32").shape == (0, 3)
    with pytest.raises(ValueError, match="give whole, positive steps"):
        cast(np.arange(3.0)[::-1], "float32")
