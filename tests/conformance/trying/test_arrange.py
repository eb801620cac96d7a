"""Axes in another order."""

import numpy as np
import pytest

from conformance.trying.arrange import laid
from conformance.trying.search import axes_of

A = np.arange(24.0).reshape(2, 3, 4)


@pytest.mark.parametrize(("axes", "sizes", "expected"), [
    ("b t d -> b d t", {}, A.transpose(0, 2, 1)),
    ("b t d -> t b 1 d", {}, A.transpose(1, 0, 2)[:, :, None]),
    ("b t d -> b t d p", {"p": 5}, np.repeat(A[..., None], 5, axis=3)),
    ("b g n -> b h n", {"h": 6}, np.repeat(A, 2, axis=1)),
    ("b c w -> b q c", {}, A.transpose(0, 2, 1)[:, 1:]),
    ("h | b h p -> p h b", {}, A.transpose(2, 1, 0)),
])  # fmt: skip
def test_axes_are_moved_added_and_repeated(axes: str, sizes: dict[str, int], expected: np.ndarray) -> None:
    assert np.array_equal(laid(A, axes, **sizes), expected)


def test_axes_of_one_are_dropped_and_nothing_stays_nothing() -> None:
    assert np.array_equal(laid(A[:1], "b t d -> d t"), A[0].T)
    assert np.array_equal(laid(A[:1, :1, :1], "b t d -> "), A[0, 0, 0])
    assert laid(None, "b t d -> b d t") is None


@pytest.mark.parametrize(("axes", "said"), [
    ("b t d -> b t", "drops the axis 'd', whose size is 4"),
    ("b t -> t b", "has no 3 axes on the left"),
    ("b t d -> b t d p", "give its size, p=.."),
])  # fmt: skip
def test_axes_that_do_not_fit_are_refused(axes: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        laid(A, axes)


def test_the_axes_of_a_shape_are_found_by_sizes_that_differ() -> None:
    sizes = {"b": 3, "h": 4, "p": 7}
    assert axes_of((7, 3, 4), ["b", "h", "p"], sizes) == "p b h"
    assert axes_of((3, 1, 4, 7), ["b", "h", "p"], sizes) == "b 1 h p"
    assert axes_of((4, 7), ["b", "h", "p"], sizes | {"b": 1}) == "h p"
    assert axes_of((4, 7), ["b", "h", "p"], sizes) is None
    assert axes_of((3, 4, 8), ["b", "h", "p"], sizes) is None
