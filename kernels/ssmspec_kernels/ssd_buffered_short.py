"""The kernel of `ssd_buffered` for windows of up to 8 tokens: its equations, by one warp for each tile of 16 channels.

The state goes from memory into the registers of the products (`fragments`), channels (p) as rows and tokens (t) as columns,
so that 8 columns do and nothing of it goes through shared memory. A program owns TILES tiles of HEADS heads of one group of
one row. What the heads share, the products B C^T of entries and tokens, is computed once, and the weights of a head once
for its tiles, by one warp and without a barrier. A tile is taken in two halves of n; each half of the next tile is asked
for when that of this one has been read. Rows that are due fold their history into each half as it comes, (3), in the same
launch or in one of their own. All products are as accurate as fp32 (`dots`).

Bound by the registers, 8 warps in an SM, each of which holds a tile and waits for the next.
"""

import triton
import triton.language as tl

from .dots import dot_inputs, dot_left, dot_onto, dot_right
from .fragments import load_tile, permuted, permuted_columns, store_tile, to_memory, to_product
from .functions import silu
from .ssd_inputs import load_rows, step_size
from .ssd_ring import load_at, place

MOST_TOKENS = 8


@triton.jit
def ssd_buffered_short_kernel(
    S, x, dt, A, B, C, D, z, dt_bias, slots, lengths, ring_x, ring_dt, ring_B, origin, held, y, stride_S_s: tl.constexpr,
    stride_S_h: tl.constexpr, stride_S_p: tl.constexpr, stride_x_b: tl.constexpr, stride_x_t: tl.constexpr,
    stride_x_h: tl.constexpr, stride_dt_b: tl.constexpr, stride_dt_t: tl.constexpr, stride_dt_h: tl.constexpr,
    stride_B_b: tl.constexpr, stride_B_t: tl.constexpr, stride_B_g: tl.constexpr, stride_C_b: tl.constexpr,
    stride_C_t: tl.constexpr, stride_C_g: tl.constexpr, stride_z_b: tl.constexpr, stride_z_t: tl.constexpr,
    stride_z_h: tl.constexpr, stride_y_b: tl.constexpr, stride_y_t: tl.constexpr, stride_y_h: tl.constexpr,
    stride_ring_x_s: tl.constexpr, stride_ring_x_l: tl.constexpr, stride_ring_x_h: tl.constexpr,
    stride_ring_dt_s: tl.constexpr, stride_ring_dt_l: tl.constexpr, stride_ring_dt_h: tl.constexpr,
    stride_ring_B_s: tl.constexpr, stride_ring_B_l: tl.constexpr, stride_ring_B_g: tl.constexpr, stride_D_h: tl.constexpr,
    stride_D_p: tl.constexpr, low, high, T: tl.constexpr, P: tl.constexpr, N: tl.constexpr, HEADS_PER_GROUP: tl.constexpr,
    D_HEAD: tl.constexpr, SOFTPLUS: tl.constexpr, LIMIT: tl.constexpr, CAPACITY: tl.constexpr, WINDOW: tl.constexpr,
    BLOCK_L: tl.constexpr, BLOCK_N: tl.constexpr, HALF_N: tl.constexpr, BLOCK_P: tl.constexpr, TILES: tl.constexpr,
    HEADS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(2).to(tl.int64)
    h_0 = tl.program_id(1).to(tl.int64) * HEADS
    slot = b
    if slots is not None:
        slot = tl.load(slots + b).to(tl.int64)
    length = T
    if lengths is not None:
        length = tl.minimum(tl.load(lengths + b).to(tl.int32), T)
    count = tl.load(held + slot, mask=slot >= 0, other=0).to(tl.int32)
    due = (length > 0) & (count + 2 * WINDOW > CAPACITY)
    if (slot >= 0) & ((ROWS == "all") | (due == (ROWS == "due"))):
        g = h_0 // HEADS_PER_GROUP
        e, t, n = tl.arange(0, BLOCK_L), tl.arange(0, 8), tl.arange(0, BLOCK_N)
        in_n = (n < N) | (N == BLOCK_N)
        p_0 = tl.program_id(0) * (TILES * BLOCK_P)
        at_S = S + slot * stride_S_s
        left = load_tile(at_S + h_0 * stride_S_h, p_0, 0, stride_S_p, True, P, N, BLOCK_P, HALF_N)
        right = load_tile(at_S + h_0 * stride_S_h, p_0, HALF_N, stride_S_p, True, P, N, BLOCK_P, HALF_N)
        first = tl.load(origin + slot).to(tl.int32)
        i = e - count
        past, new, real = i < 0, (i >= 0) & (i < length), t < length
        live = past | new
        at, tok, col_t = place(first + e, CAPACITY), i.to(tl.int64), t.to(tl.int64)
        sees = (i[:, None] <= t[None, :]) & live[:, None] & real[None, :]
        at_B, at_B_t = ring_B + slot * stride_ring_B_s + g * stride_ring_B_g, B + b * stride_B_b + g * stride_B_g
        B_e = load_at(tl.where(new, at_B_t + tok * stride_B_t, at_B + at * stride_ring_B_l), n, live, in_n)
        at_C, k = C + b * stride_C_b + g * stride_C_g, permuted_columns(HALF_N)
        C_t = load_rows(at_C, col_t * stride_C_t, n, real, in_n)
        C_left = tl.trans(load_rows(at_C, col_t * stride_C_t, k, real, k < N))
        C_right = tl.trans(load_rows(at_C, col_t * stride_C_t, k + HALF_N, real, k + HALF_N < N))
        if (tl.program_id(0) == 0) & (h_0 % HEADS_PER_GROUP == 0):
            tl.store(at_B + at[:, None] * stride_ring_B_l + n[None, :], B_e, mask=new[:, None] & in_n[None, :])
        scores = tl.where(sees, dot_inputs(B_e, tl.trans(C_t)), 0.0)
        for head in tl.range(0, HEADS, num_stages=1):
            h = h_0 + head
            decay = tl.load(A + h)
            bias = 0.0
            if dt_bias is not None:
                bias = tl.load(dt_bias + h).to(tl.float32)
            at_dt = ring_dt + slot * stride_ring_dt_s + h * stride_ring_dt_h
            at_x, at_x_t = ring_x + slot * stride_ring_x_s + h * stride_ring_x_h, x + b * stride_x_b + h * stride_x_h
            raw = tl.load(dt + b * stride_dt_b + h * stride_dt_h + tok * stride_dt_t, mask=new, other=0.0)
            step = tl.load(at_dt + at * stride_ring_dt_l, mask=past, other=0.0)
            step += step_size(raw, new, bias, low, high, SOFTPLUS, LIMIT)
            ld = step * decay
            G_e = tl.cumsum(ld, axis=0)
            G_t = tl.sum(tl.where(sees, ld[:, None], 0.0), axis=0)
            total = tl.sum(tl.where(past, ld, 0.0), axis=0)
            W = tl.exp(tl.where(sees, G_t[None, :] - G_e[:, None], float("-inf"))) * (step[:, None] * scores)
            if D_HEAD:
                W = tl.where(i[:, None] == t[None, :], W + tl.load(D + h * stride_D_h).to(tl.float32), W)
            if tl.program_id(0) == 0:
                tl.store(at_dt + at * stride_ring_dt_l, step, mask=new)
            weight, scale = tl.where(past, tl.exp(total - G_e) * step, 0.0), tl.exp(total)
            rows_x = tl.where(new, at_x_t + tok * stride_x_t, at_x + at * stride_ring_x_l)
            for tile in tl.range(0, TILES, num_stages=1):
                last = tile + 1 == TILES
                ahead, more = tl.where(last, h + 1, h), (tile + 1 < TILES) | (head + 1 < HEADS)
                p_ahead = p_0 + tl.where(last, 0, (tile + 1) * BLOCK_P)
                p_1 = p_0 + tile * BLOCK_P
                p = p_1 + tl.arange(0, BLOCK_P)
                in_p = p < P
                x_e = load_at(rows_x, p, live, in_p)
                weighted = tl.trans(weight[:, None] * x_e.to(tl.float32))
                state = to_product(left.to(tl.float32), BLOCK_P, HALF_N)
                if ROWS != "open":  # noqa: SIM102, settled when the kernel is compiled
                    if due:
                        fold_half(
                            state, scale, weighted, at_S + h * stride_S_h, p_1, 0, stride_S_p, at_B, stride_ring_B_l, first,
                            count, P, N, BLOCK_P, HALF_N, BLOCK_L, CAPACITY,
                        )  # fmt: skip
                left = load_tile(at_S + ahead * stride_S_h, p_ahead, 0, stride_S_p, more, P, N, BLOCK_P, HALF_N)
                y_t = dot_left(state, C_left)
                state = to_product(right.to(tl.float32), BLOCK_P, HALF_N)
                if ROWS != "open":  # noqa: SIM102, settled when the kernel is compiled
                    if due:
                        fold_half(
                            state, scale, weighted, at_S + h * stride_S_h, p_1, HALF_N, stride_S_p, at_B, stride_ring_B_l,
                            first, count, P, N, BLOCK_P, HALF_N, BLOCK_L, CAPACITY,
                        )  # fmt: skip
                right = load_tile(at_S + ahead * stride_S_h, p_ahead, HALF_N, stride_S_p, more, P, N, BLOCK_P, HALF_N)
                y_t = tl.exp(G_t)[None, :] * dot_onto(y_t, state, C_right) + dot_right(tl.trans(x_e), W)  # (1)
                if D is not None and not D_HEAD:
                    skip = tl.load(D + h * stride_D_h + p * stride_D_p, mask=in_p, other=0.0).to(tl.float32)
                    at_skip = at_x_t + p[:, None] + col_t[None, :] * stride_x_t
                    y_t += skip[:, None] * tl.load(at_skip, mask=in_p[:, None] & real[None, :], other=0.0).to(tl.float32)
                if z is not None:
                    at_z = z + b * stride_z_b + h * stride_z_h + p[:, None] + col_t[None, :] * stride_z_t
                    y_t *= silu(tl.load(at_z, mask=in_p[:, None] & real[None, :], other=0.0).to(tl.float32))
                at_y = y + b * stride_y_b + h * stride_y_h + p[:, None] + col_t[None, :] * stride_y_t
                tl.store(at_y, y_t.to(y.dtype.element_ty), mask=in_p[:, None] & (t < T)[None, :])
                tl.store(at_x + at[:, None] * stride_ring_x_l + p[None, :], x_e, mask=new[:, None] & in_p[None, :])  # (2)


@triton.jit
def fold_half(
    state, scale, weighted, S, p_0, n_0: tl.constexpr, stride_p: tl.constexpr, ring_B, stride_B: tl.constexpr, first, count,
    P: tl.constexpr, N: tl.constexpr, BLOCK_P: tl.constexpr, HALF_N: tl.constexpr, BLOCK_L: tl.constexpr,
    CAPACITY: tl.constexpr,
):  # fmt: skip
    """(3) for the columns of a tile from n_0 on; `weighted` (p, e) is exp(G_h - G_e) dt_e x_e."""
    e, n = tl.arange(0, BLOCK_L), n_0 + tl.arange(0, HALF_N)
    B = load_rows(ring_B, place(first + e, CAPACITY) * stride_B, n, e < count, n < N)
    following = dot_onto(scale * state, weighted, permuted(B, BLOCK_L, HALF_N))
    store_tile(S, to_memory(following, BLOCK_P, HALF_N), p_0, n_0, stride_p, P, N, BLOCK_P, HALF_N)
