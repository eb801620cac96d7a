"""The kernel of `ssd_window` for a chain of up to 16 tokens that writes the state it reached: its equations, tile by tile.

A half of a tile is held in registers (`ssd_tiles`): cut into parts, it is multiplied by C; scaled, it is the accumulators of
what the tokens add, and goes back to memory from these. A program walks a run of tiles of one group; the products B C^T are
computed once, and the weights of a head once for its tiles. The next tiles and their x are under way while this one is
multiplied, and so is dt of the next head. Where programs are many, B C^T is left to the first turn, behind the first tiles on
their way: 0.94 to 1.0 of the time on an H200, but 1.0 to 1.2 where they are few. All products are as accurate as fp32
(`dots`).

The total decay of the window is G of its last real token as it came out of the running sum, so that the token's own weight is
its dt: another order of the sum is another number.
Bound by the bytes of the state, one read and one write.
"""

import triton
import triton.language as tl
import triton.language.extra.cuda  # griddepcontrol

from .dots import dot_inputs, dot_left, dot_onto, dot_right
from .fence import unmoved
from .fragments import permuted
from .ssd_inputs import load_rows, step_size
from .ssd_tiles import held, load_half, store_half
from .ssd_walk import load_head, store_outputs, weights


@triton.jit(do_not_specialize=["run"])
def ssd_window_chain_kernel(
    S, x, dt, A, B, C, D, z, dt_bias, slots, live, y,
    stride_S_s, stride_S_h: tl.constexpr, stride_S_p: tl.constexpr, stride_x_b, stride_x_t: tl.constexpr,
    stride_x_h: tl.constexpr, stride_dt_b, stride_dt_t: tl.constexpr, stride_dt_h: tl.constexpr, stride_B_b,
    stride_B_t: tl.constexpr, stride_B_g: tl.constexpr, stride_C_b, stride_C_t: tl.constexpr, stride_C_g: tl.constexpr,
    stride_z_b, stride_z_t: tl.constexpr, stride_z_h: tl.constexpr, stride_y_b, stride_y_t: tl.constexpr,
    stride_y_h: tl.constexpr, stride_live_b, stride_live_t, stride_D_h: tl.constexpr, stride_D_p: tl.constexpr, low, high,
    run, T: tl.constexpr, P: tl.constexpr, N: tl.constexpr, HEADS_PER_GROUP: tl.constexpr, D_HEAD: tl.constexpr,
    SOFTPLUS: tl.constexpr, LIMIT: tl.constexpr, BLOCK_T: tl.constexpr, HALF_N: tl.constexpr, BLOCK_P: tl.constexpr,
    TILES: tl.constexpr, STAGES: tl.constexpr, MANY: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
    b = tl.program_id(2).to(tl.int64)
    g = tl.program_id(1).to(tl.int64)
    first = tl.program_id(0) * run
    end = tl.minimum(first + run, HEADS_PER_GROUP * TILES)
    h_0 = g * HEADS_PER_GROUP + first // TILES
    slot = b
    if slots is not None:
        slot = tl.load(slots + b).to(tl.int64)
    # What does not depend on the slot is on its way before the slot is there.
    e, t, n = tl.arange(0, 16), tl.arange(0, BLOCK_T), tl.arange(0, HALF_N)
    row_e, col_t, m = e.to(tl.int64), t.to(tl.int64), n + HALF_N
    real, real_t = e < T, t < T
    if live is not None:
        at_live = live + b * stride_live_b
        real &= tl.load(at_live + row_e * stride_live_t, mask=real, other=0) != 0
        real_t &= tl.load(at_live + col_t * stride_live_t, mask=real_t, other=0) != 0
    last = tl.max(tl.where(real, e, -1), axis=0)
    at_dt = dt + b * stride_dt_b + row_e * stride_dt_t
    raw = tl.load(at_dt + h_0 * stride_dt_h, mask=real, other=0.0)
    decay, bias, skip_h = load_head(A, D, dt_bias, h_0, None, stride_D_h, D_HEAD)
    at_B, at_C = B + b * stride_B_b + g * stride_B_g, C + b * stride_C_b + g * stride_C_g
    B_n, B_m = load_rows(at_B, row_e * stride_B_t, n, real, n < N), load_rows(at_B, row_e * stride_B_t, m, real, m < N)
    C_n, C_m = load_rows(at_C, col_t * stride_C_t, n, real_t, n < N), load_rows(at_C, col_t * stride_C_t, m, real_t, m < N)
    if slot >= 0:
        at_S, at_x = S + slot * stride_S_s, x + b * stride_x_b
        tl.debug_barrier()  # all is asked for before anything waits for a part of it
        B_left, B_right = permuted(unmoved(B_n, slot), 16, HALF_N), permuted(unmoved(B_m, slot), 16, HALF_N)
        C_left = tl.trans(permuted(unmoved(C_n, slot), BLOCK_T, HALF_N))
        C_right = tl.trans(permuted(unmoved(C_m, slot), BLOCK_T, HALF_N))
        diagonal = e[:, None] == t[None, :]
        sees = (e[:, None] <= t[None, :]) & real[:, None] & real_t[None, :]
        if MANY:
            scores = tl.zeros((16, BLOCK_T), tl.float32)
        else:
            scores = tl.where(sees, dot_inputs(B_left, C_left) + dot_inputs(B_right, C_right), 0.0)
        W, from_state = tl.zeros((16, BLOCK_T), tl.float32), tl.zeros((BLOCK_T,), tl.float32)
        weight, scale = tl.zeros((16,), tl.float32), 0.0
        for index in tl.range(first, end, num_stages=STAGES):
            h, p_0 = g * HEADS_PER_GROUP + index // TILES, index % TILES * BLOCK_P
            p = p_0 + tl.arange(0, BLOCK_P)
            in_p, at_head = p < P, at_S + h * stride_S_h
            left = load_half(at_head, p, n, stride_S_p, in_p, N)
            right = load_half(at_head, p, m, stride_S_p, in_p, N)
            x_e = load_rows(at_x + h * stride_x_h, row_e * stride_x_t, p, real, in_p)
            if MANY and index == first:  # behind the first tiles on their way
                scores = tl.where(sees, dot_inputs(B_left, C_left) + dot_inputs(B_right, C_right), 0.0)
            if (p_0 == 0) | (index == first):
                step = step_size(raw, real, bias, low, high, SOFTPLUS, LIMIT)  # (1)
                G_e = tl.cumsum(step * decay, axis=0)  # (2)
                G_t = tl.sum(tl.where(diagonal, G_e[:, None], 0.0), axis=0)
                total = tl.sum(tl.where(e == last, G_e, 0.0), axis=0)
                W = weights(G_e, G_t, step, scores, sees, diagonal, skip_h, D_HEAD)  # (3)
                weight, scale, from_state = tl.where(real, tl.exp(total - G_e) * step, 0.0), tl.exp(total), tl.exp(G_t)
                ahead, more = h + 1, (index // TILES + 1) * TILES < end
                raw = tl.load(at_dt + ahead * stride_dt_h, mask=real & more, other=0.0)
                decay, bias, skip_h = load_head(A, D, dt_bias, ahead, more, stride_D_h, D_HEAD)
            weighted = tl.trans(weight[:, None] * x_e.to(tl.float32))
            state = held(left, HALF_N)
            y_t = dot_left(state, C_left)
            state = dot_onto(scale * state, weighted, B_left)  # (5)
            store_half(at_head, state, p_0, 0, stride_S_p, True, P, N, HALF_N, not MANY)
            state = held(right, HALF_N)
            y_t = dot_onto(y_t, state, C_right)
            state = dot_onto(scale * state, weighted, B_right)  # (5)
            store_half(at_head, state, p_0, HALF_N, stride_S_p, True, P, N, HALF_N, not MANY)
            y_t = from_state[None, :] * y_t + dot_right(tl.trans(x_e), W)  # (4)
            store_outputs(
                y_t, at_x, D, z, y, b, h, p, in_p, real_t, (stride_x_b, stride_x_t, stride_x_h), (stride_D_h, stride_D_p),
                (stride_z_b, stride_z_t, stride_z_h), (stride_y_b, stride_y_t, stride_y_h), T, D_HEAD,
            )  # fmt: skip
