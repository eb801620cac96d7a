"""The gated delta rule from a checkpoint and a ring: standard decode, by both routes, one launch a token.

With S_0 the checkpoint, j the tokens held since it, t the new one, and G the sum of g from the checkpoint on,

    r(a) = S_0^T (exp(G_t) a) + sum_j (k^_j . exp(G_t - G_j) a) u_j               what a reads of the past    (1)
    u    = beta (v - r(k^)),   o = r(q^) + (k^ . q^) u                            output only                 (2)
    S-   = diag(exp G_t) S_0 + sum_j diag(exp(G_t - G_j)) k^_j u_j^T              state and output            (3)
    u    = beta (v - S-^T k^),   S = S- + k^ u^T,   o = S^T q^                                                (4)
    ring: u, k, g behind the held ones; where that would fill it, S_0' = S instead                            (5)

The token is accepted already, so the L-th of a ring of L goes into the checkpoint with the others, and no entry is written
for it: L is the flush period. The cursors are moved afterwards, once for all layers (`cursors.commit_step`).

A program owns v channels of one value head of one row, with all of k. By (1) (2) it streams the state, some rows of k at a
time: nothing in the sums over S_0 waits for the ring, whose entries arrive meanwhile, and the state needs no registers while
it is on its way. The step that flushes asks for its tile again, a few microseconds after it was read; that the level-2 cache
serves it is expected, not measured. Channel gates, (3) (4), and a k or v that the tile does not divide keep the whole tile in
registers instead. S_0 is written once in L tokens, in its own type; nothing is rounded to less than fp32, but for u as the
ring stores it. The sums of (1) are taken in one order whatever the tile: on an H200 o and u, as bf16, were the same bits for
32, 64 and 128 channels; a flushed state was not. Bound by the bytes of the state and of the ring's live entries, and by
latency where few rows leave most of the device idle: `delta_step_short` is for these.

Source: ReplaySSM, algorithms 2 and 6.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from ssmspec_ref.errors import ParameterError

from .delta_inputs import check_inputs, gates, load_gate_params
from .delta_ring import Ring, entry_bytes, place
from .delta_scan import traffic_bytes as scan_bytes
from .delta_step_short import LONGEST, WIDEST, delta_step_short_kernel
from .delta_stream import fold_stream, load_tile, store_tile
from .delta_window import check_one_type, last, norms
from .launch import FLOATS, INDICES, overlapped, strides

FEW = 4096
"""Heads of rows below which `delta_step_short` takes what it can, as measured on an H200."""


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


def delta_buffered_step(
    S: Tensor,
    ring: Ring,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    output_only: bool = True,
    A: Tensor | None = None,
    dt_bias: Tensor | None = None,
    l2_norm: bool = True,
    scale: float | None = None,
    eps: float = 1e-6,
    slots: Tensor | None = None,
    lengths: Tensor | None = None,
    out: Tensor | None = None,
    block_v: int | None = None,
    rows: int = 16,
    stages: int = 3,
    num_warps: int = 1,
    short: bool | None = None,
) -> Tensor:
    """Decode one token (b, 1, ..) behind the history of S[slots], and hold it; outputs (b, 1, h, v): (1) (2), or (3) (4).

    `lengths` (b) is 0 for a row without a token: its output is 0 and nothing of it changes. The cursors of `ring` are read,
    not moved. A slot may be named by one row only.

    Raises: ShapeMismatch, PrecisionError, ParameterError (a window of more than one token), before anything is written.
    """
    more = ("lengths", lengths, "b", INDICES), ("out", out, "b t h v", FLOATS), *ring.arguments(g.dim() == 4)
    axes, scale = check_inputs(S, q, k, v, g, beta, A, dt_bias, slots, scale, eps, *more)
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
            f"a short ring came with {ring.capacity} entries, {axes['k']} channels k, in {q.dtype}; it takes {LONGEST}, "
            f"{WIDEST}, in bf16, a gate per head, and outputs only"
        )
    o = torch.empty_like(v) if out is None else out
    if fits and (b * h < FEW if short is None else short):
        delta_step_short_kernel[(triton.cdiv(axes["v"], 32), h, b)](
            S, q, k, v, g, beta, A, dt_bias, slots, lengths, ring.u, ring.k, ring.g, ring.origin, ring.held, o,
            *strides(S, 3), *(x.stride(axis) for x in (q, k, v, g, beta, o) for axis in (0, 2)),
            *strides(ring.u, 3), *strides(ring.k, 3), *strides(ring.g, 3), *strides(dt_bias, 1), scale, eps,
            K=axes["k"], V=axes["v"], HEADS_PER_KEY=h // groups, L2_NORM=l2_norm, CAPACITY=ring.capacity,
            BLOCK_L=block_l, BLOCK_K=whole, num_warps=1, **overlapped(S.device),
        )  # fmt: skip
        return o
    may_stream = output_only and g.dim() == 3 and axes["k"] == whole
    block = block_v or tile(axes["v"], b * h, block_l, may_stream)
    streams = may_stream and axes["v"] % block == 0
    _delta_buffered_step_kernel[(triton.cdiv(axes["v"], block), h, b)](
        S, q, k, v, g, beta, A, dt_bias, slots, lengths, ring.u, ring.k, ring.g, ring.origin, ring.held, o,
        *strides(S, 3), *(x.stride(axis) for x in (q, k, v, g, beta, o) for axis in (0, 2)),
        *strides(ring.u, 3), *strides(ring.k, 3), *strides(ring.g, 3), *strides(dt_bias, 1), scale, eps,
        K=axes["k"], V=axes["v"], HEADS_PER_KEY=h // groups, CHANNEL=g.dim() == 4, L2_NORM=l2_norm, OUTPUT_ONLY=output_only,
        SPLIT=q.dtype == torch.bfloat16, DENSE=S.stride(2) == axes["v"], CAPACITY=ring.capacity, BLOCK_L=block_l,
        BLOCK_K=whole, BLOCK_V=block, ROWS=min(rows, whole) if streams else whole, STAGES=stages, num_warps=num_warps,
        **overlapped(S.device),
    )  # fmt: skip
    return o


def tile(v: int, heads: int, block_l: int, streams: bool) -> int:
    """Value channels of a program: as many as leave the device enough of them (`heads`, of all rows) and spill nothing."""
    most = 32 if heads < 256 or block_l > 16 else 64 if heads < 4096 else 128
    return max(16, min(triton.next_power_of_2(v), most if streams else 16))


@triton.jit
def fours(x):
    """The rows of x (rows, v) summed to four: those of one residue modulo 4, which one thread holds."""
    return tl.sum(tl.reshape(x, [x.shape[0] // 4, 4, x.shape[1]]), axis=0)


@triton.jit
def pairs(x):
    """The four rows of x (4, v) summed by pairs: in one order, whether threads or registers hold them."""
    return tl.sum(tl.sum(tl.reshape(x, [2, 2, x.shape[1]]), axis=0), axis=0)


@triton.jit
def replayed(
    state, at_kept, at_u, first, count, weight, l, i, j, in_k, in_v, stride_u_l, stride_k_l, CAPACITY: tl.constexpr,
    CHANNEL: tl.constexpr,
):  # fmt: skip
    """state + sum_j w_j k_j u_j^T over the entries held: a loop, which needs few registers beside the state."""
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
def _delta_buffered_step_kernel(
    S, q, k, v, g, beta, A, dt_bias, slots, lengths, ring_u, ring_k, ring_g, origin, held, o,
    stride_S_s, stride_S_h, stride_S_k, stride_q_b, stride_q_g, stride_k_b, stride_k_g, stride_v_b, stride_v_h,
    stride_g_b, stride_g_h, stride_beta_b, stride_beta_h, stride_o_b, stride_o_h,
    stride_ring_u_s, stride_ring_u_l, stride_ring_u_h, stride_ring_k_s, stride_ring_k_l, stride_ring_k_g,
    stride_ring_g_s, stride_ring_g_l, stride_ring_g_h, stride_bias_h, scale, eps,
    K: tl.constexpr, V: tl.constexpr, HEADS_PER_KEY: tl.constexpr, CHANNEL: tl.constexpr, L2_NORM: tl.constexpr,
    OUTPUT_ONLY: tl.constexpr, SPLIT: tl.constexpr, DENSE: tl.constexpr, CAPACITY: tl.constexpr, BLOCK_L: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr, ROWS: tl.constexpr, STAGES: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
    b = tl.program_id(2).to(tl.int64)
    h = tl.program_id(1).to(tl.int64)
    slot = b
    if slots is not None:
        slot = tl.load(slots + b).to(tl.int64)
    if slot >= 0:
        group = h // HEADS_PER_KEY
        i, l = tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_L)
        j = tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
        in_k, in_v = i < K, j < V
        WHOLE: tl.constexpr = K % BLOCK_K == 0 and V % BLOCK_V == 0
        STREAM: tl.constexpr = ROWS < BLOCK_K
        row_stride = tl.cast(V if DENSE else stride_S_k, tl.int64)
        at_head = S + slot * stride_S_s + h * stride_S_h + j[None, :]
        at_S, inside = at_head + i[:, None].to(tl.int64) * row_stride, in_k[:, None] & in_v[None, :]
        if not STREAM:
            state = load_tile(at_S, inside, WHOLE)
            tl.debug_barrier()  # The state is asked for before the cursors, which the ring waits for, are waited for.
        first = tl.load(origin + slot).to(tl.int32)
        count = tl.load(held + slot).to(tl.int32)
        real = True
        if lengths is not None:
            real = tl.load(lengths + b) != 0
        at_k = k + b * stride_k_b + group * stride_k_g
        at_q = q + b * stride_q_b + group * stride_q_g
        at_u = ring_u + slot * stride_ring_u_s + h * stride_ring_u_h
        at_kept = ring_k + slot * stride_ring_k_s + group * stride_ring_k_g
        at_decay = ring_g + slot * stride_ring_g_s + h * stride_ring_g_h
        past, at = l < count, place(first + l, CAPACITY)
        held_k = past[:, None] & in_k[None, :]
        # Vectors of 4, as in a tile of the state: u is added to what was read of it.
        u_l = tl.load(
            at_u + at[:, None] * stride_ring_u_l + tl.max_contiguous(j, 4)[None, :],
            mask=past[:, None] & in_v[None, :],
            other=0.0,
        )
        k_l = tl.load(at_kept + at[:, None] * stride_ring_k_l + i[None, :], mask=held_k, other=0.0)
        raw = tl.load(at_k + i, mask=in_k & real, other=0.0)
        q_t, k_t = tl.load(at_q + i, mask=in_k & real, other=0.0).to(tl.float32), raw.to(tl.float32)
        v_t = tl.load(v + b * stride_v_b + h * stride_v_h + j, mask=in_v & real, other=0.0).to(tl.float32)
        beta_t = tl.load(beta + b * stride_beta_b + h * stride_beta_h).to(tl.float32)
        decay, bias = load_gate_params(A, dt_bias, h, i, stride_bias_h, in_k, CHANNEL)
        at_g = g + b * stride_g_b + h * stride_g_h
        if CHANNEL:
            g_t = tl.load(at_g + i, mask=in_k & real, other=0.0).to(tl.float32)
            g_l = tl.load(at_decay + at[:, None] * stride_ring_g_l + i[None, :], mask=held_k, other=0.0)
        else:
            g_t = tl.load(at_g).to(tl.float32)
            g_l = tl.load(at_decay + at * stride_ring_g_l, mask=past, other=0.0)
        if STREAM:
            tl.debug_barrier()  # What the ring holds arrives while the state streams.
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
        u_f = u_l.to(tl.float32)
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
                stride_ring_u_l, stride_ring_k_l, CAPACITY, CHANNEL,
            )  # fmt: skip
            read_key = tl.sum(state * k_t[:, None], axis=0)  # (3)
        u = beta_t * (v_t - r_k * read_key)
        if OUTPUT_ONLY:
            o_t = r_q * (read_query + tl.sum(k_t * q_t, axis=0) * (r_k * u))  # (2)
        else:
            state += k_t[:, None] * (r_k * u)[None, :]
            o_t = r_q * tl.sum(state * q_t[:, None], axis=0)  # (4)
        tl.store(o + b * stride_o_b + h * stride_o_h + j, o_t.to(o.dtype.element_ty), mask=in_v)
        at, new = place(first + count, CAPACITY), real & (count + 1 < CAPACITY)
        owns_g = (tl.program_id(0) == 0) & new
        owns_k = owns_g & (h % HEADS_PER_KEY == 0)
        tl.store(at_u + at * stride_ring_u_l + j, u.to(ring_u.dtype.element_ty), mask=in_v & new)
        tl.store(at_kept + at * stride_ring_k_l + i, raw, mask=in_k & owns_k)
        if CHANNEL:
            tl.store(at_decay + at * stride_ring_g_l + i, g_t, mask=in_k & owns_g)
        else:
            tl.store(at_decay + at * stride_ring_g_l, g_t, mask=owns_g)
        if full:
            if STREAM:
                fold_stream(
                    at_head, row_stride, left, at_kept, first, past, stride_ring_k_l, weight[:, None] * u_f, at_k, r_k * u, K,
                    ROWS, CAPACITY, SPLIT, STAGES,
                )  # (5)  # fmt: skip
            else:
                if OUTPUT_ONLY:
                    state = replayed(
                        (left[:, None] if CHANNEL else left) * state, at_kept, at_u, first, count, weight, l, i, j, in_k,
                        in_v, stride_ring_u_l, stride_ring_k_l, CAPACITY, CHANNEL,
                    )  # fmt: skip
                    state += k_t[:, None] * (r_k * u)[None, :]
                store_tile(at_S, state, inside, WHOLE)  # (5)
