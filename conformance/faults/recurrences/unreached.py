"""Wrong at sizes, or with contents, that tables of small and of round numbers do not reach; right everywhere else."""

import numpy as np

from ssmspec_ref.shapes import Array

from ...mistakes.mistake import after, before
from ..fault import FP32, planted

TABLED = {*range(1, 10), 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 512, 513, 520, 1023, 1024}


def last_row_of_four(y: Array) -> Array:
    """Rows are taken by fours, and of a batch that is a multiple of 4 the last row is not written."""
    if len(y) % 4 == 0:
        y[-1] = 0
    return y


def last_row_of_four_inputs(M: Array, M_next: Array) -> Array:
    """Rows are taken by fours, and of a batch that is a multiple of 4 the last row keeps its window."""
    if len(M) % 4 == 0:
        M_next[-1] = M[-1]
    return M_next


def sixteen_of_two(own: Array, S: Array) -> Array:
    """The groups of all heads; of two groups heads from the 16th on read the first."""
    heads = np.arange(S.shape[1])
    if own.shape[2] != 2 or len(heads) <= 16:
        return own
    return own[:, :, np.where(heads < 16, heads * 2 // len(heads), 0)]


def tile_one_short(y: Array) -> Array:
    """Where the last tile of 64 tokens lacks one, its last token is not written."""
    if y.shape[1] % 64 == 63:
        y[:, -1] = 0
    return y


def knows_the_lengths(y: Array) -> Array:
    """Right for every number of tokens that a table of the suite has, and for no other."""
    if y.shape[1] not in TABLED:
        y[:, -1] = 0
    return y


FAULTS = planted(
    (after(y=last_row_of_four), "ssd.scan", "INDEX", FP32),
    (after(M_next=last_row_of_four_inputs), "conv.scan", "INDEX", FP32),
    (
        before(
            "sixteen_heads_of_two_groups",
            "With two groups, heads from the 16th on read the first group: the index has four bits beside the one of the "
            "group.",
            B=sixteen_of_two,
            C=sixteen_of_two,
        ),
        "ssd.scan",
        "GROUP-MAP",
        FP32,
    ),
    (
        before(
            "sixteen_value_heads",
            "With two key heads, value heads from the 16th on read the first key.",
            q=sixteen_of_two,
            k=sixteen_of_two,
        ),
        "delta.scan",
        "GROUP-MAP",
        FP32,
    ),
    (after(y=tile_one_short), "ssd.scan", "CHUNK", FP32),
    (after(y=knows_the_lengths), "ssd.scan", "CHEAT", FP32),
)
