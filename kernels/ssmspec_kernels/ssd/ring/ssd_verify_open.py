"""Verification without a flush: outputs of `ssd_buffered` (1), and entries appended to the ring (2). S_0 is only read.

The entries (e) are the held tokens and those of the window. A program loops over a run of tiles of 16 channels. The scores B
C^T are computed once for the run, and the weights of a head once for its tiles. While a tile is computed, the loads of the
next one, through shared memory, and of dt of the next head are in flight. Halves of n of a tile reach the products as
described in `ssd_state_tile`, B and C directly from memory (`mma_tile`). The sums over the three parts of the state are
independent chains, which do not wait for each other.
"""

import triton
import triton.language as tl

from ...shared.dots import dot_inputs, dot_onto, dot_right, split3
from ...shared.mma_tile import load_operand, operand_rows
from ..ssd_inputs import load_rows, step_size
from .ssd_ring import load_at, place
from .ssd_state_tile import load_half, to_mma
from .ssd_tile_outputs import load_head, store_outputs, weights_by_entry


@triton.jit
def verify_open(
    S, inputs, ring, y, strides, b, slot, g, begin, end, length, first, count, low, high, T: tl.constexpr,
    P: tl.constexpr, N: tl.constexpr, HEADS: tl.constexpr, D_HEAD: tl.constexpr, SOFTPLUS: tl.constexpr, LIMIT: tl.constexpr,
    CAPACITY: tl.constexpr, BLOCK_L: tl.constexpr, HALF_N: tl.constexpr, BLOCK_P: tl.constexpr, TILES: tl.constexpr,
    STAGES: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Tiles begin to end - 1 of the HEADS of group g of row b: `length` tokens after `count` entries from `first` on."""
    x, dt, A, B, C, D, z, dt_bias = inputs
    stride, stride_ring, stride_D = strides
    ring_x, ring_dt, ring_B = ring.x, ring.dt, ring.B
    e, t, n = tl.arange(0, BLOCK_L), tl.arange(0, 8), tl.arange(0, HALF_N)
    m, i = n + HALF_N, e - count
    past, new, real = i < 0, (i >= 0) & (i < length), t < length
    live = past | new
    at, tok = place(first + e, CAPACITY), i.to(tl.int64)
    sees, own = (i[:, None] <= t[None, :]) & live[:, None] & real[None, :], i[:, None] == t[None, :]
    S += slot * stride.S.s
    x, ring_x = x + b * stride.x.b, ring_x + slot * stride_ring.x.s
    B, ring_B = B + b * stride.B.b + g * stride.B.g, ring_B + slot * stride_ring.B.s + g * stride_ring.B.g
    dt, ring_dt = dt + b * stride.dt.b + tok * stride.dt.t, ring_dt + slot * stride_ring.dt.s + at * stride_ring.dt.l
    h_0 = g * HEADS + begin // TILES
    raw = tl.load(dt + h_0 * stride.dt.h, mask=new, other=0.0)
    step = tl.load(ring_dt + h_0 * stride_ring.dt.h, mask=past, other=0.0)
    decay, bias, skip = load_head(A, D, dt_bias, h_0, None, stride_D.h, D_HEAD)
    C += b * stride.C.b + g * stride.C.g
    C_left = tl.trans(load_window(C, stride.C.t, length, 0, N, 8, HALF_N, WHOLE))
    C_right = tl.trans(load_window(C, stride.C.t, length, HALF_N, N, 8, HALF_N, WHOLE))
    entries = ring_B, stride_ring.B.l, first, count
    scores = dot_inputs(load_entries(entries, B, stride.B.t, length, 0, N, BLOCK_L, HALF_N, CAPACITY, WHOLE), C_left)
    scores += dot_inputs(load_entries(entries, B, stride.B.t, length, HALF_N, N, BLOCK_L, HALF_N, CAPACITY, WHOLE), C_right)
    scores = tl.where(sees, scores, 0.0)
    if begin == 0:
        append(B, stride.B.t, ring_B, stride_ring.B.l, length, first + count, N, 2 * HALF_N, CAPACITY)
    W, growth = tl.zeros((BLOCK_L, 8), tl.float32), tl.zeros((8,), tl.float32)
    rows_x = tl.where(new, x + tok * stride.x.t, ring_x + at * stride_ring.x.l)
    rows_h = tl.where(new, stride.x.h, stride_ring.x.h)
    for index in tl.range(begin, end, num_stages=STAGES):
        h, p_0 = g * HEADS + index // TILES, index % TILES * BLOCK_P
        p = p_0 + tl.arange(0, BLOCK_P)
        in_p = (p < P) | WHOLE
        left = load_half(S + h * stride.S.h, p, n, stride.S.p, in_p, N, WHOLE)
        right = load_half(S + h * stride.S.h, p, m, stride.S.p, in_p, N, WHOLE)
        x_e = load_at(rows_x + h * rows_h.to(tl.int64), p, live, in_p)
        if (p_0 == 0) | (index == begin):
            step += step_size(raw, new, bias, low, high, SOFTPLUS, LIMIT)
            tl.store(ring_dt + h * stride_ring.dt.h, step, mask=new & (p_0 == 0))  # (2)
            G_e = tl.cumsum(step * decay, axis=0)
            G_t = tl.sum(tl.where(own, G_e[:, None], 0.0), axis=0)  # from the running sum: a token's own weight is exactly dt
            W = weights_by_entry(G_e, G_t, step, scores, sees, own, skip, D_HEAD)
            growth = tl.exp(G_t)
            ahead, more = h + 1, (index // TILES + 1) * TILES < end
            raw = tl.load(dt + ahead * stride.dt.h, mask=new & more, other=0.0)
            step = tl.load(ring_dt + ahead * stride_ring.dt.h, mask=past & more, other=0.0)
            decay, bias, skip = load_head(A, D, dt_bias, ahead, more, stride_D.h, D_HEAD)
        zeros = tl.zeros((BLOCK_P, 8), tl.float32)
        hi, mid, lo = dot_parts(zeros, zeros, zeros, to_mma(left, HALF_N), C_left)
        hi, mid, lo = dot_parts(hi, mid, lo, to_mma(right, HALF_N), C_right)
        y_t = growth[None, :] * (hi + (mid + lo)) + dot_right(tl.trans(x_e), W)  # (1)
        store_outputs(y_t, x, D, z, y, b, h, p, in_p, t < length, stride.x, stride_D, stride.z, stride.y, T, D_HEAD)
        into = ring_x + h * stride_ring.x.h + at * stride_ring.x.l
        tl.store(into[:, None] + p[None, :], x_e, mask=new[:, None] & in_p[None, :])  # (2)


@triton.jit
def load_window(
    window, stride: tl.constexpr, length, n_0: tl.constexpr, N: tl.constexpr, ROWS: tl.constexpr, BLOCK_N: tl.constexpr,
    WHOLE: tl.constexpr,
):  # fmt: skip
    """(t, permuted n) of a window's tokens, as an operand; zeros after the real ones."""
    t, n = operand_rows(ROWS, n_0, BLOCK_N)
    mask = (t < length)[:, None] & ((n < N) | WHOLE)
    return load_operand(window + t.to(tl.int64) * stride, n, mask, ROWS, BLOCK_N)


@triton.jit
def load_entries(
    entries, window, stride_t: tl.constexpr, length, n_0: tl.constexpr, N: tl.constexpr, BLOCK_L: tl.constexpr,
    BLOCK_N: tl.constexpr, CAPACITY: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """(e, permuted n) of the entries, the held ones followed by the window's, as an operand; zeros elsewhere."""
    start, stride, first, count = entries
    e, n = operand_rows(BLOCK_L, n_0, BLOCK_N)
    i = e - count
    rows = tl.where(i < 0, start + place(first + e, CAPACITY) * stride, window + i.to(tl.int64) * stride_t)
    return load_operand(rows, n, (i < length)[:, None] & ((n < N) | WHOLE), BLOCK_L, BLOCK_N)


@triton.jit
def append(
    window, stride_t: tl.constexpr, ring, stride_l: tl.constexpr, length, behind, N: tl.constexpr, BLOCK_N: tl.constexpr,
    CAPACITY: tl.constexpr,
):  # fmt: skip
    """Stores B of a window's tokens in the ring, from entry `behind` on (2)."""
    t, n = tl.arange(0, 8), tl.arange(0, BLOCK_N)
    real, in_n = t < length, n < N
    rows = load_rows(window, t.to(tl.int64) * stride_t, n, real, in_n)
    at = place(tl.where(real, behind + t, 0), CAPACITY) * stride_l
    tl.store(ring + at[:, None] + n[None, :], rows, mask=real[:, None] & in_n[None, :])


@triton.jit
def dot_parts(hi, mid, lo, x, y):
    """The sums of x y over the parts of x, each added to its own accumulator."""
    if y.dtype == tl.bfloat16:
        x_hi, x_mid, x_lo = split3(x)
        return tl.dot(x_hi, y, acc=hi), tl.dot(x_mid, y, acc=mid), tl.dot(x_lo, y, acc=lo)
    return dot_onto(hi, x, y), mid, lo
