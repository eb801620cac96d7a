"""The gated delta rule from a checkpoint and a ring: verification of a window, with the flush of the rows that are due.

With S_0 the checkpoint, j the tokens held since it and s, t those of the window, G the sum of g from the checkpoint on, and
`scores` and `decayed` of `delta_window`, scores over held tokens and window alike,

    R    = beta (V - decayed(k) S_0 - sum_{j held} scores(k)_tj u_j)                                     (1)
    A_ts = beta_t scores(k)_ts for s < t, else 0,    (I + A) u = R                                       (2)
    o_t  = decayed(q) S_0 + sum_{j held} scores(q)_tj u_j + sum_{s<=t} scores(q)_ts u_s                  (3)
    ring: u, k, g of the window's tokens after the held ones                                             (4)
    S_0' = diag(exp G_h) S_0 + sum_{j held} diag(exp(G_h - G_j)) k^_j u_j^T    if held + 2T > L          (5)

The outputs of every row are computed from the old checkpoint; (5) adds committed tokens only, never the window, which may
still be rejected. The cursors are updated with the accepted tokens afterwards (`cursors.commit_window`), by the same rule.

A program owns v channels of one value head of one row, with all of k. Queries and keys of the window are the rows of one
matrix, so that the state is cut into parts for one product instead of two. The state is streamed, some rows of k at a time,
and multiplied on arrival: nothing in the product waits for the ring, whose entries arrive in the meantime. (1) (2) (3) are
one linear system in o and u; its inverse, T steps on a matrix of twice the window, does not wait for the state either, and is
applied once. A flush loads the tile again, a few microseconds after it was read; the level-2 cache should serve it, which was
not measured. With channel gates, or a k or v that the tile does not divide, the whole tile stays in registers instead. Short
windows in bf16 with k = 128 have their own kernel, `delta_buffered_short`.

Layout: S_0 (s, h, k, v), the ring as in `delta_ring`. S_0 is written for the rows that are due, in its own type: with an fp32
checkpoint nothing in between is rounded to less than fp32, except u as the ring stores it.
Bound by the bytes of the state and of the ring's live entries.

Source: ReplaySSM, algorithm 8; the exact fp32 products, the one path for all rows, and the gate per key channel are ours.
"""

from collections.abc import Sequence
from math import prod

import torch
import triton
import triton.language as tl
from torch import Tensor

from ssmspec_ref.errors import ParameterError

from ...launch import overlapped, strides
from ...row import Axes, Lengths, Slots, launcher
from ...shared.cursors import check_window, flushes, is_due
from ...shared.dots import dot_both, dot_onto_right
from ...shared.flush_order import MOST
from ...shared.tuning import H200
from .. import delta_inputs as delta
from ..delta_inputs import check_inputs, gates, load_gate_params, slot_of, window_strides
from ..delta_scan import traffic_bytes as scan_bytes
from ..delta_window import check_one_type, from_state, last, norms, scores, state_after
from .delta_buffered_short import LONGEST, MOST_TOKENS, WIDTH, delta_buffered_short_kernel
from .delta_ring import Ring, append, dot_history, entry_bytes, load_history, of_head, place
from .delta_stream import fold_stream, load_tile, store_tile


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
    entries = sum(held) + t * len(held)
    scan = scan_bytes(len(held), t, g, h, k, v, state=state, io=io, gate=gate, write_state=False, channel=channel)
    return (
        scan
        + flushes(held, window=window, capacity=capacity) * h * k * v * state
        + entries * entry_bytes(g, h, k, v, io=io, u=u, channel=channel)
    )


