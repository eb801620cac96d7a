"""The gated delta rule from a checkpoint and a ring: standard decode, in one of two ways, one launch per token.

With S_0 the checkpoint, j the tokens held since it, t the new one, and G the sum of g from the checkpoint on,

    r(a) = S_0^T (exp(G_t) a) + sum_j (k^_j . exp(G_t - G_j) a) u_j               the history's product with a    (1)
    u    = beta (v - r(k^)),   o = r(q^) + (k^ . q^) u                            output only                 (2)
    S-   = diag(exp G_t) S_0 + sum_j diag(exp(G_t - G_j)) k^_j u_j^T              state and output            (3)
    u    = beta (v - S-^T k^),   S = S- + k^ u^T,   o = S^T q^                                                (4)
    ring: u, k, g after the held ones; if that would fill it, S_0' = S instead                                 (5)

The token is already accepted, so the L-th of a ring of L goes into the checkpoint with the others, without an entry: L is the
flush period. The cursors are updated afterwards, once for all layers (`cursors.commit_step`).

A program owns v channels of one value head of one row, with all of k. By (1) (2) it streams the state, some rows of k at a
time: nothing in the sums over S_0 waits for the ring, whose entries arrive in the meantime, and the state needs no registers
until it arrives. The step that flushes loads its tile again, a few microseconds after it was read; the level-2 cache should
serve it, which was not measured. With channel gates, (3) (4), or a k or v that the tile does not divide, the whole tile stays
in registers instead. S_0 is written once in L tokens, in its own type; nothing is rounded to less than fp32, except u as the
ring stores it. The sums of (1) have the same order for every tile: on an H200 o and u, as bf16, had the same bits for 32, 64
and 128 channels; a flushed state had not.
Layout: S_0 (s, h, k, v), the ring as in `delta_ring`.
Bound by the bytes of the state and of the ring's live entries, and by latency if
few rows leave most of the device idle; `delta_step_short` is for these.

Source: ReplaySSM, algorithms 2 and 6.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from ssmspec_ref.errors import ParameterError

from ...launch import overlapped, strides
from ...row import Axes, Lengths, Slots, launcher
from ...shared.strides import DeltaStepStrides, KeyStrides, OneGroupStrides, OneHeadStrides
from ...shared.tuning import H200
from .. import delta_inputs as delta
from ..delta_inputs import check_inputs, gates, load_gate_params, slot_of
from ..delta_scan import traffic_bytes as scan_bytes
from ..delta_window import check_one_type, last, norms
from .delta_ring import Ring, entry_bytes, of_head, place
from .delta_step_short import LONGEST, WIDEST, delta_step_short_kernel
from .delta_stream import fold_stream, load_tile, store_tile

FEW = H200["delta_buffered_step"]["short_below"]
"""Heads of rows below which `delta_step_short` is used if it supports the arguments, as measured on an H200."""


def traffic_bytes(
    held: Sequence[int],
    g: int,
    h: int,
    k: int,
    v: int,
    *,
    capacity: int,
    state: int = 4,
    io: int = 2,
    u: int = 2,
    gate: int = 4,
    channel: bool = False,
) -> int:
    """Bytes that must cross the memory bus for live rows with `held` entries each; cursors are left out.

    Units: bytes; `state`, `io`, `u` and `gate` are the bytes of an element; `gate` is that of g and beta.
    """
    flushes = sum(1 for n in held if n + 1 == capacity)
    entries = sum(held) + len(held) - flushes
    scan = scan_bytes(len(held), 1, g, h, k, v, state=state, io=io, gate=gate, write_state=False, channel=channel)
    return scan + flushes * h * k * v * state + entries * entry_bytes(g, h, k, v, io=io, u=u, channel=channel)


@launcher
def delta_buffered_step(
    axes: Axes,
    S: delta.State,
    ring: Ring,
    q: delta.Keys,
    k: delta.Keys,
    v: delta.Values,
    g: delta.Gates,
    beta: delta.Strengths,
    *,
    output_only: bool = True,
    A: delta.Decay | None = None,
    dt_bias: delta.GateBias | None = None,
    l2_norm: bool = True,
    scale: float | None = None,
    eps: float = 1e-6,
    slots: Slots | None = None,
    lengths: Lengths | None = None,
    out: delta.Outputs | None = None,
    block_v: int | None = None,
    rows: int = H200["delta_buffered_step"]["rows"],
    stages: int = H200["delta_buffered_step"]["stages"],
    num_warps: int = H200["delta_buffered_step"]["warps"],
    short: bool | None = None,
) -> Tensor:
    """Decodes one token (b, 1, ..) after the history of S[slots], and stores it; outputs (b, 1, h, v): (1) (2), or (3) (4).

    `lengths` (b) is 0 for a row without a token: its output is 0 and its state is unchanged. The cursors of `ring` are read,
    not updated. Only one row may use a slot.

    Raises: ShapeMismatch, PrecisionError, ParameterError (a window of more than one token), before anything is written.
    """
    scale = check_inputs(axes, A, dt_bias, slots, scale, eps)
    check_one_type(q, k, v)
    ring.check_type(k)
    b, t, groups, h = (axes[a] for a in "btgh")
    if t != 1:
        raise ParameterError(f"the window holds {t} tokens; standard decode takes one, delta_buffered several")
    block_l = max(16, triton.next_power_of_2(ring.capacity))
    whole = max(16, triton.next_power_of_2(axes["k"]))
    fits = output_only and q.dtype == torch.bfloat16 and g.dim() == 3 and block_l <= LONGEST and whole <= WIDEST
    if short and not fits:
        raise ParameterError(
            f"a short ring has {ring.capacity} entries, {axes['k']} channels k, in {q.dtype}; it takes {LONGEST}, "
            f"{WIDEST}, in bf16, a gate per head, and outputs only"
        )
    o = torch.empty_like(v) if out is None else out
    of_q, of_k = (OneGroupStrides(x.stride(0), x.stride(2)) for x in (q, k))
    of_v, of_g, of_beta, of_o = (OneHeadStrides(x.stride(0), x.stride(2)) for x in (v, g, beta, o))
    stride = DeltaStepStrides(KeyStrides(*strides(S, 3)), of_q, of_k, of_v, of_g, of_beta, of_o)
    if fits and (b * h < FEW if short is None else short):
        delta_step_short_kernel[(triton.cdiv(axes["v"], 32), h, b)](
            S, q, k, v, g, beta, A, dt_bias, slots, lengths, *ring.tensors, o,
            stride, ring.strides(), *strides(dt_bias, 1), scale, eps,
            K=axes["k"], V=axes["v"], HEADS_PER_KEY=h // groups, L2_NORM=l2_norm, CAPACITY=ring.capacity,
            BLOCK_L=block_l, BLOCK_K=whole, num_warps=1, **overlapped(S.device),
        )  # fmt: skip
        return o
    may_stream = output_only and g.dim() == 3 and axes["k"] == whole
    block = block_v or tile(axes["v"], b * h, block_l, may_stream)
    streams = may_stream and axes["v"] % block == 0
    _delta_buffered_step_kernel[(triton.cdiv(axes["v"], block), h, b)](
        S, q, k, v, g, beta, A, dt_bias, slots, lengths, *ring.tensors, o,
        stride, ring.strides(), *strides(dt_bias, 1), scale, eps,
        K=axes["k"], V=axes["v"], HEADS_PER_KEY=h // groups, CHANNEL=g.dim() == 4, L2_NORM=l2_norm, OUTPUT_ONLY=output_only,
        SPLIT=q.dtype == torch.bfloat16, DENSE=S.stride(2) == axes["v"], CAPACITY=ring.capacity, BLOCK_L=block_l,
        BLOCK_K=whole, BLOCK_V=block, ROWS=min(rows, whole) if streams else whole, STAGES=stages, num_warps=num_warps,
        **overlapped(S.device),
    )  # fmt: skip
    return o


def tile(v: int, heads: int, block_l: int, streams: bool) -> int:
    """Value channels of a program: as many as leave enough programs for the device (`heads`, of all rows) without spills."""
    row = H200["delta_buffered_step"]
    most = row["block_v" if heads < row["many_heads"] else "many_block_v"]
    if heads < row["few_heads"] or block_l > 16:
        most = row["few_block_v"]
    return max(16, min(triton.next_power_of_2(v), most if streams else row["dense_block_v"]))


@triton.jit
def fours(x):
    """The rows of x (rows, v) summed to four: those of one residue modulo 4, which one thread holds."""
    return tl.sum(tl.reshape(x, [x.shape[0] // 4, 4, x.shape[1]]), axis=0)


@triton.jit
def pairs(x):
    """The four rows of x (4, v) summed pairwise: in the same order, whether threads or registers hold them."""
    return tl.sum(tl.sum(tl.reshape(x, [2, 2, x.shape[1]]), axis=0), axis=0)


@triton.jit
def replayed(
    state, at_kept, at_u, first, count, weight, l, i, j, in_k, in_v, stride_u_l, stride_k_l, CAPACITY: tl.constexpr,
    CHANNEL: tl.constexpr,
):  # fmt: skip
    """state + sum_j w_j k_j u_j^T over the entries held: a loop, which needs few registers in addition to the state."""
    for n in range(count):
        at = place(first + n, CAPACITY)
        k = tl.load(at_kept + at * stride_k_l + i, mask=in_k, other=0.0).to(tl.float32)
        u = tl.load(at_u + at * stride_u_l + j, mask=in_v, other=0.0).to(tl.float32)
        if CHANNEL:
            k *= tl.sum(tl.where((l == n)[:, None], weight, 0.0), axis=0)
        else:
            u *= tl.sum(tl.where(l == n, weight, 0.0), axis=0)
        state += k[:, None] * u[None, :]
    return state


@triton.jit
def _load_token_and_entries(
    at_q, at_k, v, g, beta, A, dt_bias, at_u, at_kept, at_decay, first, count, real, b, h, i, j, l, in_k, in_v, stride,
    stride_ring, stride_bias_h, CAPACITY: tl.constexpr, CHANNEL: tl.constexpr,
):  # fmt: skip
    """Which entries are held; their u, k and g; the raw k, q, k, v, beta and g of the token; the parameters of the gate."""
    past, at = l < count, place(first + l, CAPACITY)
    held_k = past[:, None] & in_k[None, :]
    u_l = tl.load(
        at_u + at[:, None] * stride_ring.u.l + j[None, :],
        mask=past[:, None] & in_v[None, :],
        other=0.0,
    )
    k_l = tl.load(at_kept + at[:, None] * stride_ring.k.l + i[None, :], mask=held_k, other=0.0)
    raw = tl.load(at_k + i, mask=in_k & real, other=0.0)
    q_t, k_t = tl.load(at_q + i, mask=in_k & real, other=0.0).to(tl.float32), raw.to(tl.float32)
    v_t = tl.load(v + b * stride.v.b + h * stride.v.h + j, mask=in_v & real, other=0.0).to(tl.float32)
    beta_t = tl.load(beta + b * stride.beta.b + h * stride.beta.h).to(tl.float32)
    decay, bias = load_gate_params(A, dt_bias, h, i, stride_bias_h, in_k, CHANNEL)
    at_g = g + b * stride.g.b + h * stride.g.h
    if CHANNEL:
        g_t = tl.load(at_g + i, mask=in_k & real, other=0.0).to(tl.float32)
        g_l = tl.load(at_decay + at[:, None] * stride_ring.g.l + i[None, :], mask=held_k, other=0.0)
    else:
        g_t = tl.load(at_g).to(tl.float32)
        g_l = tl.load(at_decay + at * stride_ring.g.l, mask=past, other=0.0)
    return past, u_l, k_l, g_l, raw, q_t, k_t, v_t, beta_t, g_t, decay, bias


@triton.jit
def _read_stream(
    at_head, row_stride, at_q, at_k, real, K: tl.constexpr, BLOCK_V: tl.constexpr, ROWS: tl.constexpr, STAGES: tl.constexpr
):  # fmt: skip
    """The sums over S_0 of (1) for the key and the query, in four partial sums, ROWS of k at a time."""
    sum_k, sum_q = tl.zeros([4, BLOCK_V], tl.float32), tl.zeros([4, BLOCK_V], tl.float32)
    r = tl.arange(0, ROWS)
    k_r, q_r = tl.load(at_k + r, mask=(r < K) & real, other=0.0), tl.load(at_q + r, mask=(r < K) & real, other=0.0)
    at_r = at_head + r[:, None].to(tl.int64) * row_stride
    for _ in tl.range(0, K // ROWS, num_stages=STAGES):
        part = tl.load(at_r).to(tl.float32)
        x_k, x_q = k_r.to(tl.float32), q_r.to(tl.float32)
        r += ROWS
        at_r += ROWS * row_stride
        k_r = tl.load(at_k + r, mask=(r < K) & real, other=0.0)
        q_r = tl.load(at_q + r, mask=(r < K) & real, other=0.0)
        sum_k += fours(part * x_k[:, None])
        sum_q += fours(part * x_q[:, None])
    return sum_k, sum_q


@triton.jit
def _step_weights(
    g_t, beta_t, g_l, k_l, q_t, k_t, decay, bias, A, real, count, scale, eps, CHANNEL: tl.constexpr, L2_NORM: tl.constexpr,
    CAPACITY: tl.constexpr,
):  # fmt: skip
    """The gates, norms of q and k, the decay of the state, whether the ring is full, weights and scores of the entries."""
    g_t, beta_t = gates(g_t, beta_t, decay, bias, A)
    g_t, beta_t = tl.where(real, g_t, 0.0), tl.where(real, beta_t, 0.0)
    r_q, r_k, r_l = scale, 1.0, norms(k_l, 1.0, eps, L2_NORM)
    if L2_NORM:
        r_q *= tl.rsqrt(tl.sum(q_t * q_t, axis=0) + eps)
        r_k *= tl.rsqrt(tl.sum(k_t * k_t, axis=0) + eps)
    keys, G_l = k_l.to(tl.float32), tl.cumsum(g_l, axis=0)
    since = last(G_l, count - 1)
    total = since + g_t
    left = tl.exp(total)
    full = (count + 1 == CAPACITY) & real
    if CHANNEL:
        weight = r_l[:, None] * tl.exp(since[None, :] - G_l + g_t[None, :])
        keys *= weight
        to_key, to_query = tl.sum(keys * k_t[None, :], axis=1), tl.sum(keys * q_t[None, :], axis=1)
    else:
        weight = r_l * tl.exp(since - G_l + g_t)
        to_key, to_query = weight * tl.sum(keys * k_t[None, :], axis=1), weight * tl.sum(keys * q_t[None, :], axis=1)
    return g_t, beta_t, r_q, r_k, left, full, weight, to_key, to_query


@triton.jit
def _append(
    at_u, at_kept, at_decay, first, count, real, u, raw, g_t, h, i, j, in_k, in_v, stride_ring, HEADS_PER_KEY: tl.constexpr,
    CAPACITY: tl.constexpr, CHANNEL: tl.constexpr,
):  # fmt: skip
    """Store the token as the entry after the held ones, if there is room (5)."""
    at, new = place(first + count, CAPACITY), real & (count + 1 < CAPACITY)
    owns_g = (tl.program_id(0) == 0) & new
    owns_k = owns_g & (h % HEADS_PER_KEY == 0)
    tl.store(at_u + at * stride_ring.u.l + j, u.to(at_u.dtype.element_ty), mask=in_v & new)
    tl.store(at_kept + at * stride_ring.k.l + i, raw, mask=in_k & owns_k)
    if CHANNEL:
        tl.store(at_decay + at * stride_ring.g.l + i, g_t, mask=in_k & owns_g)
    else:
        tl.store(at_decay + at * stride_ring.g.l, g_t, mask=owns_g)


@triton.jit
def _outputs(
    state, sum_k, sum_q, u_f, to_key, to_query, left, weight, q_t, k_t, v_t, beta_t, r_q, r_k, at_kept, at_u, first, count,
    l, i, j, in_k, in_v, stride_ring, CAPACITY: tl.constexpr, CHANNEL: tl.constexpr, STREAM: tl.constexpr,
    OUTPUT_ONLY: tl.constexpr,
):  # fmt: skip
    """u and o of the token by (1) (2), or u, o and the state after it by (3) (4)."""
    if STREAM:
        read_key = pairs(left * sum_k + fours(to_key[:, None] * u_f))  # (1)
        read_query = pairs(left * sum_q + fours(to_query[:, None] * u_f))
    elif OUTPUT_ONLY:
        ask = tl.where(in_k, left, 0.0)
        read_key = pairs(fours(state * (ask * k_t)[:, None]) + fours(to_key[:, None] * u_f))
        read_query = pairs(fours(state * (ask * q_t)[:, None]) + fours(to_query[:, None] * u_f))
    else:
        state = replayed(
            (left[:, None] if CHANNEL else left) * state, at_kept, at_u, first, count, weight, l, i, j, in_k, in_v,
            stride_ring.u.l, stride_ring.k.l, CAPACITY, CHANNEL,
        )  # fmt: skip
        read_key = tl.sum(state * k_t[:, None], axis=0)  # (3)
    u = beta_t * (v_t - r_k * read_key)
    if OUTPUT_ONLY:
        o_t = r_q * (read_query + tl.sum(k_t * q_t, axis=0) * (r_k * u))  # (2)
    else:
        state += k_t[:, None] * (r_k * u)[None, :]
        o_t = r_q * tl.sum(state * q_t[:, None], axis=0)  # (4)
    return u, o_t, state


@triton.jit
def _flush(
    state, at_S, inside, at_head, row_stride, at_kept, at_u, at_k, first, count, past, left, weight, u_f, u, k_t, r_k, l, i,
    j, in_k, in_v, stride_ring, K: tl.constexpr, CHANNEL: tl.constexpr, SPLIT: tl.constexpr, OUTPUT_ONLY: tl.constexpr,
    CAPACITY: tl.constexpr, WHOLE: tl.constexpr, STREAM: tl.constexpr, ROWS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Write the checkpoint of a full ring (5)."""
    if STREAM:
        fold_stream(
            at_head, row_stride, left, at_kept, first, past, stride_ring.k.l, weight[:, None] * u_f, at_k, r_k * u, K,
            ROWS, CAPACITY, SPLIT, STAGES,
        )  # (5)  # fmt: skip
    else:
        if OUTPUT_ONLY:
            state = replayed(
                (left[:, None] if CHANNEL else left) * state, at_kept, at_u, first, count, weight, l, i, j, in_k,
                in_v, stride_ring.u.l, stride_ring.k.l, CAPACITY, CHANNEL,
            )  # fmt: skip
            state += k_t[:, None] * (r_k * u)[None, :]
        store_tile(at_S, state, inside, WHOLE)  # (5)


