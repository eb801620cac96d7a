"""The kernel of `delta_buffered_step` for outputs only, bf16 activations, a gate per head and a ring of up to 32 entries.

Its equations, by one warp for each tile of 32 channels v, with all of its k loaded at once: few programs, each with few
dependent steps, for few rows. The token counts as the entry after the held ones, so that with K the keys of all of them

    K K^T    has |k|^2 of each on its diagonal                                                              (1)
    K [k q]  scores of both rows, k^T q and |k|^2 of the token included                                     (2)

are two products of raw bf16. The state's products with k and q are summed in fp32, per lane, then over four lanes. A row that
is due loads its tile again, part by part, a few microseconds after it was read, and writes

    S_0' = exp(G_t) S_0 + K^T diag(w) U        w_j = r_j exp(G_t - G_j), U with the token's u unrounded, in fp32       (3)

Layout: `delta_mma_tile`, with runs of eight k, or as many as there are.

Bound by the dependent loads of slot, cursors, entries and weights within one launch.
"""

import triton
import triton.language as tl

from ...shared.dots import dot_cut_onto, dot_inputs, split3
from ...shared.load_fence import hold_layout
from ...shared.mma_tile import load_operand, operand_rows
from ..delta_inputs import gates, load_gate_params, slot_of
from ..delta_mma_tile import beside, by_lane, from_left, part_rows, to_left, to_right
from .delta_ring import of_head, place

LONGEST, WIDEST = 32, 128
"""Most entries of a ring, most channels k."""


