"""A state tile in registers with the layout of a matrix product's accumulators and operands, loaded directly from memory.

A bf16 product gives a lane of a group of four the columns 2 c, 2 c + 1, 2 c + 8, 2 c + 9 of 16 (c of 4), of rows r and
r + 8. The order in which n is summed is free, so a tile is held with its columns permuted: position 8 j + 2 c + i of 16
holds n = 4 c + 2 j + i. Then a lane's four are adjacent in memory, one load of 16 bytes, and no element changes its
lane on the way into a product, or from its accumulators back to memory. In memory order a tile is (n / 16 blocks of rows,
16), with its rows spread over the warps as those of the product are.
"""

import triton
import triton.language as tl


@triton.jit
def memory_rows(BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr):
    """The channel, and the columns n, of each row of 16 in memory order."""
    row = tl.arange(0, BLOCK_N // 16 * BLOCK_P)
    warps: tl.constexpr = BLOCK_P // 16
    p = row // 8 % warps * 16 + row // (8 * warps) % 2 * 8 + row % 8
    return p, (row // BLOCK_P * 16)[:, None] + tl.arange(0, 16)[None, :]


@triton.jit
def to_memory(tile, BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr):
    """A tile in memory order, from (p, permuted n)."""
    parts = tl.reshape(tile, (BLOCK_P // 16, 2, 8, BLOCK_N // 16, 2, 4, 2))
    return tl.reshape(tl.permute(parts, (3, 1, 0, 2, 5, 4, 6)), (BLOCK_N // 16 * BLOCK_P, 16))


@triton.jit
def operand_rows(ROWS: tl.constexpr, n_0: tl.constexpr, BLOCK_N: tl.constexpr):
    """The row, and the columns n, of each row of 16 of an operand of `ROWS` rows of activations in memory order."""
    row = tl.arange(0, BLOCK_N // 16 * ROWS)
    return row % ROWS, n_0 + (row // ROWS * 16)[:, None] + tl.arange(0, 16)[None, :]


@triton.jit
def load_operand(start, n, mask, ROWS: tl.constexpr, BLOCK_N: tl.constexpr):
    """(row, permuted n) of the rows of `operand_rows` that begin at the pointers `start`; zeros outside the mask. A lane
    loads only the four adjacent values that the product needs."""
    tile = tl.load(tl.max_contiguous(start[:, None] + n, [1, 4]), mask=mask, other=0.0)
    return tl.reshape(tl.permute(tl.reshape(tile, (BLOCK_N // 16, ROWS, 4, 2, 2)), (1, 0, 3, 2, 4)), (ROWS, BLOCK_N))


@triton.jit
def permuted(rows, ROWS: tl.constexpr, BLOCK_N: tl.constexpr):
    """Rows over n with their columns in the order of a product's tile."""
    parts = tl.permute(tl.reshape(rows, (ROWS, BLOCK_N // 16, 4, 2, 2)), (0, 1, 3, 2, 4))
    return tl.reshape(parts, (ROWS, BLOCK_N))
