"""The kernel of `ssd_window` for a chain of up to 16 tokens that writes the state it reached: its equations, tile by tile.

A half of a tile is kept in registers (`ssd_state_tile`): split into parts, it is multiplied by C; scaled, it is the
accumulator to which the tokens are added, and is written to memory from there. A program loops over a run of tiles of one
group; the products B C^T are computed once, and the weights of a head once for its tiles. The loads of the next tiles with
their x, and of dt of the next head, are in flight while a tile is multiplied. With many programs, B C^T is computed in the
first round of the loop, after the loads of the first tiles are issued; with few it is computed before. All products are as
accurate as fp32 (`dots`).

The total decay of the window is G of its last real token from the running sum, so that the token's own weight is
exactly its dt; in another order the sum would be rounded differently.
Bound by the bytes of the state, one read and one write.
"""

import triton
import triton.language as tl
import triton.language.extra.cuda  # griddepcontrol

from ..shared.dots import dot_inputs, dot_left, dot_onto, dot_right
from ..shared.load_fence import hold_layout
from ..shared.mma_tile import permuted
from .ring.ssd_state_tile import load_half, store_half, to_mma
from .ring.ssd_tile_outputs import load_head, store_outputs, weights_by_entry
from .ssd_inputs import load_rows, step_size


@triton.jit
def _real_tokens(live, b, e, row_e, t, col_t, stride_live, T: tl.constexpr):
    """Which tokens are real, as rows and as columns of the products."""
    real, real_t = e < T, t < T
    if live is not None:
        at_live = live + b * stride_live.b
        real &= tl.load(at_live + row_e * stride_live.t, mask=real, other=0) != 0
        real_t &= tl.load(at_live + col_t * stride_live.t, mask=real_t, other=0) != 0
    return real, real_t


@triton.jit
def _chain_operands(B_n, B_m, C_n, C_m, slot, BLOCK_T: tl.constexpr, HALF_N: tl.constexpr):
    """Both halves of B as rows and of C as columns, in the order of the state's columns."""
    B_left, B_right = permuted(hold_layout(B_n, slot), 16, HALF_N), permuted(hold_layout(B_m, slot), 16, HALF_N)
    C_left = tl.trans(permuted(hold_layout(C_n, slot), BLOCK_T, HALF_N))
    C_right = tl.trans(permuted(hold_layout(C_m, slot), BLOCK_T, HALF_N))
    return B_left, B_right, C_left, C_right


@triton.jit
def _pair_scores(B_left, B_right, C_left, C_right, sees):
    """B C^T of the tokens; 0 where a token, a column, does not see one, a row."""
    return tl.where(sees, dot_inputs(B_left, C_left) + dot_inputs(B_right, C_right), 0.0)


@triton.jit
def _chain_weights(step, decay, scores, sees, diagonal, real, e, last, skip_h, D_HEAD: tl.constexpr):
    """W of a head (3); what each token adds to the state and the factor of the state (5); the factor of C S^T (4)."""
    G_e = tl.cumsum(step * decay, axis=0)  # (2)
    G_t = tl.sum(tl.where(diagonal, G_e[:, None], 0.0), axis=0)
    total = tl.sum(tl.where(e == last, G_e, 0.0), axis=0)
    W = weights_by_entry(G_e, G_t, step, scores, sees, diagonal, skip_h, D_HEAD)  # (3)
    return W, tl.where(real, tl.exp(total - G_e) * step, 0.0), tl.exp(total), tl.exp(G_t)


