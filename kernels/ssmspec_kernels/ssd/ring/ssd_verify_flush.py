"""Verification with a flush: the history is added to the checkpoint, (3) of `ssd_buffered`, then the outputs of the window.

    y_t = exp(G'_t) C_t S'^T + sum_{s<=t} exp(G'_t - G'_s) dt_s (C_t . B_s) x_s + D x_t        G' the sum from the window on

is (1) with S', which is in registers, instead of S_0 and the held tokens, so that these are multiplied once. A half of a tile
is loaded through shared memory. Scaled, it is the accumulator to which the history is added; it is written back to memory,
and split for the product with C. B of the history stays in registers for the whole run, as an operand. The exponents of the
weights of the history (e) are running sums from its newest entry on: no difference of large sums is formed, and the factors
of x and B are never rounded to their type.
"""

import triton
import triton.language as tl

from ...shared.dots import dot_inputs, dot_left, dot_onto, dot_right
from ...shared.mma_tile import permuted
from ..ssd_inputs import load_rows, step_size
from .ssd_ring import place
from .ssd_state_tile import load_half, store_half, to_mma
from .ssd_tile_outputs import load_head, store_outputs, weights_by_entry
from .ssd_verify_open import append, load_window


@triton.jit
def _window_scores(
    B, stride_B: tl.constexpr, C, stride_C: tl.constexpr, length, sees, N: tl.constexpr, HALF_N: tl.constexpr,
    WHOLE: tl.constexpr,
):  # fmt: skip
    """C of the window's tokens in two halves of n, as operands, and its scores with their B."""
    C_left = tl.trans(load_window(C, stride_C, length, 0, N, 8, HALF_N, WHOLE))
    C_right = tl.trans(load_window(C, stride_C, length, HALF_N, N, 8, HALF_N, WHOLE))
    scores = dot_inputs(load_window(B, stride_B, length, 0, N, 16, HALF_N, WHOLE), C_left)
    scores += dot_inputs(load_window(B, stride_B, length, HALF_N, N, 16, HALF_N, WHOLE), C_right)
    return C_left, C_right, tl.where(sees, scores, 0.0)


@triton.jit
def _head_weights(raw, step, behind, decay, bias, new, low, high, SOFTPLUS: tl.constexpr, LIMIT: tl.constexpr):
    """Weights of a head's history (3), what is left of its state, and dt of the window."""
    since = tl.cumsum(behind * decay, axis=0, reverse=True)
    weight, scale = tl.exp(since) * step, tl.exp(tl.sum(step * decay, axis=0))
    return weight, scale, step_size(raw, new, bias, low, high, SOFTPLUS, LIMIT)


@triton.jit
def _own_weights(own_step, decay, scores, sees, own, skip, D_HEAD: tl.constexpr):
    """Weights of the window's own tokens, and exp(G'_t) of each."""
    G_s = tl.cumsum(own_step * decay, axis=0)
    G_t = tl.sum(tl.where(own, G_s[:, None], 0.0), axis=0)  # from the running sum: a token's own weight is exactly dt
    return weights_by_entry(G_s, G_t, own_step, scores, sees, own, skip, D_HEAD), tl.exp(G_t)


@triton.jit
def _append_x(ring_x, x_t, h, at_new, p, new, in_p, stride):
    """Stores x of a tile of the window's tokens in the ring (2)."""
    tl.store((ring_x + h * stride.h + at_new * stride.l)[:, None] + p[None, :], x_t, mask=new[:, None] & in_p[None, :])