@triton.jit
def _load_entries(
    at_u, at_kept, at_decay, at_k, first, count, l, j, past, real, stride_ring: tl.constexpr, K: tl.constexpr,
    V: tl.constexpr, CAPACITY: tl.constexpr, BLOCK_L: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """k of the entries and of the token after them; g and u of the entries."""
    e, n_e = operand_rows(BLOCK_L, 0, BLOCK_K)
    at_e = tl.where(e < count, at_kept + place(first + e, CAPACITY) * stride_ring.k.l, at_k)
    seen = (e < count) | ((e == count) & real)
    keys = load_operand(at_e, n_e, seen[:, None] & ((n_e < K) | (K == BLOCK_K)), BLOCK_L, BLOCK_K)
    g_l = tl.load(at_decay + place(first + l, CAPACITY) * stride_ring.g.l, mask=past, other=0.0)
    l_u, quad = beside(BLOCK_L)
    in_u = (l_u < count)[:, None] & ((j + quad < V) | (V % 32 == 0))
    u_l = tl.load(at_u + (place(first + l_u, CAPACITY) * stride_ring.u.l)[:, None] + (j + quad), mask=in_u, other=0.0)
    return keys, g_l, u_l


@triton.jit
def _entry_weights(
    raw_g, raw_beta, decay, bias, A, real, g_l, l, count, past, new, q_t, keys, both, scale, eps, L2_NORM: tl.constexpr
):  # fmt: skip
    """g and beta, what is left of the state, the norms of q and k, the weights of entries, and scores (2)."""
    g_t, beta_t = gates(raw_g.to(tl.float32), raw_beta.to(tl.float32), decay, bias, A)
    g_t, beta_t = tl.where(real, g_t, 0.0), tl.where(real, beta_t, 0.0)
    G_l = tl.cumsum(g_l, axis=0)
    since = tl.sum(tl.where(l == count - 1, G_l, 0.0), axis=0)  # taken from the running sum
    left = tl.exp(since + g_t)
    r_q, r_k, r_l = scale, 1.0, 1.0
    if L2_NORM:
        q_f = q_t.to(tl.float32)
        r_q *= tl.rsqrt(tl.sum(q_f * q_f, axis=0) + eps)
        squares = tl.where(l[:, None] == l[None, :], dot_inputs(keys, tl.trans(keys)), 0.0)
        r_l = tl.rsqrt(tl.sum(squares, axis=1) + eps)  # (1)
        r_k = tl.sum(tl.where(new, r_l, 0.0), axis=0)
    weight = tl.where(past, r_l * tl.exp(since - G_l + g_t), tl.where(new, r_k, 0.0))
    scores = weight[:, None] * dot_inputs(keys, tl.trans(both))  # (2)
    column = tl.arange(0, 8)[None, :]
    # The token's own contribution needs no entry of u, except for `own`.
    to_key = tl.sum(tl.where(column == 0, scores, 0.0), axis=1)
    to_query = tl.sum(tl.where(column == 1, scores, 0.0), axis=1)
    own = tl.sum(tl.where(new, to_query, 0.0), axis=0)
    return g_t, beta_t, left, r_q, r_k, weight, to_key, to_query, own


@triton.jit
def _row(slots, lengths, b):
    """The slot of a row, and whether it has a token."""
    slot, real = slot_of(slots, b), True
    if lengths is not None:
        real = tl.load(lengths + b) != 0
    return slot, real


@triton.jit
def _issue_token(
    at_k, at_q, beta, g, A, dt_bias, b, h, i, in_k, real, stride: tl.constexpr, stride_bias_h: tl.constexpr, K: tl.constexpr,
    BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Issue the loads of k and q of the token, of both as an operand, and of its gates."""
    k_t, q_t = tl.load(at_k + i, mask=in_k & real, other=0.0), tl.load(at_q + i, mask=in_k & real, other=0.0)
    which, n = operand_rows(8, 0, BLOCK_K)
    of_both = (which < 2)[:, None] & real & ((n < K) | (K == BLOCK_K))
    both = load_operand(tl.where(which == 0, at_k, at_q), n, of_both, 8, BLOCK_K)
    raw_beta = tl.load(beta + b * stride.beta.b + h * stride.beta.h)
    raw_g = tl.load(g + b * stride.g.b + h * stride.g.h)
    decay, bias = load_gate_params(A, dt_bias, h, i, stride_bias_h, in_k, False)
    return k_t, q_t, both, raw_beta, raw_g, decay, bias


@triton.jit
def delta_step_short_kernel(
    S, q, k, v, g, beta, A, dt_bias, slots, lengths, ring_u, ring_k, ring_g, origin, held, o, stride: tl.constexpr,
    stride_ring: tl.constexpr, stride_bias_h: tl.constexpr, scale, eps, K: tl.constexpr, V: tl.constexpr,
    HEADS_PER_KEY: tl.constexpr, L2_NORM: tl.constexpr, CAPACITY: tl.constexpr, BLOCK_L: tl.constexpr,
    BLOCK_K: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    b, h = tl.program_id(2).to(tl.int64), tl.program_id(1).to(tl.int64)
    # Loads that do not depend on the slot are issued before the slot has arrived.
    slot, real = _row(slots, lengths, b)
    group = h // HEADS_PER_KEY
    at_k, at_q = k + b * stride.k.b + group * stride.k.g, q + b * stride.q.b + group * stride.q.g
    i, l, j = tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_L), tl.program_id(0) * 32
    in_k = (i < K) | (K == BLOCK_K)
    k_t, q_t, both, raw_beta, raw_g, decay, bias = _issue_token(
        at_k, at_q, beta, g, A, dt_bias, b, h, i, in_k, real, stride, stride_bias_h, K, BLOCK_K
    )  # fmt: skip
    tl.debug_barrier()  # otherwise these loads would be issued after that of the slot
    if slot >= 0:
        at_S = S + slot * stride.S.s + h * stride.S.h
        first, count = tl.load(origin + slot), tl.load(held + slot)
        state = load_tile(at_S, j, stride.S.k, K, V, BLOCK_K)
        vq = tl.arange(0, 8)[:, None] * 4 + tl.arange(0, 4)[None, :]
        in_v = (j + vq < V) | (V % 32 == 0)
        v_t = tl.load(v + b * stride.v.b + h * stride.v.h + j + vq, mask=in_v & real, other=0.0)
        x_k, x_q = load_token(at_k, real, K, BLOCK_K), load_token(at_q, real, K, BLOCK_K)
        tl.debug_barrier()  # otherwise the tile would be loaded after the ring
        first, count = first.to(tl.int32), count.to(tl.int32)
        past, new = l < count, l == count
        at_u, at_kept, at_decay = of_head(ring_u, ring_k, ring_g, slot, h, group, stride_ring)
        keys, g_l, u_l = _load_entries(
            at_u, at_kept, at_decay, at_k, first, count, l, j, past, real, stride_ring, K, V, CAPACITY, BLOCK_L, BLOCK_K
        )  # fmt: skip
        tl.debug_barrier()  # all loads are issued before anything waits for one of them
        g_t, beta_t, left, r_q, r_k, weight, to_key, to_query, own = _entry_weights(
            raw_g, raw_beta, decay, bias, A, real, g_l, l, count, past, new, q_t, keys, both, scale, eps, L2_NORM
        )  # fmt: skip
        x_k, x_q = of_token(x_k, slot), of_token(x_q, slot)
        at_new = place(first + count, CAPACITY)
        at_o = o + b * stride.o.b + h * stride.o.h
        full = count + 1 == CAPACITY
        if (full == 0) & real & (tl.program_id(0) == 0):
            tl.store(at_decay + at_new * stride_ring.g.l, g_t)
            if h % HEADS_PER_KEY == 0:
                tl.store(at_kept + at_new * stride_ring.k.l + i, k_t, mask=in_k)
        if full & real:
            walk(
                state, at_S, at_u, at_kept, at_k, v_t, u_l, at_o, origin + slot, first, count, x_k, x_q, to_key, to_query,
                own, weight, left, beta_t, r_k, r_q, real, j, stride.S.k, stride_ring.k.l, K, V, CAPACITY,
                BLOCK_L, BLOCK_K, True,
            )  # fmt: skip
        else:
            walk(
                state, at_S, at_u + at_new * stride_ring.u.l, at_kept, at_k, v_t, u_l, at_o, origin + slot, first, count,
                x_k, x_q, to_key, to_query, own, weight, left, beta_t, r_k, r_q, real, j, stride.S.k, stride_ring.k.l,
                K, V, CAPACITY, BLOCK_L, BLOCK_K, False,
            )  # fmt: skip


@triton.jit
def walk(
    state, S, new_u, ring_k, k, v_t, u_l, o, origin, first, count, x_k, x_q, to_key, to_query, own, weight, left, beta, r_k,
    r_q, real, j, stride_S_k: tl.constexpr, stride_k: tl.constexpr, K: tl.constexpr,
    V: tl.constexpr, CAPACITY: tl.constexpr, BLOCK_L: tl.constexpr, BLOCK_K: tl.constexpr, DUE: tl.constexpr,
):  # fmt: skip
    """Processes the tile of a program; the pointers are those of its head. If DUE, (3) instead of the entry of u at
    `new_u`."""
    WHOLE: tl.constexpr = V % 32 == 0
    parts: tl.constexpr = len(x_k)
    l, _ = beside(BLOCK_L)
    vq = tl.arange(0, 8)[:, None] * 4 + tl.arange(0, 4)[None, :]
    key_l = of_entries(to_key)
    query_l = of_entries(to_query)
    in_v = (j + vq < V) | WHOLE
    u_l, v_t = by_lane(u_l.to(tl.float32)), v_t.to(tl.float32)
    sum_k, sum_q = tl.sum(tl.sum(key_l * u_l, axis=0), axis=0), tl.sum(tl.sum(query_l * u_l, axis=0), axis=0)
    for part in tl.static_range(parts):
        x = by_lane(state[part])
        sum_k += left * tl.sum(tl.sum(x * x_k[part].to(tl.float32), axis=0), axis=0)
        sum_q += left * tl.sum(tl.sum(x * x_q[part].to(tl.float32), axis=0), axis=0)
    u = beta * (v_t - r_k * tl.sum(sum_k, axis=1))
    o_t = r_q * (tl.sum(sum_q, axis=1) + own * u)
    tl.store(o + j + vq, o_t.to(o.dtype.element_ty), mask=in_v)
    if DUE:
        is_new = tl.reshape(l == count, (BLOCK_L // 8, 2, 8, 4))[:, :, :, :, None]
        U = of_entries(weight) * tl.where(is_new, u[None, None, :, None, :], u_l)
        hi, mid, lo = split3(to_left(U))
        for part in tl.static_range(parts):
            again = tl.load(origin).to(tl.int32)  # otherwise the pointers of the keys stay in registers over parts
            keys = load_keys(ring_k, k, again, count, part, stride_k, K, CAPACITY, BLOCK_L, BLOCK_K)
            before = load_part(S, j, part, stride_S_k, K, V, BLOCK_K)
            following = from_left(dot_cut_onto(left * to_left(by_lane(before)), hi, mid, lo, keys))
            i, cols = part_rows(part, min(8, BLOCK_K // 8))
            at_part = S + (i.to(tl.int64) * stride_S_k)[:, None] + (j + cols)
            inside = ((i < K) | (K == BLOCK_K))[:, None] & ((j + cols < V) | WHOLE)
            tl.store(at_part, following.to(S.dtype.element_ty), mask=inside)  # (3)
    else:
        tl.store(new_u + j + vq, u.to(new_u.dtype.element_ty), mask=in_v & real)


@triton.jit
def of_entries(x):
    """x (entries) for multiplication with four channels v of a lane: (8 of them, i, 1, c, 1)."""
    return tl.permute(tl.reshape(x, (x.shape[0] // 8, 4, 2)), (0, 2, 1))[:, :, None, :, None]


@triton.jit
def load_part(S, j, part: tl.constexpr, stride: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BLOCK_K: tl.constexpr):
    """A part of the tile from channel j on, in memory order; zeros outside."""
    i, cols = part_rows(part, min(8, BLOCK_K // 8))
    inside = ((i < K) | (K == BLOCK_K))[:, None] & ((j + cols < V) | (V % 32 == 0))
    return tl.load(S + (i.to(tl.int64) * stride)[:, None] + (j + cols), mask=inside, other=0.0).to(tl.float32)


@triton.jit
def load_tile(S, j, stride: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BLOCK_K: tl.constexpr):
    """All parts of a tile."""
    parts = (load_part(S, j, 0, stride, K, V, BLOCK_K),)
    if BLOCK_K > 64:
        parts += (load_part(S, j, 1, stride, K, V, BLOCK_K),)  # type: ignore[assignment]
    return parts


@triton.jit
def load_token(x, real, K: tl.constexpr, BLOCK_K: tl.constexpr):
    """A token's k or q, part by part."""
    parts = (load_runs(x, 0, real, K, BLOCK_K),)
    if BLOCK_K > 64:
        parts += (load_runs(x, 1, real, K, BLOCK_K),)  # type: ignore[assignment]
    return parts


@triton.jit
def load_runs(x, part: tl.constexpr, real, K: tl.constexpr, BLOCK_K: tl.constexpr):
    """The runs of a part, two for each c of a lane."""
    RUN: tl.constexpr = min(8, BLOCK_K // 8)
    i = part * 8 * RUN + tl.arange(0, 4)[:, None] * (2 * RUN) + tl.arange(0, 2 * RUN)[None, :]
    return tl.load(x + i, mask=((i < K) | (K == BLOCK_K)) & real, other=0.0)


@triton.jit
def of_token(parts, slot):
    """The runs for multiplication with four channels v of a lane."""
    runs = (of_runs(hold_layout(parts[0], slot)),)
    if len(parts) > 1:
        runs += (of_runs(hold_layout(parts[1], slot)),)  # type: ignore[assignment]
    return runs


@triton.jit
def of_runs(runs):
    """(4, 2 RUN) as (m, i, 1, c, 1)."""
    return tl.permute(tl.reshape(runs, (4, 2, runs.shape[1] // 2)), (2, 1, 0))[:, :, None, :, None]


@triton.jit
def load_keys(
    ring, k, first, count, part: tl.constexpr, stride: tl.constexpr, K: tl.constexpr, CAPACITY: tl.constexpr,
    BLOCK_L: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """(entry, k of a part): the held keys followed by the token's, as a right operand; zeros elsewhere."""
    RUN: tl.constexpr = min(8, BLOCK_K // 8)
    l, i = beside(BLOCK_L, RUN, 0, part * 8 * RUN)
    start = tl.where(l < count, ring + place(first + l, CAPACITY) * stride, k)
    return to_right(tl.load(start[:, None] + i, mask=(l <= count)[:, None] & ((i < K) | (K == BLOCK_K)), other=0.0))
