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
from ...shared.tree_nodes import real_nodes
from ..ring.ssd_state_tile import load_half, store_half, to_mma
from ..ring.ssd_tile_outputs import load_head, store_outputs, weights_by_entry
from ..ssd_inputs import load_rows, step_size
from .ssd_replay_chain import accepted_nodes


@triton.jit
def _accepted_entries(
    advanced, half, path, b, slot, length, i, row_i, stride_path, REPLAYED: tl.constexpr, ENTRIES: tl.constexpr
):
    """How many tokens are replayed, which of the rows they are, their entries, those of the window, and the last of them."""
    count = tl.where(length > 0, tl.minimum(tl.load(advanced + b).to(tl.int32), REPLAYED), 0)
    last = tl.load(half + slot).to(tl.int64)
    node, taken = accepted_nodes(path, b, i, count, stride_path, ENTRIES)
    at_old, at_new = last * ENTRIES + node, (1 - last) * ENTRIES + row_i
    return count, taken, at_old, at_new, tl.max(tl.where(taken, i, -1), axis=0)


@triton.jit
def _step_pointers(dt, cache_dt, b, slot, row_i, at_old, stride, stride_cache):
    """Of a slot's dt in the cache, of the window's dt, and of dt of the accepted entries."""
    old_dt = cache_dt + slot * stride_cache.s
    return old_dt, dt + b * stride.b + row_i * stride.t, old_dt + at_old * stride_cache.l


@triton.jit
def _cache_x(cache_x, x_i, h, at_new, p, real, in_p, stride):
    """Stores x of a tile of the window's tokens in their entries (3)."""
    new_x = cache_x + h * stride.h + at_new[:, None] * stride.l + p[None, :]
    tl.store(new_x, x_i, mask=real[:, None] & in_p[None, :])  # (3)


@triton.jit
def _real_pairs(ancestors, b, i, t, row_i, col_t, length, stride):
    """Which tokens are real, as rows and as columns; which of the rows each column sees, and which is itself."""
    real, real_t = i < length, t < length
    if ancestors is not None:
        at_anc = ancestors + b * stride.b
        real &= real_nodes(at_anc, row_i, real, stride)
        real_t &= real_nodes(at_anc, col_t, real_t, stride)
        at_pair = at_anc + row_i[:, None] * stride.j + col_t[None, :] * stride.t
        sees = tl.load(at_pair, mask=real[:, None] & real_t[None, :], other=0) != 0
    else:
        sees = (i[:, None] <= t[None, :]) & real[:, None] & real_t[None, :]
    return real, real_t, sees, i[:, None] == t[None, :]


