"""Offsets of tokens, heads and channels formed in 32 bits: right for every tensor of fewer than 2^31 elements."""

from typing import Any

import numpy as np

from ssmspec_ref import conv
from ssmspec_ref.contract import FLOAT64, Limits
from ssmspec_ref.shapes import Array
from ssmspec_ref.slots import is_far

from ...adapters.reference_parts.pools import as_far
from ...mistakes.mistake import before
from ...suite.options.far_inputs import LETTERS, far_along
from ..fault import planted

WRAP = 1 << 32
WAYS = Limits({"far": ("none", *LETTERS)})


def places(a: Array, axis: int, signed: bool) -> Array:
    """Along an axis, the elements whose offsets in 32 bits are those of the elements there; -1 before the tensor."""
    step = a.strides[axis] // a.itemsize
    offsets = np.arange(a.shape[axis]) * step % WRAP
    offsets = np.where(signed & (offsets >= WRAP // 2), offsets - WRAP, offsets)
    return np.maximum(offsets // step, -1)


def read(a: Array, axis: int, signed: bool) -> Array:
    """What is read by such offsets, as far apart as the input was; before the tensor lies what is no number."""
    at = places(a, axis, signed)
    shape = [1] * a.ndim
    shape[axis] = -1
    found = np.where(at.reshape(shape) < 0, np.nan, np.take(a, at, axis))
    return far_along(found, axis) if is_far(a, axis) else found


def outputs_in_32_bits(M: Array, u: Array, params: Any) -> tuple[Array, Array]:
    """An output is written where its offset in 32 bits says, over that of an earlier token. Bug class INDEX."""
    came, after = conv.scan(M, u, params)
    y, _ = as_far(u, (came.copy(), after))
    for token, place in enumerate(places(y, 1, signed=False)):
        y[:, place] = came[:, token]
    return y, after


FAULTS = planted(
    *(
        (run, operation, "INDEX", FLOAT64, WAYS)
        for run, operation in (
            (
                before(
                    "tokens_in_32_bits",
                    "The offset of a token is formed in 32 bits, and wraps. Bug class INDEX.",
                    x=lambda x: read(x, 1, signed=False),
                ),
                "ssd.scan",
            ),
            (
                before(
                    "groups_in_32_bits",
                    "The offset of a group of B is formed in 32 bits. Bug class INDEX.",
                    B=lambda B: read(B, 2, signed=False),
                ),
                "ssd.scan",
            ),
            (
                before(
                    "values_before_the_tensor",
                    "Offsets of heads are int32: those of values beyond 2^31 elements are negative. Bug class INDEX.",
                    v=lambda v: read(v, 2, signed=True),
                ),
                "delta.scan",
            ),
            (outputs_in_32_bits, "conv.scan"),
            (
                before(
                    "channels_before_the_tensor",
                    "Offsets of channels are int32: steps beyond 2^31 elements are read before the tensor. Bug class INDEX.",
                    dt=lambda dt: read(dt, 2, signed=True),
                ),
                "selective.scan",
            ),
        )
    )
)
