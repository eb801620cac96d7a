"""The gated delta rule from a checkpoint and a ring: standard decode, by both routes, one launch a token.

With S_0 the checkpoint, j the tokens held since it, t the new one, and G the sum of g from the checkpoint on,

    r(a) = S_0^T (exp(G_t) a) + sum_j (k^_j . exp(G_t - G_j) a) u_j               what a reads of the past    (1)
    u    = beta (v - r(k^)),   o = r(q^) + (k^ . q^) u                            output only                 (2)
    S-   = diag(exp G_t) S_0 + sum_j diag(exp(G_t - G_j)) k^_j u_j^T              state and output            (3)
    u    = beta (v - S-^T k^),   S = S- + k^ u^T,   o = S^T q^                                                (4)
    ring: u, k, g behind the held ones; where that would fill it, S_0' = S instead                            (5)

The token is accepted already, so the L-th of a ring of L goes into the checkpoint with the others, and no entry is written
for it: L is the flush period. The cursors are moved afterwards, once for all layers (`cursors.commit_step`).

A program owns v channels of one value head of one row, with all of k. S_0 is read once and written once in L tokens, in its
own type; nothing is rounded to less than fp32, but for u as the ring stores it. Bound by the bytes of the state and of the
ring's live entries. Source: ReplaySSM, algorithms 2 and 6.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from ssmspec_ref.errors import ParameterError

from .delta_inputs import check_inputs, gates, load_gate_params, load_token
from .delta_ring import Ring, entry_bytes, load_history, place
from .delta_scan import traffic_bytes as scan_bytes
from .delta_window import carried, check_one_type, norms
from .launch import FLOATS, INDICES, strides


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
    num_warps: int | None = None,
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
    o = torch.empty_like(v) if out is None else out
    block, warps = tile(axes["v"])
    block, warps = block_v or block, num_warps or warps
    _delta_buffered_step_kernel[(triton.cdiv(axes["v"], block), h, b)](
        S, q, k, v, g, beta, A, dt_bias, slots, lengths, ring.u, ring.k, ring.g, ring.origin, ring.held, o,
        *strides(S, 3), *(x.stride(axis) for x in (q, k, v, g, beta, o) for axis in (0, 2)),
        *strides(ring.u, 3), *strides(ring.k, 3), *strides(ring.g, 3), *strides(dt_bias, 1), scale, eps,
        K=axes["k"], V=axes["v"], HEADS_PER_KEY=h // groups, CHANNEL=g.dim() == 4, L2_NORM=l2_norm, OUTPUT_ONLY=output_only,
        SPLIT=q.dtype == torch.bfloat16, CAPACITY=ring.capacity, BLOCK_L=max(16, triton.next_power_of_2(ring.capacity)),
        BLOCK_K=max(16, triton.next_power_of_2(axes["k"])), BLOCK_V=block, num_warps=warps,
    )  # fmt: skip
    return o


def tile(v: int) -> tuple[int, int]:
    """Value channels and warps of a program."""
    return max(16, min(triton.next_power_of_2(v), 32)), 4


@triton.jit
def _delta_buffered_step_kernel(
    S, q, k, v, g, beta, A, dt_bias, slots, lengths, ring_u, ring_k, ring_g, origin, held, o,
    stride_S_s, stride_S_h, stride_S_k, stride_q_b, stride_q_g, stride_k_b, stride_k_g, stride_v_b, stride_v_h,
    stride_g_b, stride_g_h, stride_beta_b, stride_beta_h, stride_o_b, stride_o_h,
    stride_ring_u_s, stride_ring_u_l, stride_ring_u_h, stride_ring_k_s, stride_ring_k_l, stride_ring_k_g,
    stride_ring_g_s, stride_ring_g_l, stride_ring_g_h, stride_bias_h, scale, eps,
    K: tl.constexpr, V: tl.constexpr, HEADS_PER_KEY: tl.constexpr, CHANNEL: tl.constexpr, L2_NORM: tl.constexpr,
    OUTPUT_ONLY: tl.constexpr, SPLIT: tl.constexpr, CAPACITY: tl.constexpr, BLOCK_L: tl.constexpr, BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(2).to(tl.int64)
    h = tl.program_id(1).to(tl.int64)
    slot = b
    if slots is not None:
        slot = tl.load(slots + b).to(tl.int64)
    if slot >= 0:
        group = h // HEADS_PER_KEY
        i = tl.arange(0, BLOCK_K).to(tl.int64)
        j = tl.program_id(0).to(tl.int64) * BLOCK_V + tl.arange(0, BLOCK_V)
        in_k, in_v = i < K, j < V
        inside = in_k[:, None] & in_v[None, :]
        at_S = S + slot * stride_S_s + h * stride_S_h + i[:, None] * stride_S_k + j[None, :]
        state = tl.load(at_S, mask=inside, other=0.0).to(tl.float32)
        first = tl.load(origin + slot).to(tl.int32)
        count = tl.load(held + slot).to(tl.int32)
        at_u = ring_u + slot * stride_ring_u_s + h * stride_ring_u_h
        at_kept = ring_k + slot * stride_ring_k_s + group * stride_ring_k_g
        at_decay = ring_g + slot * stride_ring_g_s + h * stride_ring_g_h
        k_l, u_l, g_l = load_history(
            at_u, at_kept, at_decay, first, count, stride_ring_u_l, stride_ring_k_l, stride_ring_g_l, i, j, in_k, in_v,
            CAPACITY, BLOCK_L, CHANNEL,
        )  # fmt: skip
        at_g = g + b * stride_g_b + h * stride_g_h
        at_length = lengths
        if lengths is not None:
            at_length = lengths + b
        real, q_t, k_t, v_t, g_t, beta_t = load_token(
            q + b * stride_q_b + group * stride_q_g + i, k + b * stride_k_b + group * stride_k_g + i,
            v + b * stride_v_b + h * stride_v_h + j, at_g + i if CHANNEL else at_g,
            beta + b * stride_beta_b + h * stride_beta_h, at_length, 0, 0, 0, 0, 0, 0, 0, in_k, in_v, CHANNEL,
        )  # fmt: skip
        decay, bias = load_gate_params(A, dt_bias, h, i, stride_bias_h, in_k, CHANNEL)
        g_t, beta_t = gates(g_t, beta_t, decay, bias, A)
        g_t, beta_t = tl.where(real, g_t, 0.0), tl.where(real, beta_t, 0.0)
        raw = k_t
        if L2_NORM:
            q_t *= tl.rsqrt(tl.sum(q_t * q_t, axis=0) + eps)
            k_t *= tl.rsqrt(tl.sum(k_t * k_t, axis=0) + eps)
        q_t *= scale
        r_l = norms(k_l, 1.0, eps, L2_NORM)
        G_l = tl.cumsum(g_l, axis=0)
        G = tl.sum(g_l, axis=0) + g_t
        full = (count + 1 == CAPACITY) & real
        if OUTPUT_ONLY:
            if CHANNEL:
                keys = k_l.to(tl.float32) * r_l[:, None] * tl.exp(G[None, :] - G_l)
                to_key, to_query = tl.sum(keys * k_t[None, :], axis=1), tl.sum(keys * q_t[None, :], axis=1)
            else:
                weight, keys = r_l * tl.exp(G - G_l), k_l.to(tl.float32)
                to_key = weight * tl.sum(keys * k_t[None, :], axis=1)
                to_query = weight * tl.sum(keys * q_t[None, :], axis=1)
            u_f = u_l.to(tl.float32)
            left = tl.exp(G)
            read_key = tl.sum(state * (left * k_t)[:, None], axis=0) + tl.sum(to_key[:, None] * u_f, axis=0)  # (1)
            read_query = tl.sum(state * (left * q_t)[:, None], axis=0) + tl.sum(to_query[:, None] * u_f, axis=0)
            u = beta_t * (v_t - read_key)
            o_t = read_query + tl.sum(k_t * q_t, axis=0) * u  # (2)
            if full:
                state = carried(state, k_l, r_l, G_l, G, u_f, CHANNEL, SPLIT) + k_t[:, None] * u[None, :]
                tl.store(at_S, state.to(S.dtype.element_ty), mask=inside)  # (5)
        else:
            state = carried(state, k_l, r_l, G_l, G, u_l.to(tl.float32), CHANNEL, SPLIT)  # (3)
            u = beta_t * (v_t - tl.sum(state * k_t[:, None], axis=0))
            state += k_t[:, None] * u[None, :]
            o_t = tl.sum(state * q_t[:, None], axis=0)  # (4)
            if full:
                tl.store(at_S, state.to(S.dtype.element_ty), mask=inside)  # (5)
        tl.store(o + b * stride_o_b + h * stride_o_h + j, o_t.to(o.dtype.element_ty), mask=in_v)
        owns_g = (tl.program_id(0) == 0) & real & (count + 1 < CAPACITY)
        owns_k = owns_g & (h % HEADS_PER_KEY == 0)
        at = place(first + count, CAPACITY)
        new = real & (count + 1 < CAPACITY)
        tl.store(at_u + at * stride_ring_u_l + j, u.to(ring_u.dtype.element_ty), mask=in_v & new)
        tl.store(at_kept + at * stride_ring_k_l + i, raw.to(ring_k.dtype.element_ty), mask=in_k & owns_k)
        if CHANNEL:
            tl.store(at_decay + at * stride_ring_g_l + i, g_t, mask=in_k & owns_g)
        else:
            tl.store(at_decay + at * stride_ring_g_l, g_t, mask=owns_g)