@triton.jit(do_not_specialize=["run"])
def ssd_window_chain_kernel(
    S, x, dt, A, B, C, D, z, dt_bias, slots, live, y, stride, stride_live, stride_D, low, high, run,
    T: tl.constexpr, P: tl.constexpr, N: tl.constexpr, HEADS_PER_GROUP: tl.constexpr, D_HEAD: tl.constexpr,
    SOFTPLUS: tl.constexpr, LIMIT: tl.constexpr, BLOCK_T: tl.constexpr, HALF_N: tl.constexpr, BLOCK_P: tl.constexpr,
    TILES: tl.constexpr, STAGES: tl.constexpr, MANY: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
    b, g = tl.program_id(2).to(tl.int64), tl.program_id(1).to(tl.int64)
    first = tl.program_id(0) * run
    end = tl.minimum(first + run, HEADS_PER_GROUP * TILES)
    h_0 = g * HEADS_PER_GROUP + first // TILES
    slot = b if slots is None else tl.load(slots + b).to(tl.int64)
    # Loads that do not depend on the slot are issued before the slot has arrived.
    e, t, n = tl.arange(0, 16), tl.arange(0, BLOCK_T), tl.arange(0, HALF_N)
    row_e, col_t, m = e.to(tl.int64), t.to(tl.int64), n + HALF_N
    real, real_t = _real_tokens(live, b, e, row_e, t, col_t, stride_live, T)
    last = tl.max(tl.where(real, e, -1), axis=0)
    at_dt = dt + b * stride.dt.b + row_e * stride.dt.t
    raw = tl.load(at_dt + h_0 * stride.dt.h, mask=real, other=0.0)
    decay, bias, skip_h = load_head(A, D, dt_bias, h_0, None, stride_D.h, D_HEAD)
    at_B, at_C = B + b * stride.B.b + g * stride.B.g, C + b * stride.C.b + g * stride.C.g
    B_n, B_m = load_rows(at_B, row_e * stride.B.t, n, real, n < N), load_rows(at_B, row_e * stride.B.t, m, real, m < N)
    C_n, C_m = load_rows(at_C, col_t * stride.C.t, n, real_t, n < N), load_rows(at_C, col_t * stride.C.t, m, real_t, m < N)
    if slot >= 0:
        at_S, at_x = S + slot * stride.S.s, x + b * stride.x.b
        tl.debug_barrier()  # all loads are issued before anything waits for one of them
        B_left, B_right, C_left, C_right = _chain_operands(B_n, B_m, C_n, C_m, slot, BLOCK_T, HALF_N)
        diagonal = e[:, None] == t[None, :]
        sees = (e[:, None] <= t[None, :]) & real[:, None] & real_t[None, :]
        scores = tl.zeros((16, BLOCK_T), tl.float32) if MANY else _pair_scores(B_left, B_right, C_left, C_right, sees)
        W, from_state = tl.zeros((16, BLOCK_T), tl.float32), tl.zeros((BLOCK_T,), tl.float32)
        weight, scale = tl.zeros((16,), tl.float32), 0.0
        for index in tl.range(first, end, num_stages=STAGES):
            h, p_0 = g * HEADS_PER_GROUP + index // TILES, index % TILES * BLOCK_P
            p = p_0 + tl.arange(0, BLOCK_P)
            in_p, at_head = p < P, at_S + h * stride.S.h
            left, right = load_half(at_head, p, n, stride.S.p, in_p, N), load_half(at_head, p, m, stride.S.p, in_p, N)
            x_e = load_rows(at_x + h * stride.x.h, row_e * stride.x.t, p, real, in_p)
            if MANY and index == first:  # after the loads of the first tiles are issued
                scores = _pair_scores(B_left, B_right, C_left, C_right, sees)
            if (p_0 == 0) | (index == first):
                step = step_size(raw, real, bias, low, high, SOFTPLUS, LIMIT)  # (1)
                W, weight, scale, from_state = _chain_weights(
                    step, decay, scores, sees, diagonal, real, e, last, skip_h, D_HEAD
                )
                ahead, more = h + 1, (index // TILES + 1) * TILES < end
                raw = tl.load(at_dt + ahead * stride.dt.h, mask=real & more, other=0.0)
                decay, bias, skip_h = load_head(A, D, dt_bias, ahead, more, stride_D.h, D_HEAD)
            weighted = tl.trans(weight[:, None] * x_e.to(tl.float32))
            state = to_mma(left, HALF_N)
            y_t = dot_left(state, C_left)
            state = dot_onto(scale * state, weighted, B_left)  # (5)
            store_half(at_head, state, p_0, 0, stride.S.p, True, P, N, HALF_N, not MANY)
            state = to_mma(right, HALF_N)
            y_t = dot_onto(y_t, state, C_right)
            state = dot_onto(scale * state, weighted, B_right)  # (5)
            store_half(at_head, state, p_0, HALF_N, stride.S.p, True, P, N, HALF_N, not MANY)
            y_t = from_state[None, :] * y_t + dot_right(tl.trans(x_e), W)  # (4)
            store_outputs(y_t, at_x, D, z, y, b, h, p, in_p, real_t, stride.x, stride_D, stride.z, stride.y, T, D_HEAD)
