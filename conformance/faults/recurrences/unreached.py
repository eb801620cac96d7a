"""Wrong at sizes, or with contents, that tables of small and of round numbers do not reach; right everywhere else."""

from dataclasses import replace
from typing import Any

import numpy as np

from ssmspec_ref import conv, delta, ssd
from ssmspec_ref.contract import Adapter
from ssmspec_ref.shapes import Array

from ..single import Wrong, adapter_of
from .arithmetic import right, rounded
from .size_limits import FP32

TABLED = {*range(1, 10), 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 512, 513, 520, 1023, 1024}


def last_row_of_four(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """Rows are taken by fours, and of a batch that is a multiple of 4 the last row is not written."""
    y, S_next = right(S, window, params)
    if len(y) % 4 == 0:
        y[-1] = 0
    return y, S_next


def last_row_of_four_inputs(M: Array, u: Array, params: Any) -> tuple[Array, Array]:
    """Rows are taken by fours, and of a batch that is a multiple of 4 the last row keeps its window."""
    y, M_next = conv.scan(M, u, params)
    rest = (np.arange(len(M)) == len(M) - 1) & (len(M) % 4 == 0)
    return rounded(y, np.where(rest[:, None, None], M, M_next))


def sixteen_heads_of_two_groups(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """With two groups, heads from the 16th on read the first group: the index has four bits beside the one of the group."""
    heads, groups = S.shape[1], window.B.shape[2]
    if groups != 2 or heads <= 16:
        return right(S, window, params)
    group = np.where(np.arange(heads) < 16, np.arange(heads) * 2 // heads, 0)
    return right(S, replace(window, B=window.B[:, :, group], C=window.C[:, :, group]), params)


def sixteen_value_heads(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """With two key heads, value heads from the 16th on read the first key."""
    heads, groups = S.shape[1], window.k.shape[2]
    if groups != 2 or heads <= 16:
        return rounded(*delta.scan(S, window, params))
    group = np.where(np.arange(heads) < 16, np.arange(heads) * 2 // heads, 0)
    return rounded(*delta.scan(S, replace(window, q=window.q[:, :, group], k=window.k[:, :, group]), params))


def tile_one_short(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """Where the last tile of 64 tokens lacks one, its last token is not written."""
    y, S_next = right(S, window, params)
    if y.shape[1] % 64 == 63:
        y[:, -1] = 0
    return y, S_next


def knows_the_lengths(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """Right for every number of tokens that a table of the suite has, and for no other."""
    y, S_next = ssd.scan(S, window, params)
    if y.shape[1] not in TABLED:
        y[:, -1] = 0
    return rounded(y, S_next)


FAULTS: tuple[Wrong, ...] = (
    (last_row_of_four, "ssd.scan", "INDEX", FP32),
    (last_row_of_four_inputs, "conv.scan", "INDEX", FP32),
    (sixteen_heads_of_two_groups, "ssd.scan", "GROUP-MAP", FP32),
    (sixteen_value_heads, "delta.scan", "GROUP-MAP", FP32),
    (tile_one_short, "ssd.scan", "CHUNK", FP32),
    (knows_the_lengths, "ssd.scan", "CHEAT", FP32),
)
"""Each with its operation, its bug class and what it declares."""


def adapter() -> Adapter:
    return adapter_of("unreached", FAULTS)
