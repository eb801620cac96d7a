"""The kernel of `ssd_replay_scan` for windows of up to 16 tokens: replay and window by products, tile by tile.

The equations are those of `ssd_replay_scan`, for chains and trees. A half of a tile is kept in registers (`ssd_state_tile`).
Scaled, it is the accumulator of the replay (1); it is written to memory from there if a token was accepted, and is split
into the parts that C multiplies (2). A program loops over a run of tiles of one group: what its heads share is computed once,
and the weights of a head once for its tiles. The loads of the next tiles with their x, and of dt of the next head, are in
flight while a tile is multiplied. Products are as accurate as fp32 (`dots`). The total decay of the replay is exactly G of
the last real token, so that its weight is its dt.

Bound by the bytes of the state, one read and one write.
"""

import triton
import triton.language as tl
import triton.language.extra.cuda  # griddepcontrol

from ...shared.dots import dot_inputs, dot_left, dot_onto, dot_right
from ...shared.mma_tile import permuted
from ..ring.ssd_state_tile import load_half, store_half, to_mma
from ..ring.ssd_tile_outputs import load_head, store_outputs, weights_by_entry
from ..ssd_inputs import load_rows, step_size


@triton.jit(do_not_specialize=["run"])
def ssd_replay_short_kernel(
    S, x, dt, A, B, C, D, z, dt_bias, slots, lengths, ancestors, advanced, path, cache_x, cache_dt, cache_B, half, y,
    stride_S_s, stride_S_h: tl.constexpr, stride_S_p: tl.constexpr, stride_x_b, stride_x_t: tl.constexpr,
    stride_x_h: tl.constexpr, stride_dt_b, stride_dt_t: tl.constexpr, stride_dt_h: tl.constexpr, stride_B_b,
    stride_B_t: tl.constexpr, stride_B_g: tl.constexpr, stride_C_b, stride_C_t: tl.constexpr, stride_C_g: tl.constexpr,
    stride_z_b, stride_z_t: tl.constexpr, stride_z_h: tl.constexpr, stride_y_b, stride_y_t: tl.constexpr,
    stride_y_h: tl.constexpr, stride_anc_b, stride_anc_t, stride_anc_j, stride_path_b, stride_path_k,
    stride_cache_x_s, stride_cache_x_l: tl.constexpr, stride_cache_x_h: tl.constexpr, stride_cache_dt_s,
    stride_cache_dt_l: tl.constexpr, stride_cache_dt_h: tl.constexpr, stride_cache_B_s, stride_cache_B_l: tl.constexpr,
    stride_cache_B_g: tl.constexpr, stride_D_h: tl.constexpr, stride_D_p: tl.constexpr, low, high, run,
    T: tl.constexpr, P: tl.constexpr, N: tl.constexpr, REPLAYED: tl.constexpr, ENTRIES: tl.constexpr,
    HEADS_PER_GROUP: tl.constexpr, D_HEAD: tl.constexpr, SOFTPLUS: tl.constexpr, LIMIT: tl.constexpr,
    BLOCK_T: tl.constexpr, HALF_N: tl.constexpr, BLOCK_P: tl.constexpr, TILES: tl.constexpr, STAGES: tl.constexpr,
    EVICT: tl.constexpr, OVERLAP: tl.constexpr,
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
    if slot >= 0:
        i, t, n = tl.arange(0, 16), tl.arange(0, BLOCK_T), tl.arange(0, HALF_N)
        row_i, col_t, m = i.to(tl.int64), t.to(tl.int64), n + HALF_N
        length = T
        if lengths is not None:
            length = tl.minimum(tl.load(lengths + b).to(tl.int32), T)
        count = tl.where(length > 0, tl.minimum(tl.load(advanced + b).to(tl.int32), REPLAYED), 0)
        last = tl.load(half + slot).to(tl.int64)
        taken, node = i < count, row_i
        if path is not None:
            node = tl.load(path + b * stride_path_b + node * stride_path_k, mask=taken, other=-1).to(tl.int64)
            taken &= (node >= 0) & (node < ENTRIES)
        at_old, at_new = last * ENTRIES + node, (1 - last) * ENTRIES + row_i
        final = tl.max(tl.where(taken, i, -1), axis=0)
        real, real_t = i < length, t < length
        if ancestors is not None:
            at_anc = ancestors + b * stride_anc_b
            real &= tl.load(at_anc + row_i * (stride_anc_t + stride_anc_j), mask=real, other=0) != 0
            real_t &= tl.load(at_anc + col_t * (stride_anc_t + stride_anc_j), mask=real_t, other=0) != 0
            at_pair = at_anc + row_i[:, None] * stride_anc_j + col_t[None, :] * stride_anc_t
            sees = tl.load(at_pair, mask=real[:, None] & real_t[None, :], other=0) != 0
        else:
            sees = (i[:, None] <= t[None, :]) & real[:, None] & real_t[None, :]
        diagonal = i[:, None] == t[None, :]
        old_dt = cache_dt + slot * stride_cache_dt_s
        at_dt, at_past = dt + b * stride_dt_b + row_i * stride_dt_t, old_dt + at_old * stride_cache_dt_l
        raw_past = tl.load(at_past + h_0 * stride_cache_dt_h, mask=taken, other=0.0)
        raw = tl.load(at_dt + h_0 * stride_dt_h, mask=real, other=0.0)
        decay, bias, skip_h = load_head(A, D, dt_bias, h_0, None, stride_D_h, D_HEAD)
        at_S, at_x, old_x = S + slot * stride_S_s, x + b * stride_x_b, cache_x + slot * stride_cache_x_s
        old_B, at_B = cache_B + slot * stride_cache_B_s + g * stride_cache_B_g, B + b * stride_B_b + g * stride_B_g
        at_C = C + b * stride_C_b + g * stride_C_g
        B_left = load_rows(at_B, row_i * stride_B_t, n, real, n < N)
        B_right = load_rows(at_B, row_i * stride_B_t, m, real, m < N)
        if first == 0:
            new_B = old_B + at_new[:, None] * stride_cache_B_l
            tl.store(new_B + n[None, :], B_left, mask=real[:, None] & (n < N)[None, :])  # (3)
            tl.store(new_B + m[None, :], B_right, mask=real[:, None] & (m < N)[None, :])
        C_left = tl.trans(permuted(load_rows(at_C, col_t * stride_C_t, n, real_t, n < N), BLOCK_T, HALF_N))
        C_right = tl.trans(permuted(load_rows(at_C, col_t * stride_C_t, m, real_t, m < N), BLOCK_T, HALF_N))
        scores = dot_inputs(permuted(B_left, 16, HALF_N), C_left) + dot_inputs(permuted(B_right, 16, HALF_N), C_right)
        scores = tl.where(sees, scores, 0.0)
        B_left = permuted(load_rows(old_B, at_old * stride_cache_B_l, n, taken, n < N), 16, HALF_N)
        B_right = permuted(load_rows(old_B, at_old * stride_cache_B_l, m, taken, m < N), 16, HALF_N)
        W, from_state = tl.zeros((16, BLOCK_T), tl.float32), tl.zeros((BLOCK_T,), tl.float32)
        weight, scale = tl.zeros((16,), tl.float32), 0.0
        for index in tl.range(first, end, num_stages=STAGES):
            h, p_0 = g * HEADS_PER_GROUP + index // TILES, index % TILES * BLOCK_P
            p = p_0 + tl.arange(0, BLOCK_P)
            in_p, at_head = p < P, at_S + h * stride_S_h
            left = load_half(at_head, p, n, stride_S_p, in_p, N)
            right = load_half(at_head, p, m, stride_S_p, in_p, N)
            x_k = load_rows(old_x + h * stride_cache_x_h, at_old * stride_cache_x_l, p, taken, in_p)
            x_i = load_rows(at_x + h * stride_x_h, row_i * stride_x_t, p, real, in_p)
            if (p_0 == 0) | (index == first):
                past = step_size(raw_past, taken, bias, low, high, SOFTPLUS, LIMIT)
                step = step_size(raw, real, bias, low, high, SOFTPLUS, LIMIT)
                if p_0 == 0:
                    at_dt_new = old_dt + at_new * stride_cache_dt_l + h * stride_cache_dt_h
                    tl.store(at_dt_new, raw, mask=real)  # (3)
                G_k = tl.cumsum(past * decay, axis=0)
                total = tl.sum(tl.where(i == final, G_k, 0.0), axis=0)
                weight, scale = tl.where(taken, tl.exp(total - G_k) * past, 0.0), tl.exp(total)
                G_t = tl.sum(tl.where(sees, (step * decay)[:, None], 0.0), axis=0)
                G_i = tl.sum(tl.where(diagonal, G_t[None, :], 0.0), axis=1)
                W = weights_by_entry(G_i, G_t, step, scores, sees, diagonal, skip_h, D_HEAD)
                from_state = tl.exp(G_t)
                ahead, more = h + 1, (index // TILES + 1) * TILES < end
                raw_past = tl.load(at_past + ahead * stride_cache_dt_h, mask=taken & more, other=0.0)
                raw = tl.load(at_dt + ahead * stride_dt_h, mask=real & more, other=0.0)
                decay, bias, skip_h = load_head(A, D, dt_bias, ahead, more, stride_D_h, D_HEAD)
            weighted = tl.trans(weight[:, None] * x_k.to(tl.float32))
            state = dot_onto(scale * to_mma(left, HALF_N), weighted, B_left)  # (1)
            store_half(at_head, state, p_0, 0, stride_S_p, count > 0, P, N, HALF_N, EVICT)
            y_t = dot_left(state, C_left)
            state = dot_onto(scale * to_mma(right, HALF_N), weighted, B_right)  # (1)
            store_half(at_head, state, p_0, HALF_N, stride_S_p, count > 0, P, N, HALF_N, EVICT)
            y_t = dot_onto(y_t, state, C_right)
            y_t = from_state[None, :] * y_t + dot_right(tl.trans(x_i), W)  # (2)
            store_outputs(
                y_t, at_x, D, z, y, b, h, p, in_p, real_t, (stride_x_b, stride_x_t, stride_x_h), (stride_D_h, stride_D_p),
                (stride_z_b, stride_z_t, stride_z_h), (stride_y_b, stride_y_t, stride_y_h), T, D_HEAD,
            )  # fmt: skip
            new_x = old_x + h * stride_cache_x_h + at_new[:, None] * stride_cache_x_l + p[None, :]
            tl.store(new_x, x_i, mask=real[:, None] & in_p[None, :])  # (3)