@launcher
def delta_buffered(
    axes: Axes,
    S: delta.State,
    ring: Ring,
    q: delta.Keys,
    k: delta.Keys,
    v: delta.Values,
    g: delta.Gates,
    beta: delta.Strengths,
    *,
    window: int | None = None,
    A: delta.Decay | None = None,
    dt_bias: delta.GateBias | None = None,
    l2_norm: bool = True,
    scale: float | None = None,
    eps: float = 1e-6,
    slots: Slots | None = None,
    lengths: Lengths | None = None,
    out: delta.Outputs | None = None,
    block_v: int | None = None,
    rows: int | None = None,
    stages: int | None = None,
    num_warps: int = H200["delta_buffered"]["warps"],
    tiles: int | None = None,
    short: bool | None = None,
    flushed_first: bool | None = None,
) -> Tensor:
    """Reads a window after the history of S[slots], stores it in the ring, flushes what is due; outputs (b, t, h, v): (1) to
    (5).

    `window` is the longest window (T of the rule; None: t). `lengths` (b) counts the real tokens of each row, which come
    first; the outputs after them are 0, and a row of length 0 is neither flushed nor extended. The cursors of `ring` are
    read, not updated: every layer of a model may share them. Only one row may use a slot. `short` selects one of the kernels
    (None: the faster one, as measured), `tiles` and the others the tiles. `flushed_first` (None: if not all programs fit
    at once) lets the rows that are due start before the others in a short window of up to 1024 rows.

    Raises: ShapeMismatch, PrecisionError, ParameterError, RingOverflow (capacity < 2 window), before anything is written.
    """
    scale = check_inputs(axes, A, dt_bias, slots, scale, eps)
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
            f"a short window has {t} tokens, {axes['k']} channels k, {ring.capacity - window} entries, in {q.dtype}; "
            f"it takes {MOST_TOKENS}, {WIDTH}, {LONGEST}, in bf16, and a gate per head"
        )
    o = torch.empty_like(v) if out is None else out
    if fits and (bool(each) if short is None else short):
        each = each or 1
        grid = triton.cdiv(axes["v"], 32 * each), h, b
        in_turn = b <= MOST and (several_rounds(prod(grid)) if flushed_first is None else flushed_first)
        delta_buffered_short_kernel[grid](
            S, q, k, v, g, beta, A, dt_bias, slots, lengths, *ring.tensors, o,
            window_strides(S, q, k, v, g, beta, o), ring.strides(), *strides(dt_bias, 1), scale, eps, b,
            T=t, K=axes["k"], V=axes["v"], HEADS_PER_KEY=h // groups, L2_NORM=l2_norm, CAPACITY=ring.capacity,
            WINDOW=window, BLOCK_L=block_l, TILES=each, BLOCK_B=triton.next_power_of_2(b) if in_turn else 0,
            num_warps=1, **overlapped(S.device),
        )  # fmt: skip
        return o
    row = H200["delta_buffered"]
    most = row["block_v" if b * h >= row["few_heads"] else "block_v_few"]
    block = block_v or max(16, min(triton.next_power_of_2(axes["v"]), most))
    many = block == row["block_v"]
    rows, stages = rows or row["rows" if many else "rows_few"], stages or row["stages" if many else "stages_few"]
    whole = max(16, triton.next_power_of_2(axes["k"]))
    streams = g.dim() == 3 and axes["k"] == whole and axes["v"] % block == 0
    _delta_buffered_kernel[(triton.cdiv(axes["v"], block), h, b)](
        S, q, k, v, g, beta, A, dt_bias, slots, lengths, *ring.tensors, o,
        window_strides(S, q, k, v, g, beta, o), ring.strides(), *strides(dt_bias, 1), scale, eps,
        T=t, K=axes["k"], V=axes["v"], HEADS_PER_KEY=h // groups, CHANNEL=g.dim() == 4, L2_NORM=l2_norm,
        SPLIT=q.dtype == torch.bfloat16, DENSE=S.stride(2) == axes["v"], CAPACITY=ring.capacity, WINDOW=window,
        BLOCK_T=max(8, triton.next_power_of_2(t)), BLOCK_L=block_l,
        BLOCK_K=whole, BLOCK_V=block, ROWS=min(rows, whole) if streams else whole, STAGES=stages, num_warps=num_warps,
        maxnreg=_registers(S, many and streams), **overlapped(S.device),
    )  # fmt: skip
    return o