@triton.jit
def _cursors(origin, held, lengths, slot, b):
    """The first entry of the ring, how many are held, and whether there is a token."""
    first = tl.load(origin + slot).to(tl.int32)
    count = tl.load(held + slot).to(tl.int32)
    real = True
    if lengths is not None:
        real = tl.load(lengths + b) != 0
    return first, count, real


@triton.jit
def _delta_buffered_step_kernel(
    S, q, k, v, g, beta, A, dt_bias, slots, lengths, ring_u, ring_k, ring_g, origin, held, o,
    stride, stride_ring, stride_bias_h, scale, eps,
    K: tl.constexpr, V: tl.constexpr, HEADS_PER_KEY: tl.constexpr, CHANNEL: tl.constexpr, L2_NORM: tl.constexpr,
    OUTPUT_ONLY: tl.constexpr, SPLIT: tl.constexpr, DENSE: tl.constexpr, CAPACITY: tl.constexpr, BLOCK_L: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr, ROWS: tl.constexpr, STAGES: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
    b = tl.program_id(2).to(tl.int64)
    h = tl.program_id(1).to(tl.int64)
    slot = slot_of(slots, b)
    if slot >= 0:
        group = h // HEADS_PER_KEY
        i, l = tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_L)
        # Vectors of 4, as in a tile of the state: u is added to what was read of it.
        j = tl.max_contiguous(tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V), 4)
        in_k, in_v = i < K, j < V
        WHOLE: tl.constexpr = K % BLOCK_K == 0 and V % BLOCK_V == 0
        STREAM: tl.constexpr = ROWS < BLOCK_K
        row_stride = tl.cast(V if DENSE else stride.S.k, tl.int64)
        at_head = S + slot * stride.S.s + h * stride.S.h + j[None, :]
        at_S, inside = at_head + i[:, None].to(tl.int64) * row_stride, in_k[:, None] & in_v[None, :]
        state, sum_k, sum_q = 0.0, None, None
        if not STREAM:
            state = load_tile(at_S, inside, WHOLE)
            tl.debug_barrier()  # The load of the state is issued before the wait for the cursors, which the ring depends on.
        first, count, real = _cursors(origin, held, lengths, slot, b)
        at_k = k + b * stride.k.b + group * stride.k.g
        at_q = q + b * stride.q.b + group * stride.q.g
        at_u, at_kept, at_decay = of_head(ring_u, ring_k, ring_g, slot, h, group, stride_ring)
        past, u_l, k_l, g_l, raw, q_t, k_t, v_t, beta_t, g_t, decay, bias = _load_token_and_entries(
            at_q, at_k, v, g, beta, A, dt_bias, at_u, at_kept, at_decay, first, count, real, b, h, i, j, l, in_k, in_v,
            stride, stride_ring, stride_bias_h, CAPACITY, CHANNEL,
        )  # fmt: skip
        if STREAM:
            tl.debug_barrier()  # The ring's entries arrive while the state is streamed.
            sum_k, sum_q = _read_stream(at_head, row_stride, at_q, at_k, real, K, BLOCK_V, ROWS, STAGES)
        g_t, beta_t, r_q, r_k, left, full, weight, to_key, to_query = _step_weights(
            g_t, beta_t, g_l, k_l, q_t, k_t, decay, bias, A, real, count, scale, eps, CHANNEL, L2_NORM, CAPACITY
        )  # fmt: skip
        u_f = u_l.to(tl.float32)
        u, o_t, state = _outputs(
            state, sum_k, sum_q, u_f, to_key, to_query, left, weight, q_t, k_t, v_t, beta_t, r_q, r_k, at_kept, at_u, first,
            count, l, i, j, in_k, in_v, stride_ring, CAPACITY, CHANNEL, STREAM, OUTPUT_ONLY,
        )  # fmt: skip
        tl.store(o + b * stride.o.b + h * stride.o.h + j, o_t.to(o.dtype.element_ty), mask=in_v)
        _append(
            at_u, at_kept, at_decay, first, count, real, u, raw, g_t, h, i, j, in_k, in_v, stride_ring, HEADS_PER_KEY,
            CAPACITY, CHANNEL,
        )  # fmt: skip
        if full:
            _flush(
                state, at_S, inside, at_head, row_stride, at_kept, at_u, at_k, first, count, past, left, weight, u_f, u, k_t,
                r_k, l, i, j, in_k, in_v, stride_ring, K, CHANNEL, SPLIT, OUTPUT_ONLY, CAPACITY, WHOLE, STREAM, ROWS, STAGES,
            )  # fmt: skip