@triton.jit
def verify_flush(
    S, inputs, ring, y, strides, b, slot, g, begin, end, length, first, count, low, high, T: tl.constexpr,
    P: tl.constexpr, N: tl.constexpr, HEADS: tl.constexpr, D_HEAD: tl.constexpr, SOFTPLUS: tl.constexpr, LIMIT: tl.constexpr,
    CAPACITY: tl.constexpr, BLOCK_F: tl.constexpr, HALF_N: tl.constexpr, BLOCK_P: tl.constexpr, TILES: tl.constexpr,
    STAGES: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Tiles begin to end - 1 of the HEADS of group g of row b: `length` tokens after `count` entries from `first` on."""
    x, dt, A, B, C, D, z, dt_bias = inputs
    stride, stride_ring, stride_D = strides
    ring_x, ring_dt, ring_B = ring.x, ring.dt, ring.B
    e, i, t, n = tl.arange(0, BLOCK_F), tl.arange(0, 16), tl.arange(0, 8), tl.arange(0, HALF_N)
    m = n + HALF_N
    past, follows, new = e < count, e + 1 < count, i < length
    at, at_next = place(first + e, CAPACITY), place(first + e + 1, CAPACITY)
    tok, at_new = i.to(tl.int64), place(tl.where(new, first + count + i, 0), CAPACITY)
    sees, own = (i[:, None] <= t[None, :]) & (t < length)[None, :], i[:, None] == t[None, :]
    S += slot * stride.S.s
    x, ring_x = x + b * stride.x.b, ring_x + slot * stride_ring.x.s
    B, ring_B = B + b * stride.B.b + g * stride.B.g, ring_B + slot * stride_ring.B.s + g * stride_ring.B.g
    dt, ring_dt = dt + b * stride.dt.b + tok * stride.dt.t, ring_dt + slot * stride_ring.dt.s
    h_0 = g * HEADS + begin // TILES
    raw = tl.load(dt + h_0 * stride.dt.h, mask=new, other=0.0)
    step = tl.load(ring_dt + h_0 * stride_ring.dt.h + at * stride_ring.dt.l, mask=past, other=0.0)
    behind = tl.load(ring_dt + h_0 * stride_ring.dt.h + at_next * stride_ring.dt.l, mask=follows, other=0.0)
    decay, bias, skip = load_head(A, D, dt_bias, h_0, None, stride_D.h, D_HEAD)
    C += b * stride.C.b + g * stride.C.g
    C_left, C_right, scores = _window_scores(B, stride.B.t, C, stride.C.t, length, sees, N, HALF_N, WHOLE)
    if begin == 0:
        append(B, stride.B.t, ring_B, stride_ring.B.l, length, first + count, N, 2 * HALF_N, CAPACITY)
    B_left = permuted(load_rows(ring_B, at * stride_ring.B.l, n, past, (n < N) | WHOLE), BLOCK_F, HALF_N)
    B_right = permuted(load_rows(ring_B, at * stride_ring.B.l, m, past, (m < N) | WHOLE), BLOCK_F, HALF_N)
    W, growth = tl.zeros((16, 8), tl.float32), tl.zeros((8,), tl.float32)
    weight, scale = tl.zeros((BLOCK_F,), tl.float32), 0.0
    for index in tl.range(begin, end, num_stages=STAGES):
        h, p_0 = g * HEADS + index // TILES, index % TILES * BLOCK_P
        p = p_0 + tl.arange(0, BLOCK_P)
        in_p, at_head = (p < P) | WHOLE, S + h * stride.S.h
        left = load_half(at_head, p, n, stride.S.p, in_p, N, WHOLE)
        right = load_half(at_head, p, m, stride.S.p, in_p, N, WHOLE)
        x_e = load_rows(ring_x + h * stride_ring.x.h, at * stride_ring.x.l, p, past, in_p)
        x_t = load_rows(x + h * stride.x.h, tok * stride.x.t, p, new, in_p)
        if (p_0 == 0) | (index == begin):
            weight, scale, own_step = _head_weights(raw, step, behind, decay, bias, new, low, high, SOFTPLUS, LIMIT)
            tl.store(ring_dt + h * stride_ring.dt.h + at_new * stride_ring.dt.l, own_step, mask=new & (p_0 == 0))  # (2)
            W, growth = _own_weights(own_step, decay, scores, sees, own, skip, D_HEAD)
            ahead, more = h + 1, (index // TILES + 1) * TILES < end
            raw = tl.load(dt + ahead * stride.dt.h, mask=new & more, other=0.0)
            at_ahead = ring_dt + ahead * stride_ring.dt.h
            step = tl.load(at_ahead + at * stride_ring.dt.l, mask=past & more, other=0.0)
            behind = tl.load(at_ahead + at_next * stride_ring.dt.l, mask=follows & more, other=0.0)
            decay, bias, skip = load_head(A, D, dt_bias, ahead, more, stride_D.h, D_HEAD)
        weighted = tl.trans(weight[:, None] * x_e.to(tl.float32))
        state = dot_onto(scale * to_mma(left, HALF_N), weighted, B_left)  # (3)
        store_half(at_head, state, p_0, 0, stride.S.p, True, P, N, HALF_N, False, WHOLE)
        y_t = dot_left(state, C_left)
        state = dot_onto(scale * to_mma(right, HALF_N), weighted, B_right)  # (3)
        store_half(at_head, state, p_0, HALF_N, stride.S.p, True, P, N, HALF_N, False, WHOLE)
        y_t = growth[None, :] * dot_onto(y_t, state, C_right) + dot_right(tl.trans(x_t), W)  # (1)
        store_outputs(y_t, x, D, z, y, b, h, p, in_p, t < length, stride.x, stride_D, stride.z, stride.y, T, D_HEAD)
        _append_x(ring_x, x_t, h, at_new, p, new, in_p, stride_ring.x)