def tiles_of(heads: int, v: int) -> int:
    """Tiles of 32 channels of a program of `delta_buffered_short`, chosen on an H200; `heads` counts heads of rows.

    0 for few of them, for which the kernel here is faster.
    """
    row = H200["delta_buffered"]
    most = row["short_many_tiles" if heads >= row["short_many_heads"] else "short_tiles"]
    return 0 if heads < row["short_from"] else min(most, triton.cdiv(v, 32))


def several_rounds(programs: int) -> bool:
    """Whether programs of `delta_buffered_short` come in several rounds; otherwise their order is of no
    use."""
    return programs > H200["delta_buffered"]["short_resident"]


def _registers(S: Tensor, streams: bool) -> int | None:
    """The most registers of a lane: on sm_90 168, with 16 rows at a time in four stages (docs/explanation/tuning.md)."""
    hopper = S.is_cuda and torch.cuda.get_device_capability(S.device) == (9, 0)
    return H200["delta_buffered"]["registers"] if hopper and streams else None


@triton.jit
def _load_window(
    q, k, v, g, beta, A, dt_bias, stride, stride_bias_h, b, h, group, length, i, j, in_k, in_v, CHANNEL: tl.constexpr,
    BLOCK_T: tl.constexpr,
):  # fmt: skip
    """The rows of the window, its queries, then its keys: which are keys, their tokens, which are real; the pointers of q
    and k with their masks; q and k as rows, v, and the gates as stored."""
    row = tl.arange(0, 2 * BLOCK_T)
    is_key = row >= BLOCK_T
    t = tl.where(is_key, row - BLOCK_T, row)
    real = t < length
    at_t = t.to(tl.int64)
    at_q = q + b * stride.q.b + group * stride.q.g + at_t[:, None] * stride.q.t
    at_k = k + b * stride.k.b + group * stride.k.g + at_t[:, None] * stride.k.t
    from_q, from_k = (real & ~is_key)[:, None], (real & is_key)[:, None]
    x = tl.load(at_q + i[None, :], mask=from_q & in_k[None, :], other=0.0)
    x = tl.load(at_k + i[None, :], mask=from_k & in_k[None, :], other=x)
    at_v = v + b * stride.v.b + h * stride.v.h + at_t[:, None] * stride.v.t + j[None, :]
    v_x = tl.load(at_v, mask=from_k & in_v[None, :], other=0.0)
    beta_x = tl.load(beta + b * stride.beta.b + h * stride.beta.h + at_t * stride.beta.t, mask=real, other=0.0).to(tl.float32)
    decay, bias = load_gate_params(A, dt_bias, h, i, stride_bias_h, in_k, CHANNEL)
    at_g, of_k = g + b * stride.g.b + h * stride.g.h, real[:, None] & in_k[None, :]
    if CHANNEL:
        g_x = tl.load(at_g + at_t[:, None] * stride.g.t + i[None, :], mask=of_k, other=0.0).to(tl.float32)
    else:
        g_x = tl.load(at_g + at_t * stride.g.t, mask=real, other=0.0).to(tl.float32)
    return row, is_key, t, real, at_t, at_q, at_k, from_q, from_k, x, v_x, beta_x, g_x, of_k, decay, bias


