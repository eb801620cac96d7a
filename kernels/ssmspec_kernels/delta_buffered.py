"""The gated delta rule from a checkpoint and a ring: verification of a window, with the flush of the rows that are due.

With S_0 the checkpoint, j the tokens held since it and s, t those of the window, G the sum of g from the checkpoint on, and
`scores` and `decayed` of `delta_window`, scores over held tokens and window alike,

    R    = beta (V - decayed(k) S_0 - sum_{j held} scores(k)_tj u_j)                                     (1)
    A_ts = beta_t scores(k)_ts for s < t, else 0,    (I + A) u = R                                       (2)
    o_t  = decayed(q) S_0 + sum_{j held} scores(q)_tj u_j + sum_{s<=t} scores(q)_ts u_s                  (3)
    ring: u, k, g of the window's tokens behind the held ones                                            (4)
    S_0' = diag(exp G_h) S_0 + sum_{j held} diag(exp(G_h - G_j)) k^_j u_j^T    where held + 2T > L       (5)

The outputs of every row come from the old checkpoint; (5) folds committed tokens only, never the window, which may yet be
rejected. What was accepted is told to the cursors afterwards (`cursors.commit_window`), which follow the same rule.

A program owns v channels of one value head of one row, with all of k. S_0 (s, h, k, v) is read once, and written on the rows
that are due, in its own type: with an fp32 checkpoint nothing in between is rounded to less than fp32, but for u as the ring
stores it. Bound by the bytes of the state and of the ring's live entries.

Source: ReplaySSM, algorithm 8; the exact fp32 products, the one path for all rows, and the gate per key channel are ours.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from .cursors import check_window
from .delta_inputs import check_inputs, load_gate_params
from .delta_ring import Ring, append, dot_history, entry_bytes, load_history, place
from .delta_scan import traffic_bytes as scan_bytes
from .delta_window import carried, check_one_type, from_state, load_window, norms, scores, substituted
from .dots import dot_both
from .launch import FLOATS, INDICES, strides


def traffic_bytes(
    held: Sequence[int],
    t: int,
    g: int,
    h: int,
    k: int,
    v: int,
    *,
    capacity: int,
    window: int,
    state: int = 4,
    io: int = 2,
    u: int = 2,
    gate: int = 4,
    channel: bool = False,
) -> int:
    """Bytes that must cross the memory bus for live rows with `held` entries each and t real tokens; cursors are left out.

    Units: bytes; `state`, `io`, `u` and `gate` are the bytes of an element; `gate` is that of g and beta.
    """
    flushes = sum(1 for n in held if n + 2 * window > capacity)
    entries = sum(held) + t * len(held)
    scan = scan_bytes(len(held), t, g, h, k, v, state=state, io=io, gate=gate, write_state=False, channel=channel)
    return scan + flushes * h * k * v * state + entries * entry_bytes(g, h, k, v, io=io, u=u, channel=channel)


def delta_buffered(
    S: Tensor,
    ring: Ring,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    window: int | None = None,
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
    """Read a window behind the history of S[slots], hold it in the ring, flush what is due; outputs (b, t, h, v): (1) to (5).

    `window` is the longest window that comes (T of the rule; None: t). `lengths` (b) are the real tokens of each row, first
    ones first; the outputs behind them are 0, and a row of length 0 is neither flushed nor extended. The cursors of `ring`
    are read, not moved: every layer of a model may share them. A slot may be named by one row only.

    Raises: ShapeMismatch, PrecisionError, ParameterError, RingOverflow (capacity < 2 window), before anything is written.
    """
    more = ("lengths", lengths, "b", INDICES), ("out", out, "b t h v", FLOATS), *ring.arguments(g.dim() == 4)
    axes, scale = check_inputs(S, q, k, v, g, beta, A, dt_bias, slots, scale, eps, *more)
    check_one_type(q, k, v)
    ring.check_type(k)
    b, t, groups, h = (axes[a] for a in "btgh")
    window = t if window is None else window
    check_window(ring.capacity, window, t)
    o = torch.empty_like(v) if out is None else out
    block, warps = tile(axes["v"])
    block, warps = block_v or block, num_warps or warps
    _delta_buffered_kernel[(triton.cdiv(axes["v"], block), h, b)](
        S, q, k, v, g, beta, A, dt_bias, slots, lengths, ring.u, ring.k, ring.g, ring.origin, ring.held, o,
        *strides(S, 3), *strides(q, 3), *strides(k, 3), *strides(v, 3), *strides(g, 3), *strides(beta, 3), *strides(o, 3),
        *strides(ring.u, 3), *strides(ring.k, 3), *strides(ring.g, 3), *strides(dt_bias, 1), scale, eps,
        T=t, K=axes["k"], V=axes["v"], HEADS_PER_KEY=h // groups, CHANNEL=g.dim() == 4, L2_NORM=l2_norm,
        SPLIT=q.dtype == torch.bfloat16, CAPACITY=ring.capacity, WINDOW=window,
        BLOCK_T=max(16, triton.next_power_of_2(t)), BLOCK_L=max(16, triton.next_power_of_2(ring.capacity - window)),
        BLOCK_K=max(16, triton.next_power_of_2(axes["k"])), BLOCK_V=block, num_warps=warps,
    )  # fmt: skip
    return o


def tile(v: int) -> tuple[int, int]:
    """Value channels and warps of a program."""
    return max(16, min(triton.next_power_of_2(v), 32)), 8


@triton.jit
def _delta_buffered_kernel(
    S, q, k, v, g, beta, A, dt_bias, slots, lengths, ring_u, ring_k, ring_g, origin, held, o,
    stride_S_s, stride_S_h, stride_S_k, stride_q_b, stride_q_t, stride_q_g, stride_k_b, stride_k_t, stride_k_g,
    stride_v_b, stride_v_t, stride_v_h, stride_g_b, stride_g_t, stride_g_h, stride_beta_b, stride_beta_t, stride_beta_h,
    stride_o_b, stride_o_t, stride_o_h, stride_ring_u_s, stride_ring_u_l, stride_ring_u_h,
    stride_ring_k_s, stride_ring_k_l, stride_ring_k_g, stride_ring_g_s, stride_ring_g_l, stride_ring_g_h,
    stride_bias_h, scale, eps,
    T: tl.constexpr, K: tl.constexpr, V: tl.constexpr, HEADS_PER_KEY: tl.constexpr, CHANNEL: tl.constexpr,
    L2_NORM: tl.constexpr, SPLIT: tl.constexpr, CAPACITY: tl.constexpr, WINDOW: tl.constexpr, BLOCK_T: tl.constexpr,
    BLOCK_L: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(2).to(tl.int64)
    h = tl.program_id(1).to(tl.int64)
    slot = b
    if slots is not None:
        slot = tl.load(slots + b).to(tl.int64)
    if slot >= 0:
        group = h // HEADS_PER_KEY
        t = tl.arange(0, BLOCK_T).to(tl.int64)
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
        length = T
        if lengths is not None:
            length = tl.minimum(tl.load(lengths + b).to(tl.int32), T)
        real = t < length
        decay, bias = load_gate_params(A, dt_bias, h, i, stride_bias_h, in_k, CHANNEL)
        q_t, k_t, v_t, g_t, beta_t = load_window(
            q + b * stride_q_b + group * stride_q_g, k + b * stride_k_b + group * stride_k_g,
            v + b * stride_v_b + h * stride_v_h, g + b * stride_g_b + h * stride_g_h,
            beta + b * stride_beta_b + h * stride_beta_h, A, decay, bias, real, t,
            stride_q_t, stride_k_t, stride_v_t, stride_g_t, stride_beta_t, i, j, in_k, in_v, CHANNEL,
        )  # fmt: skip
        total = tl.sum(g_l, axis=0)
        G_l = tl.cumsum(g_l, axis=0)
        G = (total[None, :] if CHANNEL else total) + tl.cumsum(g_t, axis=0)
        r_q, r_k, r_l = norms(q_t, scale, eps, L2_NORM), norms(k_t, 1.0, eps, L2_NORM), norms(k_l, 1.0, eps, L2_NORM)
        before, up_to = t[:, None] > t[None, :], t[:, None] >= t[None, :]
        all_past = (t >= 0)[:, None] & (tl.arange(0, BLOCK_L) < count)[None, :]
        to_key = scores(k_t, r_k, G, k_l, r_l, G_l, all_past, CAPACITY - WINDOW, CHANNEL)
        to_query = scores(q_t, r_q, G, k_l, r_l, G_l, all_past, CAPACITY - WINDOW, CHANNEL)
        U = v_t - from_state(k_t, r_k, G, state, CHANNEL, SPLIT) - dot_history(to_key, u_l, SPLIT)
        coupling = beta_t[:, None] * scores(k_t, r_k, G, k_t, r_k, G, before, T, CHANNEL)
        U = substituted(coupling, beta_t[:, None] * U, T)  # (1) (2)
        o_t = from_state(q_t, r_q, G, state, CHANNEL, SPLIT) + dot_history(to_query, u_l, SPLIT)
        o_t += dot_both(scores(q_t, r_q, G, k_t, r_k, G, up_to, T, CHANNEL), U, SPLIT)  # (3)
        at_o = o + b * stride_o_b + t[:, None] * stride_o_t + h * stride_o_h + j[None, :]
        tl.store(at_o, o_t.to(o.dtype.element_ty), mask=(t < T)[:, None] & in_v[None, :])
        owns_g = tl.program_id(0) == 0
        append(
            at_u, at_kept, at_decay, place(first + count + t, CAPACITY), real, U, k_t, g_t, stride_ring_u_l,
            stride_ring_k_l, stride_ring_g_l, i, j, in_k, in_v, owns_g & (h % HEADS_PER_KEY == 0), owns_g, CHANNEL,
        )  # fmt: skip
        if (count + 2 * WINDOW > CAPACITY) & (length > 0):
            state = carried(state, k_l, r_l, G_l, total, u_l.to(tl.float32), CHANNEL, SPLIT)  # (5)
            tl.store(at_S, state.to(S.dtype.element_ty), mask=inside)
