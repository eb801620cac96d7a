"""Activations of 64 tokens and 64 channels between memory and registers, in the layout of a 64 x 64 product over four warps.

An accumulator gives a lane (r of 8, c of 4) of warp w the rows 16 w + r and 16 w + r + 8, and the columns 8 q + 2 c and
8 q + 2 c + 1 for each q of 8; the left operand of a product has the same layout. The rows are channels, in any order:
row 16 w + 8 i + r holds channel 16 w + 2 r + i. Then the two rows of a lane are adjacent in memory, 4 bytes of bf16;
eight lanes read or write the 32 bytes of a sector, and no element changes its lane on the way.
"""

import triton
import triton.language as tl


@triton.jit
def places():
    """Token and first channel of each pair, in the order of the lanes."""
    pair = tl.arange(0, 2048)
    token = pair // 256 * 8 + pair % 4 * 2 + pair // 128 % 2
    return token.to(tl.int64), pair // 32 % 4 * 16 + pair // 4 % 8 * 2


@triton.jit
def bit_of_token(bits):
    """Whether the bit of each pair's token is set among 64, from one pair of registers instead of a mask for each token."""
    pair = tl.arange(0, 2048)
    lane = bits >> (pair % 4 * 2).to(tl.int64)
    return (lane >> (pair // 256 * 8 + pair // 128 % 2).to(tl.int64)) & 1 != 0


@triton.jit
def load_pairs(start, wanted):
    """The pairs that begin at the pointers `start`; zeros if not wanted."""
    return tl.load(start[:, None] + tl.arange(0, 2)[None, :], mask=wanted[:, None], other=0.0)


@triton.jit
def store_pairs(start, pairs, wanted):
    """The reverse."""
    tl.store(start[:, None] + tl.arange(0, 2)[None, :], pairs, mask=wanted[:, None])


@triton.jit
def from_pairs(pairs):
    """(row, token) of pairs."""
    return tl.reshape(tl.permute(tl.reshape(pairs, (8, 2, 4, 8, 4, 2)), (2, 5, 3, 0, 4, 1)), (64, 64))


@triton.jit
def to_pairs(tile):
    """The reverse."""
    return tl.reshape(tl.permute(tl.reshape(tile, (4, 2, 8, 8, 4, 2)), (3, 5, 0, 2, 4, 1)), (2048, 2))


@triton.jit
def row_channels(BLOCK_N: tl.constexpr):
    """The warp, the channel of its 16 and the columns n of each row of 16 of a state tile in memory order (`mma_tile`), with
    its channels in the order of the rows."""
    row = tl.arange(0, BLOCK_N // 16 * 64)
    return row // 8 % 4, row % 8 * 2 + row // 32 % 2, (row // 64 * 16)[:, None] + tl.arange(0, 16)[None, :]


@triton.jit
def to_mma(tile, BLOCK_N: tl.constexpr = 64):
    """(row, permuted n) of such a tile, in the layout of a product."""
    parts = tl.reshape(tile, (BLOCK_N // 16, 2, 4, 8, 4, 2, 2))
    return tl.reshape(tl.permute(parts, (2, 1, 3, 0, 5, 4, 6)), (64, BLOCK_N))