@triton.jit
def _read_stream(
    at_head, row_stride, at_q, at_k, from_q, from_k, is_key, K: tl.constexpr, SPLIT: tl.constexpr, BLOCK_T: tl.constexpr,
    BLOCK_V: tl.constexpr, ROWS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """What the rows read of the state, ROWS of k at a time."""
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
    return Y


@triton.jit
def _sums(
    g_x, beta_x, g_l, decay, bias, A, count, row, is_key, t, real, of_k, CHANNEL: tl.constexpr, BLOCK_T: tl.constexpr
):  # fmt: skip
    """The gates of the window, and G of each entry, of all entries, and of the window's rows."""
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
    return g_x, beta_x, G_l, total, G_x


@triton.jit
def _inverted(x, r_x, G_x, beta_x, row, is_key, t, T: tl.constexpr, CHANNEL: tl.constexpr, BLOCK_T: tl.constexpr):
    """The inverse of the system of rows (2)."""
    sees = is_key[None, :] & ((t[:, None] > t[None, :]) | ((t[:, None] == t[None, :]) & ~is_key[:, None]))
    coupling = tl.where(is_key, beta_x, -1.0)[:, None] * scores(x, r_x, G_x, x, r_x, G_x, sees, 2 * BLOCK_T, CHANNEL)
    inverse = tl.where(row[:, None] == row[None, :], 1.0, 0.0)
    for s in tl.static_range(T):
        column = tl.sum(tl.where((row == BLOCK_T + s)[None, :], coupling, 0.0), axis=1)
        line = tl.sum(tl.where((row == BLOCK_T + s)[:, None], inverse, 0.0), axis=0)
        inverse -= column[:, None] * line[None, :]
    return inverse


@triton.jit
def _flush(
    state, at_S, inside, at_head, row_stride, at_kept, first, count, l, k_l, u_l, r_l, G_l, total, stride_k_l,
    K: tl.constexpr, CHANNEL: tl.constexpr, SPLIT: tl.constexpr, CAPACITY: tl.constexpr, WHOLE: tl.constexpr,
    STREAM: tl.constexpr, ROWS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Write the checkpoint of a row that is due (5)."""
    if STREAM:
        U = (r_l * tl.exp(total - G_l))[:, None] * u_l.to(tl.float32)
        fold_stream(
            at_head, row_stride, tl.exp(total), at_kept, first, l < count, stride_k_l, U, None, None, K, ROWS,
            CAPACITY, SPLIT, STAGES,
        )  # (5)  # fmt: skip
    else:
        state = state_after(state, k_l, r_l, G_l, total, u_l.to(tl.float32), CHANNEL, SPLIT)
        store_tile(at_S, state, inside, WHOLE)  # (5)


@triton.jit
def _cursors(origin, held, lengths, slot, b, T: tl.constexpr):
    """The first entry of the ring, how many are held, and how many tokens come."""
    first = tl.load(origin + slot).to(tl.int32)
    count = tl.load(held + slot).to(tl.int32)
    length = T
    if lengths is not None:
        length = tl.minimum(tl.load(lengths + b).to(tl.int32), T)
    return first, count, length


@triton.jit
def _solved(
    x, v_x, u_l, k_l, Y, state, G_x, G_l, beta_x, row, is_key, t, l, count, scale, eps, T: tl.constexpr,
    CHANNEL: tl.constexpr, L2_NORM: tl.constexpr, SPLIT: tl.constexpr, CAPACITY: tl.constexpr, WINDOW: tl.constexpr,
    BLOCK_T: tl.constexpr, STREAM: tl.constexpr,
):  # fmt: skip
    """o in the rows of queries and u in those of keys (1) (2) (3); the norms of the entries."""
    r_x, r_l = norms(x, tl.where(is_key, 1.0, scale), eps, L2_NORM), norms(k_l, 1.0, eps, L2_NORM)
    held_l = (row >= 0)[:, None] & (l < count)[None, :]
    past = dot_history(scores(x, r_x, G_x, k_l, r_l, G_l, held_l, CAPACITY - WINDOW, CHANNEL), u_l, SPLIT)
    inverse = _inverted(x, r_x, G_x, beta_x, row, is_key, t, T, CHANNEL, BLOCK_T)
    Y = (r_x * tl.exp(G_x))[:, None] * Y if STREAM else from_state(x, r_x, G_x, state, CHANNEL, SPLIT)
    Y += past
    # Rows of keys hold (1), rows of queries the history's part of (3); the inverse turns them into u and o.
    R = tl.where(is_key[:, None], beta_x[:, None] * (v_x.to(tl.float32) - Y), Y)
    Z = dot_both(inverse, R, SPLIT)
    return Z, r_l


@triton.jit
def _delta_buffered_kernel(
    S, q, k, v, g, beta, A, dt_bias, slots, lengths, ring_u, ring_k, ring_g, origin, held, o,
    stride, stride_ring, stride_bias_h, scale, eps,
    T: tl.constexpr, K: tl.constexpr, V: tl.constexpr, HEADS_PER_KEY: tl.constexpr, CHANNEL: tl.constexpr,
    L2_NORM: tl.constexpr, SPLIT: tl.constexpr, CAPACITY: tl.constexpr, WINDOW: tl.constexpr, BLOCK_T: tl.constexpr,
    BLOCK_L: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr, DENSE: tl.constexpr, ROWS: tl.constexpr,
    STAGES: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
    b = tl.program_id(2).to(tl.int64)
    h = tl.program_id(1).to(tl.int64)
    slot = slot_of(slots, b)
    if slot >= 0:
        group = h // HEADS_PER_KEY
        i, l = tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_L)
        j = tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
        in_k, in_v = i < K, j < V
        WHOLE: tl.constexpr = K % BLOCK_K == 0 and V % BLOCK_V == 0
        STREAM: tl.constexpr = ROWS < BLOCK_K
        row_stride = tl.cast(V if DENSE else stride.S.k, tl.int64)
        at_head = S + slot * stride.S.s + h * stride.S.h + j[None, :]
        at_S, inside = at_head + i[:, None].to(tl.int64) * row_stride, in_k[:, None] & in_v[None, :]
        state, Y = None, None
        if not STREAM:
            state = load_tile(at_S, inside, WHOLE)
            tl.debug_barrier()  # The load of the state is issued before the wait for the cursors, which the ring depends on.
        first, count, length = _cursors(origin, held, lengths, slot, b, T)
        row, is_key, t, real, at_t, at_q, at_k, from_q, from_k, x, v_x, beta_x, g_x, of_k, decay, bias = _load_window(
            q, k, v, g, beta, A, dt_bias, stride, stride_bias_h, b, h, group, length, i, j, in_k, in_v, CHANNEL, BLOCK_T
        )  # fmt: skip
        at_u, at_kept, at_decay = of_head(ring_u, ring_k, ring_g, slot, h, group, stride_ring)
        k_l, u_l, g_l = load_history(
            at_u, at_kept, at_decay, first, count, stride_ring.u.l, stride_ring.k.l, stride_ring.g.l, i, j, in_k, in_v,
            CAPACITY, BLOCK_L, CHANNEL,
        )  # fmt: skip
        if STREAM:
            tl.debug_barrier()  # The ring's entries arrive while the state is streamed.
            Y = _read_stream(
                at_head, row_stride, at_q, at_k, from_q, from_k, is_key, K, SPLIT, BLOCK_T, BLOCK_V, ROWS, STAGES
            )  # fmt: skip
        g_x, beta_x, G_l, total, G_x = _sums(
            g_x, beta_x, g_l, decay, bias, A, count, row, is_key, t, real, of_k, CHANNEL, BLOCK_T
        )  # fmt: skip
        Z, r_l = _solved(
            x, v_x, u_l, k_l, Y, state, G_x, G_l, beta_x, row, is_key, t, l, count, scale, eps, T, CHANNEL, L2_NORM, SPLIT,
            CAPACITY, WINDOW, BLOCK_T, STREAM,
        )  # fmt: skip
        at_o = o + b * stride.o.b + at_t[:, None] * stride.o.t + h * stride.o.h + j[None, :]
        tl.store(at_o, Z.to(o.dtype.element_ty), mask=(~is_key & (t < T))[:, None] & in_v[None, :])
        owns_g = tl.program_id(0) == 0
        append(
            at_u, at_kept, at_decay, place(first + count + t, CAPACITY), real & is_key, Z, x, g_x, stride_ring.u.l,
            stride_ring.k.l, stride_ring.g.l, i, j, in_k, in_v, owns_g & (h % HEADS_PER_KEY == 0), owns_g, CHANNEL,
        )  # fmt: skip
        if is_due(count, WINDOW, CAPACITY) & (length > 0):
            _flush(
                state, at_S, inside, at_head, row_stride, at_kept, first, count, l, k_l, u_l, r_l, G_l, total,
                stride_ring.k.l, K, CHANNEL, SPLIT, CAPACITY, WHOLE, STREAM, ROWS, STAGES,
            )  # fmt: skip
