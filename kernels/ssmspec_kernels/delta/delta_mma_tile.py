"""A tile of the delta rule's state, k and 32 v, in registers in the layout of one warp's products: v as rows, no lane
changed.

A lane of a product holds rows r and r + 8 of 16 (r of 8), columns 2 c + i and 2 c + i + 8 (c of 4, i of 2). Channel
v = 4 r + w is row 8 w + r of 32. A tile is processed in parts of 8 RUN channels k, of which k = RUN (2 c + i) + m is
column 8 m + 2 c + i. So a lane's four v of the state, and its RUN of k of the keys, are adjacent in memory, and nothing
changes its lane between memory, sums and products. Tokens and entries, eight at a time, are columns 2 c + i, as k are.

In memory order a part of a tile, and the tensors multiplied with it, are (rows, 4 v) or (rows, RUN).
"""

import triton
import triton.language as tl


@triton.jit
def part_rows(part: tl.constexpr, RUN: tl.constexpr):
    """The channel k, and the four v, of each row of a part in memory order."""
    row = tl.arange(0, 64 * RUN)
    k = part * 8 * RUN + (row % 4 * 2 + row // 32 % 2) * RUN + row // 64
    return k, (row // 4 % 8 * 4)[:, None] + tl.arange(0, 4)[None, :]


@triton.jit
def beside(ROWS: tl.constexpr, RUN: tl.constexpr = 4, first: tl.constexpr = 0, k_0: tl.constexpr = 0):
    """The token or entry, from `first` on, and the RUN channels, from `k_0` on, of each row of a tensor that is multiplied
    with a tile, in memory order."""
    row = tl.arange(0, ROWS * 8)
    column = row // 64 * 8 + first + row % 4 * 2 + row // 32 % 2
    return column, (row // 4 % 8 * RUN + k_0)[:, None] + tl.arange(0, RUN)[None, :]


@triton.jit
def by_lane(x):
    """Rows of four v in memory order as (eights of columns, i, r, c, w): a lane holds all of one r and c."""
    return tl.reshape(x, (x.shape[0] // 64, 2, 8, 4, 4))


@triton.jit
def to_left(lanes):
    """(v, columns) as the left operand or accumulators, from `by_lane`: columns are k, tokens or entries."""
    return tl.reshape(tl.permute(lanes, (4, 2, 0, 3, 1)), (32, lanes.shape[0] * 8))


@triton.jit
def from_left(x):
    """The reverse, in memory order."""
    blocks: tl.constexpr = x.shape[1] // 8
    return tl.reshape(tl.permute(tl.reshape(x, (4, 8, blocks, 4, 2)), (2, 4, 1, 3, 0)), (blocks * 64, 4))


@triton.jit
def to_right(runs):
    """(entry, permuted k of a part) as the right operand, from runs of k in memory order."""
    eights: tl.constexpr = runs.shape[0] // 64
    RUN: tl.constexpr = runs.shape[1]
    return tl.reshape(tl.permute(tl.reshape(runs, (eights, 2, 8, 4, RUN)), (0, 3, 1, 4, 2)), (eights * 8, 8 * RUN))
