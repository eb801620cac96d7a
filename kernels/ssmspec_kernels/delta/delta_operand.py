"""Tiles of the delta rule's state as a warp loads them, 16 bytes per lane, already in the layout of a product's left operand.

A product of 16 rows on the tensor cores reads its left operand (v, k) from each lane as two columns adjacent in k and a row:
lane l holds row l // 4 and columns 2 (l % 4) and the next. A tile (8 WIDE v, PART k) of the state (k, v) is loaded with

    row x = 8 e + r  holds channel v = WIDE r + e,     r = l // 4, e < WIDE             (1)
    column y         holds channel k = y                                                (2)

so that a lane loads WIDE values adjacent in v, a warp whole lines, and every element is already in the lane that multiplies
it: the order (1) of the rows is free. Values and outputs (v, t) have rows as in (1). With WIDE = 2 the tile is loaded as rows
of two in the order of the lanes, and then reshaped: Triton 3.6 spreads lanes over other rows of a block of four axes. With 4
that block was still faster, staged through shared memory (H200).
"""

import triton
import triton.language as tl

from ..shared.dots import split3


@triton.jit
def _places(i, j, PART: tl.constexpr, WIDE: tl.constexpr):
    """Channels of k and v of a tile as it is loaded: (PART / 4, 8, 4, WIDE), or rows of WIDE in the order of the lanes."""
    if WIDE == 2:
        row = tl.arange(0, PART * 8)
        n, r, c = (row // 32)[:, None], (row // 4 % 8)[:, None], (row % 4)[:, None]
        e = tl.arange(0, WIDE)[None, :]
    else:
        n = tl.arange(0, PART // 4)[:, None, None, None]
        r = tl.arange(0, 8)[None, :, None, None]
        c = tl.arange(0, 4)[None, None, :, None]
        e = tl.arange(0, WIDE)[None, None, None, :]
    return i + n // 2 * 8 + c * 2 + n % 2, j + r * WIDE + e


@triton.jit
def load_state(S, i, j, K, V, ROW: tl.constexpr, PART: tl.constexpr, WIDE: tl.constexpr):
    """The tile (8 WIDE, PART) that starts at channels i of k and j of v, in fp32; S points to the head's state."""
    at_k, at_v = _places(i, j, PART, WIDE)
    tile = tl.load(S + at_k.to(tl.int64) * ROW + at_v, mask=(at_k < K) & (at_v < V), other=0.0).to(tl.float32)
    tile = tl.permute(tl.reshape(tile, (PART // 8, 2, 8, 4, WIDE)), (4, 2, 0, 3, 1))
    return tl.reshape(tile, (8 * WIDE, PART))


@triton.jit
def store_state(S, tile, i, j, K, V, ROW: tl.constexpr, PART: tl.constexpr, WIDE: tl.constexpr):
    """Writes what `load_state` loads."""
    at_k, at_v = _places(i, j, PART, WIDE)
    at = at_k.to(tl.int64) * ROW + at_v
    tile = tl.permute(tl.reshape(tile, (WIDE, 8, PART // 8, 4, 2)), (2, 4, 1, 3, 0))
    tl.store(S + at, tl.reshape(tile, at.shape).to(S.dtype.element_ty), mask=(at_k < K) & (at_v < V))


@triton.jit
def rows(x, WIDE: tl.constexpr):
    """(t, 8, WIDE), as values and outputs are in memory, as (v, t) in the order (1)."""
    return tl.reshape(tl.permute(x, (2, 1, 0)), (8 * WIDE, x.shape[0]))


@triton.jit
def unrows(x, WIDE: tl.constexpr):
    """The inverse of `rows`."""
    return tl.permute(tl.reshape(x, (WIDE, 8, x.shape[1])), (2, 1, 0))


@triton.jit
def add_dots(a, b, tile, x, y):
    """a + tile x and b + tile y for an fp32 tile and activations x, y, summed in fp32; the tile is cut once."""
    if x.dtype == tl.bfloat16:
        hi, mid, lo = split3(tile)
        a = tl.dot(lo, x, acc=a, out_dtype=tl.float32)
        b = tl.dot(lo, y, acc=b, out_dtype=tl.float32)
        a = tl.dot(mid, x, acc=a, out_dtype=tl.float32)
        b = tl.dot(mid, y, acc=b, out_dtype=tl.float32)
        a = tl.dot(hi, x, acc=a, out_dtype=tl.float32)
        return a, tl.dot(hi, y, acc=b, out_dtype=tl.float32)
    a = tl.dot(tile, x.to(tl.float32), acc=a, input_precision="ieee")
    return a, tl.dot(tile, y.to(tl.float32), acc=b, input_precision="ieee")
