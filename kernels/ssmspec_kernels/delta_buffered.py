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

A program owns v channels of one value head of one row, with all of k. Queries and keys of the window are the rows of one
matrix, so that the state is cut into parts for one product instead of two. The state streams, some rows of k at a time, and
is multiplied as it comes: nothing in the product waits for the ring, whose entries arrive meanwhile. (1) (2) (3) are one
system, o and u the unknowns; its inverse, T steps on a matrix of twice the window, does not wait for the state either, and
is applied once. A flush asks for the tile again, a few microseconds after it was read; that the level-2 cache serves it is
expected, not measured. Channel gates, and a k or v that the tile does not divide, keep the whole tile in registers instead.
Short windows in bf16 with k = 128 have a kernel of their own, `delta_buffered_short`.

S_0 (s, h, k, v) is written on the rows that are due, in its own type: with an fp32 checkpoint nothing in between is rounded
to less than fp32, but for u as the ring stores it. Bound by the bytes of the state and of the ring's live entries.

Source: ReplaySSM, algorithm 8; the exact fp32 products, the one path for all rows, and the gate per key channel are ours.
"""

from collections.abc import Sequence
from math import prod

import torch
import triton
import triton.language as tl
from torch import Tensor

from ssmspec_ref.errors import ParameterError

from .cursors import check_window
from .delta_buffered_short import LONGEST, MOST_TOKENS, WIDTH, delta_buffered_short_kernel
from .delta_inputs import check_inputs, gates, load_gate_params
from .delta_ring import Ring, append, dot_history, entry_bytes, load_history, place
from .delta_scan import traffic_bytes as scan_bytes
from .delta_stream import fold_stream, load_tile, store_tile
from .delta_window import carried, check_one_type, from_state, last, norms, scores
from .dots import dot_both, dot_onto_right
from .due_first import MOST
from .launch import FLOATS, INDICES, overlapped, strides


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
    rows: int | None = None,
    stages: int | None = None,
    num_warps: int = 4,
    tiles: int | None = None,
    short: bool | None = None,
    due_first: bool | None = None,
) -> Tensor:
    """Read a window behind the history of S[slots], hold it in the ring, flush what is due; outputs (b, t, h, v): (1) to (5).

    `window` is the longest window that comes (T of the rule; None: t). `lengths` (b) are the real tokens of each row, first
    ones first; the outputs behind them are 0, and a row of length 0 is neither flushed nor extended. The cursors of `ring`
    are read, not moved: every layer of a model may share them. A slot may be named by one row only. `short` asks for one of
    the kernels (None: as measured), `tiles` and the others for tiles. `due_first` (None: where programs come in several
    rounds) lets the rows that are due start before the others in a short window of up to 1024 rows.

    Raises: ShapeMismatch, PrecisionError, ParameterError, RingOverflow (capacity < 2 window), before anything is written.
    """
    more = ("lengths", lengths, "b", INDICES), ("out", out, "b t h v", FLOATS), *ring.arguments(g.dim() == 4)
    axes, scale = check_inputs(S, q, k, v, g, beta, A, dt_bias, slots, scale, eps, *more)
    check_one_type(q, k, v)
    ring.check_type(k)
    b, t, groups, h = (axes[a] for a in "btgh")
    window = t if window is None else window
    check_window(ring.capacity, window, t)
    block_l = max(16, triton.next_power_of_2(ring.capacity - window))
    fits = q.dtype == torch.bfloat16 and g.dim() == 3 and t <= MOST_TOKENS and axes["k"] == WIDTH and block_l <= LONGEST
    each = tiles or tiles_of(b * h, axes["v"])
    if short and not fits:
        raise ParameterError(
            f"a short window came with {t} tokens, {axes['k']} channels k, {ring.capacity - window} entries, in {q.dtype}; "
            f"it takes {MOST_TOKENS}, {WIDTH}, {LONGEST}, in bf16, and a gate per head"
        )
    o = torch.empty_like(v) if out is None else out
    if fits and (bool(each) if short is None else short):
        each = each or 1
        grid = triton.cdiv(axes["v"], 32 * each), h, b
        in_turn = b <= MOST and (in_rounds(prod(grid)) if due_first is None else due_first)
        delta_buffered_short_kernel[grid](
            S, q, k, v, g, beta, A, dt_bias, slots, lengths, ring.u, ring.k, ring.g, ring.origin, ring.held, o,
            *strides(S, 3), *strides(q, 3), *strides(k, 3), *strides(v, 3), *strides(g, 3), *strides(beta, 3), *strides(o, 3),
            *strides(ring.u, 3), *strides(ring.k, 3), *strides(ring.g, 3), *strides(dt_bias, 1), scale, eps, b,
            T=t, K=axes["k"], V=axes["v"], HEADS_PER_KEY=h // groups, L2_NORM=l2_norm, CAPACITY=ring.capacity,
            WINDOW=window, BLOCK_L=block_l, TILES=each, BLOCK_B=triton.next_power_of_2(b) if in_turn else 0,
            num_warps=1, **overlapped(S.device),
        )  # fmt: skip
        return o
    block = block_v or max(16, min(triton.next_power_of_2(axes["v"]), 128 if b * h >= 512 else 64))
    many = block == 128
    rows, stages = rows or (16 if many else 32), stages or (4 if many else 3)
    whole = max(16, triton.next_power_of_2(axes["k"]))
    streams = g.dim() == 3 and axes["k"] == whole and axes["v"] % block == 0
    _delta_buffered_kernel[(triton.cdiv(axes["v"], block), h, b)](
        S, q, k, v, g, beta, A, dt_bias, slots, lengths, ring.u, ring.k, ring.g, ring.origin, ring.held, o,
        *strides(S, 3), *strides(q, 3), *strides(k, 3), *strides(v, 3), *strides(g, 3), *strides(beta, 3), *strides(o, 3),
        *strides(ring.u, 3), *strides(ring.k, 3), *strides(ring.g, 3), *strides(dt_bias, 1), scale, eps,
        T=t, K=axes["k"], V=axes["v"], HEADS_PER_KEY=h // groups, CHANNEL=g.dim() == 4, L2_NORM=l2_norm,
        SPLIT=q.dtype == torch.bfloat16, DENSE=S.stride(2) == axes["v"], CAPACITY=ring.capacity, WINDOW=window,
        BLOCK_T=max(8, triton.next_power_of_2(t)), BLOCK_L=block_l,
        BLOCK_K=whole, BLOCK_V=block, ROWS=min(rows, whole) if streams else whole, STAGES=stages, num_warps=num_warps,
        maxnreg=_registers(S, many and streams), **overlapped(S.device),
    )  # fmt: skip
    return o


def tiles_of(heads: int, v: int) -> int:
    """Tiles of 32 channels of a program of `delta_buffered_short`, as measured on an H200; `heads` counts heads of rows.

    0 for few of them, which take less time by the kernel here.
    """
    return 0 if heads < 256 else min(4 if heads >= 1024 else 2, triton.cdiv(v, 32))


def in_rounds(programs: int) -> bool:
    """Whether programs of `delta_buffered_short` come in several rounds: an H200 holds 1056, whose order is of no use."""
    return programs > 1056


def _registers(S: Tensor, streams: bool) -> int | None:
    """The most registers of a lane: on sm_90 168, with 16 rows at a time in four stages.

    256 rows, windows of 6: 231 us, not 259, and 513, not 529, where all flush.
    """
    hopper = S.is_cuda and torch.cuda.get_device_capability(S.device) == (9, 0)
    return 168 if hopper and streams else None


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
    BLOCK_L: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr, DENSE: tl.constexpr, ROWS: tl.constexpr,
    STAGES: tl.constexpr, OVERLAP: tl.constexpr,
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
        length = T
        if lengths is not None:
            length = tl.minimum(tl.load(lengths + b).to(tl.int32), T)
        # The rows of the window: its queries, then its keys.
        row = tl.arange(0, 2 * BLOCK_T)
        is_key = row >= BLOCK_T
        t = tl.where(is_key, row - BLOCK_T, row)
        real = t < length
        at_t = t.to(tl.int64)
        at_q = q + b * stride_q_b + group * stride_q_g + at_t[:, None] * stride_q_t
        at_k = k + b * stride_k_b + group * stride_k_g + at_t[:, None] * stride_k_t
        from_q, from_k = (real & ~is_key)[:, None], (real & is_key)[:, None]
        x = tl.load(at_q + i[None, :], mask=from_q & in_k[None, :], other=0.0)
        x = tl.load(at_k + i[None, :], mask=from_k & in_k[None, :], other=x)
        at_v = v + b * stride_v_b + h * stride_v_h + at_t[:, None] * stride_v_t + j[None, :]
        v_x = tl.load(at_v, mask=from_k & in_v[None, :], other=0.0)
        beta_x = tl.load(beta + b * stride_beta_b + h * stride_beta_h + at_t * stride_beta_t, mask=real, other=0.0).to(
            tl.float32
        )
        decay, bias = load_gate_params(A, dt_bias, h, i, stride_bias_h, in_k, CHANNEL)
        at_g, of_k = g + b * stride_g_b + h * stride_g_h, real[:, None] & in_k[None, :]
        if CHANNEL:
            g_x = tl.load(at_g + at_t[:, None] * stride_g_t + i[None, :], mask=of_k, other=0.0).to(tl.float32)
        else:
            g_x = tl.load(at_g + at_t * stride_g_t, mask=real, other=0.0).to(tl.float32)
        at_u = ring_u + slot * stride_ring_u_s + h * stride_ring_u_h
        at_kept = ring_k + slot * stride_ring_k_s + group * stride_ring_k_g
        at_decay = ring_g + slot * stride_ring_g_s + h * stride_ring_g_h
        k_l, u_l, g_l = load_history(
            at_u, at_kept, at_decay, first, count, stride_ring_u_l, stride_ring_k_l, stride_ring_g_l, i, j, in_k, in_v,
            CAPACITY, BLOCK_L, CHANNEL,
        )  # fmt: skip
        if STREAM:
            tl.debug_barrier()  # What the ring holds arrives while the state streams.
            Y = tl.zeros([2 * BLOCK_T, BLOCK_V], tl.float32)
            r = tl.arange(0, ROWS)
            at_r = at_head + r[:, None].to(tl.int64) * row_stride
            for _ in tl.range(0, K // ROWS, num_stages=STAGES):
                part = tl.load(at_r).to(tl.float32)
                q_r = tl.load(at_q + r[None, :], mask=from_q, other=0.0)
                k_r = tl.load(at_k + r[None, :], mask=from_k, other=0.0)
                x_r = tl.where(is_key[:, None], k_r, q_r)
                r += ROWS
                at_r += ROWS * row_stride
                Y = dot_onto_right(Y, x_r, part, SPLIT)
        g_x, beta_x = gates(g_x, beta_x, decay, bias, A)
        G_l = tl.cumsum(g_l, axis=0)
        total = last(G_l, count - 1)
        if CHANNEL:
            g_x = tl.where(of_k, g_x, 0.0)
            of_queries = tl.cumsum(tl.where(is_key[:, None], 0.0, g_x), axis=0)
            of_keys = tl.cumsum(tl.where(is_key[:, None], g_x, 0.0), axis=0)
            G_x = total[None, :] + tl.where(is_key[:, None], of_keys, of_queries)
        else:
            g_x = tl.where(real, g_x, 0.0)
            upto = (row[None, :] <= t[:, None]) & (row < BLOCK_T)[None, :]
            G_x = total + tl.sum(tl.where(upto, g_x[None, :], 0.0), axis=1)
        r_x, r_l = norms(x, tl.where(is_key, 1.0, scale), eps, L2_NORM), norms(k_l, 1.0, eps, L2_NORM)
        held_l = (row >= 0)[:, None] & (l < count)[None, :]
        past = dot_history(scores(x, r_x, G_x, k_l, r_l, G_l, held_l, CAPACITY - WINDOW, CHANNEL), u_l, SPLIT)
        sees = is_key[None, :] & ((t[:, None] > t[None, :]) | ((t[:, None] == t[None, :]) & ~is_key[:, None]))
        coupling = tl.where(is_key, beta_x, -1.0)[:, None] * scores(x, r_x, G_x, x, r_x, G_x, sees, 2 * BLOCK_T, CHANNEL)
        inverse = tl.where(row[:, None] == row[None, :], 1.0, 0.0)
        for s in tl.static_range(T):
            column = tl.sum(tl.where((row == BLOCK_T + s)[None, :], coupling, 0.0), axis=1)
            line = tl.sum(tl.where((row == BLOCK_T + s)[:, None], inverse, 0.0), axis=0)
            inverse -= column[:, None] * line[None, :]
        Y = (r_x * tl.exp(G_x))[:, None] * Y if STREAM else from_state(x, r_x, G_x, state, CHANNEL, SPLIT)
        Y += past
        # (1) in the rows of keys, what (3) has of the past in the rows of queries; the inverse makes u and o of them.
        R = tl.where(is_key[:, None], beta_x[:, None] * (v_x.to(tl.float32) - Y), Y)
        Z = dot_both(inverse, R, SPLIT)
        at_o = o + b * stride_o_b + at_t[:, None] * stride_o_t + h * stride_o_h + j[None, :]
        tl.store(at_o, Z.to(o.dtype.element_ty), mask=(~is_key & (t < T))[:, None] & in_v[None, :])
        owns_g = tl.program_id(0) == 0
        append(
            at_u, at_kept, at_decay, place(first + count + t, CAPACITY), real & is_key, Z, x, g_x, stride_ring_u_l,
            stride_ring_k_l, stride_ring_g_l, i, j, in_k, in_v, owns_g & (h % HEADS_PER_KEY == 0), owns_g, CHANNEL,
        )  # fmt: skip
        if (count + 2 * WINDOW > CAPACITY) & (length > 0):
            if STREAM:
                U = (r_l * tl.exp(total - G_l))[:, None] * u_l.to(tl.float32)
                fold_stream(
                    at_head, row_stride, tl.exp(total), at_kept, first, l < count, stride_ring_k_l, U, None, None, K, ROWS,
                    CAPACITY, SPLIT, STAGES,
                )  # (5)  # fmt: skip
            else:
                state = carried(state, k_l, r_l, G_l, total, u_l.to(tl.float32), CHANNEL, SPLIT)
                store_tile(at_S, state, inside, WHOLE)  # (5)