@triton.jit
def _group_operands(
    B, C, cache_B, slot, b, g, first, n, m, row_i, col_t, at_old, at_new, taken, real, real_t, sees, stride, stride_cache,
    N: tl.constexpr, HALF_N: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    """Both halves of C, the scores of the window, and both halves of B of the replayed tokens; B of the window is cached."""
    old_B, at_B = cache_B + slot * stride_cache.s + g * stride_cache.g, B + b * stride.B.b + g * stride.B.g
    at_C = C + b * stride.C.b + g * stride.C.g
    B_left = load_rows(at_B, row_i * stride.B.t, n, real, n < N)
    B_right = load_rows(at_B, row_i * stride.B.t, m, real, m < N)
    if first == 0:
        new_B = old_B + at_new[:, None] * stride_cache.l
        tl.store(new_B + n[None, :], B_left, mask=real[:, None] & (n < N)[None, :])  # (3)
        tl.store(new_B + m[None, :], B_right, mask=real[:, None] & (m < N)[None, :])
    C_left = tl.trans(permuted(load_rows(at_C, col_t * stride.C.t, n, real_t, n < N), BLOCK_T, HALF_N))
    C_right = tl.trans(permuted(load_rows(at_C, col_t * stride.C.t, m, real_t, m < N), BLOCK_T, HALF_N))
    scores = dot_inputs(permuted(B_left, 16, HALF_N), C_left) + dot_inputs(permuted(B_right, 16, HALF_N), C_right)
    scores = tl.where(sees, scores, 0.0)
    B_left = permuted(load_rows(old_B, at_old * stride_cache.l, n, taken, n < N), 16, HALF_N)
    B_right = permuted(load_rows(old_B, at_old * stride_cache.l, m, taken, m < N), 16, HALF_N)
    return C_left, C_right, scores, B_left, B_right


@triton.jit
def _head_sums(past, step, decay, i, final, taken, scores, sees, own, skip_h, D_HEAD: tl.constexpr):
    """The weights of a head's replayed tokens and of its state (1), W, and the factor of C S'^T (2)."""
    G_k = tl.cumsum(past * decay, axis=0)
    total = tl.sum(tl.where(i == final, G_k, 0.0), axis=0)
    weight, scale = tl.where(taken, tl.exp(total - G_k) * past, 0.0), tl.exp(total)
    G_t = tl.sum(tl.where(sees, (step * decay)[:, None], 0.0), axis=0)
    G_i = tl.sum(tl.where(own, G_t[None, :], 0.0), axis=1)
    return weight, scale, weights_by_entry(G_i, G_t, step, scores, sees, own, skip_h, D_HEAD), tl.exp(G_t)


@triton.jit(do_not_specialize=["run"])
def ssd_replay_short_kernel(
    S, x, dt, A, B, C, D, z, dt_bias, slots, lengths, ancestors, advanced, path, cache, y, stride, stride_anc, stride_path,
    stride_cache, stride_D, low, high, run, T: tl.constexpr, P: tl.constexpr, N: tl.constexpr, REPLAYED: tl.constexpr,
    ENTRIES: tl.constexpr, HEADS_PER_GROUP: tl.constexpr, D_HEAD: tl.constexpr, SOFTPLUS: tl.constexpr, LIMIT: tl.constexpr,
    BLOCK_T: tl.constexpr, HALF_N: tl.constexpr, BLOCK_P: tl.constexpr, TILES: tl.constexpr, STAGES: tl.constexpr,
    EVICT: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
    b, g = tl.program_id(2).to(tl.int64), tl.program_id(1).to(tl.int64)
    first = tl.program_id(0) * run
    end = tl.minimum(first + run, HEADS_PER_GROUP * TILES)
    h_0 = g * HEADS_PER_GROUP + first // TILES
    slot = b if slots is None else tl.load(slots + b).to(tl.int64)
    if slot >= 0:
        i, t, n = tl.arange(0, 16), tl.arange(0, BLOCK_T), tl.arange(0, HALF_N)
        row_i, col_t, m = i.to(tl.int64), t.to(tl.int64), n + HALF_N
        length = T if lengths is None else tl.minimum(tl.load(lengths + b).to(tl.int32), T)
        count, taken, at_old, at_new, final = _accepted_entries(
            advanced, cache.half, path, b, slot, length, i, row_i, stride_path, REPLAYED, ENTRIES
        )
        real, real_t, sees, own = _real_pairs(ancestors, b, i, t, row_i, col_t, length, stride_anc)
        old_dt, at_dt, at_past = _step_pointers(dt, cache.dt, b, slot, row_i, at_old, stride.dt, stride_cache.dt)
        raw_past = tl.load(at_past + h_0 * stride_cache.dt.h, mask=taken, other=0.0)
        raw = tl.load(at_dt + h_0 * stride.dt.h, mask=real, other=0.0)
        decay, bias, skip_h = load_head(A, D, dt_bias, h_0, None, stride_D.h, D_HEAD)
        at_S, at_x, old_x = S + slot * stride.S.s, x + b * stride.x.b, cache.x + slot * stride_cache.x.s
        C_left, C_right, scores, B_left, B_right = _group_operands(
            B, C, cache.B, slot, b, g, first, n, m, row_i, col_t, at_old, at_new, taken, real, real_t, sees, stride,
            stride_cache.B, N, HALF_N, BLOCK_T,
        )  # fmt: skip
        W, growth = tl.zeros((16, BLOCK_T), tl.float32), tl.zeros((BLOCK_T,), tl.float32)
        weight, scale = tl.zeros((16,), tl.float32), 0.0
        for index in tl.range(first, end, num_stages=STAGES):
            h, p_0 = g * HEADS_PER_GROUP + index // TILES, index % TILES * BLOCK_P
            p = p_0 + tl.arange(0, BLOCK_P)
            in_p, at_head = p < P, at_S + h * stride.S.h
            left, right = load_half(at_head, p, n, stride.S.p, in_p, N), load_half(at_head, p, m, stride.S.p, in_p, N)
            x_k = load_rows(old_x + h * stride_cache.x.h, at_old * stride_cache.x.l, p, taken, in_p)
            x_i = load_rows(at_x + h * stride.x.h, row_i * stride.x.t, p, real, in_p)
            if (p_0 == 0) | (index == first):
                past = step_size(raw_past, taken, bias, low, high, SOFTPLUS, LIMIT)
                step = step_size(raw, real, bias, low, high, SOFTPLUS, LIMIT)
                if p_0 == 0:
                    tl.store(old_dt + at_new * stride_cache.dt.l + h * stride_cache.dt.h, raw, mask=real)  # (3)
                weight, scale, W, growth = _head_sums(past, step, decay, i, final, taken, scores, sees, own, skip_h, D_HEAD)
                ahead, more = h + 1, (index // TILES + 1) * TILES < end
                raw_past = tl.load(at_past + ahead * stride_cache.dt.h, mask=taken & more, other=0.0)
                raw = tl.load(at_dt + ahead * stride.dt.h, mask=real & more, other=0.0)
                decay, bias, skip_h = load_head(A, D, dt_bias, ahead, more, stride_D.h, D_HEAD)
            weighted = tl.trans(weight[:, None] * x_k.to(tl.float32))
            state = dot_onto(scale * to_mma(left, HALF_N), weighted, B_left)  # (1)
            store_half(at_head, state, p_0, 0, stride.S.p, count > 0, P, N, HALF_N, EVICT)
            y_t = dot_left(state, C_left)
            state = dot_onto(scale * to_mma(right, HALF_N), weighted, B_right)  # (1)
            store_half(at_head, state, p_0, HALF_N, stride.S.p, count > 0, P, N, HALF_N, EVICT)
            y_t = dot_onto(y_t, state, C_right)
            y_t = growth[None, :] * y_t + dot_right(tl.trans(x_i), W)  # (2)
            store_outputs(y_t, at_x, D, z, y, b, h, p, in_p, real_t, stride.x, stride_D, stride.z, stride.y, T, D_HEAD)
            _cache_x(old_x, x_i, h, at_new, p, real, in_p, stride_cache.x)
