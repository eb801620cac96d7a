"""SSD (Mamba-2) from a checkpoint and a ring: verification of a window, with the flush of the rows that are due.

With S_0 the checkpoint, j the tokens held since it, s and t those of the window, G the sum of dt A from the checkpoint on,

    y_t  = exp(G_t) C_t S_0^T + sum_{j held} exp(G_t - G_j) dt_j (C_t . B_j) x_j
           + sum_{s<=t} exp(G_t - G_s) dt_s (C_t . B_s) x_s + D x_t,  then y silu(z)                     (1)
    ring: x, dt, B of the window's tokens after the held ones                                            (2)
    S_0' = exp(G_h) S_0 + sum_{j held} exp(G_h - G_j) dt_j x_j B_j^T       where held + 2T > L            (3)

The outputs of every row are computed from the old checkpoint; (3) adds committed tokens only, never the window, which may
still be rejected. The cursors are updated with the accepted tokens afterwards (`cursors.commit_window`), by the same rule.

The kernel is that of `ssd_window` with more columns: entries (e) are the held tokens and those of the window, of which only
the window's have outputs (t). A program owns HEADS heads of one group of one row: the scores C B^T are computed once, the
sums G for all of its heads in one product with the mask. Then it loops over heads and tiles (p, n); the load of the next one
is in flight while this one is multiplied. S_0 (s, h, p, n) is read once, and written for the rows that are due, in its own
type. All products are as accurate as fp32 (`dots`): the factors of x and B in (3) are never rounded to their type. The
exponents of (3) are sums over the entries in between, not differences of large sums. With many rows, the rows that are due
and the other rows have one launch each, in which programs of rows of the other kind end at once: one kernel for both would
need the registers of (3) in addition to those of (1). The launch for the rows that are due has few heads per program, as
there may be few such rows.

Layout: S_0 (s, h, p, n), the ring as in `ssd_ring`.
Bound by the bytes of the state and of the ring's live entries, if enough programs are resident to hide their prologue; the
launch of the rows that are due is bound by its registers.

Source: ReplaySSM, algorithm 4; the exact products and the one path for all rows are ours.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from ssmspec_ref.errors import ParameterError

from ...row import Axes, Lengths, Slots, launcher
from ...shared.cursors import check_window, flushes, is_due
from ...shared.dots import dot_inputs, dot_left, dot_onto, dot_right
from ...shared.functions import silu
from ...shared.tuning import H200
from .. import ssd_inputs as ssd
from ..ssd_inputs import Inputs, check_heads, load_rows, skip_strides, step_size, window_strides
from ..ssd_scan import traffic_bytes as scan_bytes
from .ssd_buffered_short import MOST_TOKENS, launch_short
from .ssd_ring import Ring, entry_bytes, load_at, place
from .ssd_state_tile import CHANNELS, heads_per_program


def traffic_bytes(
    held: Sequence[int],
    t: int,
    h: int,
    p: int,
    n: int,
    g: int,
    *,
    capacity: int,
    window: int,
    state: int = 4,
    io: int = 2,
    z: bool = False,
) -> int:
    """Bytes that must cross the memory bus for live rows with `held` entries each and t real tokens; cursors are left out.

    Units: bytes; `state` and `io` are the bytes of an element.
    """
    entries = sum(held) + t * len(held)
    scan = scan_bytes(len(held), t, h, p, n, g, state=state, io=io, write_state=False, z=z)
    return (
        scan + flushes(held, window=window, capacity=capacity) * h * p * n * state + entries * entry_bytes(h, p, n, g, io=io)
    )


@launcher
def ssd_buffered(
    axes: Axes,
    S: ssd.State,
    ring: Ring,
    x: ssd.Heads,
    dt: ssd.PerHeads,
    A: ssd.Decay,
    B: ssd.Projs,
    C: ssd.Projs,
    *,
    window: int | None = None,
    D: ssd.Skip | None = None,
    z: ssd.Heads | None = None,
    dt_bias: ssd.PerHead | None = None,
    dt_softplus: bool = True,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    slots: Slots | None = None,
    lengths: Lengths | None = None,
    out: ssd.Outputs | None = None,
    block_p: int | None = None,
    program_p: int | None = None,
    heads: int | None = None,
    num_warps: int | None = None,
    stages: int | None = None,
    apart: bool | None = None,
    short: bool | None = None,
    flushed_first: bool | None = None,
) -> Tensor:
    """Reads a window after the history of S[slots], stores it in the ring, flushes what is due; outputs (b, t, h, p): (1) to
    (3).

    `window` is the longest window (T of the rule; None: t). `lengths` (b) counts the real tokens of each row, which come
    first; the outputs after them are 0, and a row of length 0 is neither flushed nor extended. The cursors of `ring`
    are read, not updated: every layer of a model may share them. Only one row may use a slot. `flushed_first` (None: if not
    all programs fit at once) lets the rows that are due start before the others in a short window of up to 1024 rows.

    Raises: ShapeMismatch, PrecisionError, ParameterError, RingOverflow (capacity < 2 window), before anything is written.
    """
    given = Inputs(axes, S, x, dt, A, B, C, D, z, dt_bias, dt_softplus, dt_limit, slots)
    t = given.axes["t"]
    ring.check_types(x, B, C)
    window = t if window is None else window
    check_window(ring.capacity, window, t)
    y = x.new_empty(x.shape) if out is None else out
    _launch(given, ring, lengths, y, window, (block_p, program_p, heads, num_warps, stages), apart, short, flushed_first)
    return y


def _launch(
    given: Inputs,
    ring: Ring,
    lengths: Tensor | None,
    y: Tensor,
    window: int,
    tiles: tuple[int | None, ...],
    apart: bool | None,
    short: bool | None,
    flushed_first: bool | None,
) -> None:
    """Runs the kernel on checked arguments.

    Raises: ParameterError, before anything is written.
    """
    b, t, h, p, n, g = given.sizes
    products = given.x.dtype == torch.bfloat16 and n <= 128
    check_heads(tiles[2] or 1, h // g)
    tuned = (tiles[0] or 16, tiles[2] or 1, tiles[3] or 1) != (16, 1, 1)
    if short is None:
        short = products and t <= MOST_TOKENS and not tuned
    if short and (tuned or t > MOST_TOKENS):
        raise ParameterError(
            f"short is True for tiles of {tiles[0] or 16} channels, {tiles[2] or 1} heads a program, {tiles[3] or 1} warps "
            f"and {t} tokens; the kernel for short windows takes 16, one, one and up to {MOST_TOKENS}: leave short out"
        )
    if short:
        launch_short(
            given, ring, lengths, y, window, triton.cdiv(tiles[1], CHANNELS) if tiles[1] else None, apart, flushed_first
        )
        return
    if apart is None:
        apart = products and b * h >= few_heads(p)
    for open_, flushed in ((True, False), (False, True)) if apart else ((True, True),):
        default = tile(b * h, h // g, p, products, not open_)
        block, program, heads, warps, stages = (mine or own for mine, own in zip(tiles, default, strict=True))
        each = triton.cdiv(min(program, p), block)
        ssd_buffered_kernel[(triton.cdiv(p, each * block), h // heads, b)](
            *given.tensors, lengths, ring.tensors, y, window_strides(given, y), ring.strides, skip_strides(given),
            *given.dt_limit, T=t, P=p, N=n, **given.constants, D_HEAD=given.skip_per_head, CAPACITY=ring.capacity,
            WINDOW=window, OPEN=open_, FLUSHED=flushed,
            BLOCK_T=max(16, triton.next_power_of_2(t)), BLOCK_L=max(16, triton.next_power_of_2(ring.capacity)),
            BLOCK_N=max(16, triton.next_power_of_2(n)), BLOCK_P=block, TILES=each, HEADS=heads,
            BLOCK_H=max(8, triton.next_power_of_2(heads)), STAGES=stages, num_warps=warps,
        )  # fmt: skip


def tile(rows: int, heads: int, p: int, products: bool, due: bool) -> tuple[int, int, int, int, int]:
    """Channels of a tile, of a program, heads of a program, warps and pipeline stages; `rows` counts heads of rows, and `due`
    selects the launch of the rows that are due. Chosen for heads of 64 and 80 channels."""
    row = H200["ssd_buffered"]
    if not products:
        return row["exact_block_p"], p, 1, row["exact_warps"], 1
    if rows < few_heads(p):
        return row["few_block_p"], row["few_block_p"], 1, row["few_ragged_warps" if p % 64 else "few_warps"], 1
    run = 2 - heads % 2
    if p % 64:
        warps = row["ragged_flushed_warps" if due else "ragged_warps"]
        run = run if due else heads_per_program(rows, heads, row["ragged_each"], row["ragged_heads"])
        return row["ragged_block_p"], p, run, warps, row["stages"]
    run = run if due else heads_per_program(rows, heads, row["each"], row["heads"])
    return row["block_p"], p, run, row["warps"], row["flushed_stages" if due else "stages"]


def few_heads(p: int) -> int:
    """Heads of rows below which one launch does everything, with little work per program."""
    return H200["ssd_buffered"]["few_ragged_heads" if p % 64 else "few_heads"]


@triton.jit
def pick(x, here):
    """The column of x (r, k) where `here` (k) is true."""
    return tl.sum(tl.where(here[None, :], x, 0.0), axis=1)


@triton.jit
def _slot_length_count(slots, lengths, held, b, T: tl.constexpr):
    """Slot of a row, its real tokens, and how many entries it holds."""
    slot = b
    if slots is not None:
        slot = tl.load(slots + b).to(tl.int64)
    length = T
    if lengths is not None:
        length = tl.minimum(tl.load(lengths + b).to(tl.int32), T)
    return slot, length, tl.load(held + slot, mask=slot >= 0, other=0).to(tl.int32)


@triton.jit
def _entries_and_tokens(origin, slot, e, t, count, length, CAPACITY: tl.constexpr):
    """Which entries are held, which are the window's, and which tokens are real; the entries' places in the ring and in the
    window, and the tokens'; which entry is a token, and which tokens see it."""
    first = tl.load(origin + slot).to(tl.int32)
    i = e - count
    past, new, real = i < 0, (i >= 0) & (i < length), t < length
    at, row, col = place(first + e, CAPACITY), i.to(tl.int64), t.to(tl.int64)
    is_t = i[None, :] == t[:, None]
    sees = (i[None, :] <= t[:, None]) & (past | new)[None, :] & real[:, None]
    return past, new, real, at, row, col, is_t, sees


@triton.jit
def _load_entries_and_queries(
    B, C, ring_B, slot, b, g, at, row, col, n, past, new, real, in_n, stride: tl.constexpr, stride_ring: tl.constexpr
):
    """The ring's pointer to B of a group; B of the entries, C of the tokens."""
    at_B = ring_B + slot * stride_ring.B.s + g * stride_ring.B.g
    at_B_t = B + b * stride.B.b + g * stride.B.g
    B_e = load_at(tl.where(new, at_B_t + row * stride.B.t, at_B + at * stride_ring.B.l), n, past | new, in_n)
    C_t = load_rows(C + b * stride.C.b + g * stride.C.g, col * stride.C.t, n, real, in_n)
    return at_B, B_e, C_t


@triton.jit
def _window_steps(
    ring_dt, dt, A, dt_bias, b, at, row, heads, past, new, in_h, low, high, stride: tl.constexpr, stride_ring: tl.constexpr,
    SOFTPLUS: tl.constexpr, LIMIT: tl.constexpr, BLOCK_H: tl.constexpr,
):  # fmt: skip
    """dt (entries, heads), and A of the heads."""
    steps = load_rows(ring_dt, at * stride_ring.dt.l, heads * stride_ring.dt.h, past, in_h)
    raw = load_rows(dt + b * stride.dt.b, row * stride.dt.t, heads * stride.dt.h, new, in_h)
    bias = tl.zeros((BLOCK_H,), tl.float32)
    if dt_bias is not None:
        bias = tl.load(dt_bias + heads, mask=in_h, other=0.0).to(tl.float32)
    decays = tl.load(A + heads, mask=in_h, other=0.0)
    steps += step_size(raw, new[:, None] & in_h[None, :], bias[None, :], low, high, SOFTPLUS, LIMIT)
    return steps, decays


@triton.jit
def _keep_window(
    ring_dt, ring_B, steps, B_e, h_0, heads, at, n, new, in_h, in_n, stride: tl.constexpr, HEADS_PER_GROUP: tl.constexpr
):
    """dt of the window's tokens, and B of their group (2)."""
    tl.store(
        ring_dt + at[:, None] * stride.dt.l + heads[None, :] * stride.dt.h, steps,
        mask=new[:, None] & in_h[None, :],
    )  # fmt: skip
    if h_0 % HEADS_PER_GROUP == 0:
        tl.store(ring_B + at[:, None] * stride.B.l + n[None, :], B_e, mask=new[:, None] & in_n[None, :])


@triton.jit
def _of_all_heads(
    steps, decays, B_e, C_t, D, heads, e, sees, past, in_h, stride_D: tl.constexpr, OPEN: tl.constexpr,
    FLUSHED: tl.constexpr, D_HEAD: tl.constexpr,
):  # fmt: skip
    """dt A, its sums G up to each entry, up to each token, and since each entry of the history; B of the history; the
    scores; D of the heads. What the rows of this launch and D_HEAD do not need is not computed."""
    lds = steps * decays[None, :]
    G_e = dot_right((e[:, None] >= e[None, :]).to(tl.bfloat16), lds)
    G_t = dot_right(sees.to(tl.bfloat16), lds)
    since, B_f, skips = lds, B_e, decays
    if FLUSHED:
        since = dot_right(((e[:, None] < e[None, :]) & past[None, :]).to(tl.bfloat16), lds)
        if OPEN:
            B_f = tl.where(past[:, None], B_e, 0.0).to(B_e.dtype)
    scores = tl.where(sees, dot_inputs(C_t, tl.trans(B_e)), 0.0)
    if D_HEAD:
        skips = tl.load(D + heads * stride_D.h, mask=in_h, other=0.0).to(tl.float32)
    return lds, G_e, G_t, since, B_f, scores, skips


@triton.jit
def _rows_of_x(x, ring_x, slot, b, h, at, row, new, stride: tl.constexpr, stride_ring: tl.constexpr):
    """Pointers to x of a head in the ring, in the window, and of each entry."""
    at_x = ring_x + slot * stride_ring.x.s + h * stride_ring.x.h
    at_x_t = x + b * stride.x.b + h * stride.x.h
    return at_x, at_x_t, tl.where(new, at_x_t + row * stride.x.t, at_x + at * stride_ring.x.l)


@triton.jit
def _weights_of_head(G_t, G_e, steps, here, scores, sees, is_t, skips, D_HEAD: tl.constexpr):
    """G up to each token, dt of the entries, and the weights of (1), with D of the head."""
    G_q, step = pick(G_t, here), pick(steps, here)
    between = tl.where(sees, G_q[:, None] - pick(G_e, here)[None, :], float("-inf"))
    W = tl.exp(between) * (step[None, :] * scores)
    if D_HEAD:
        W = tl.where(is_t, W + tl.sum(tl.where(here, skips, 0.0), axis=0), W)
    return G_q, step, W


@triton.jit
def _store_window(
    y_t, at_x_t, D, z, y, b, h, t, col, p_t, real, in_p, stride: tl.constexpr, stride_D: tl.constexpr, T: tl.constexpr,
    D_HEAD: tl.constexpr,
):  # fmt: skip
    """The outputs of a tile, with D of its channels and z."""
    if D is not None and not D_HEAD:
        skip = tl.load(D + h * stride_D.h + p_t * stride_D.p, mask=in_p, other=0.0).to(tl.float32)
        y_t += skip[None, :] * load_rows(at_x_t, col * stride.x.t, p_t, real, in_p).to(tl.float32)
    if z is not None:
        z_t = load_rows(z + b * stride.z.b + h * stride.z.h, col * stride.z.t, p_t, real, in_p)
        y_t *= silu(z_t.to(tl.float32))
    at_y = y + b * stride.y.b + h * stride.y.h + col[:, None] * stride.y.t + p_t[None, :]
    tl.store(at_y, y_t.to(y.dtype.element_ty), mask=(t < T)[:, None] & in_p[None, :])


@triton.jit
def _flush_tile(
    S, state, x_e, B_f, ring_B, due, at, lds, since, step, here, past, p_t, n, in_p, in_n, stride_p: tl.constexpr,
    stride_B: tl.constexpr, AGAIN: tl.constexpr,
):  # fmt: skip
    """(3) of a tile, if due; the pointers are those of the head and the group. AGAIN: B of the history is loaded here."""
    if due:
        if AGAIN:
            B_f = load_rows(ring_B, at * stride_B, n, past, in_n)
        weight = tl.exp(pick(since, here)) * step
        x_f = tl.where(past[:, None], weight[:, None] * x_e.to(tl.float32), 0.0)
        total = tl.sum(tl.where(here[None, :] & past[:, None], lds, 0.0))
        state = dot_onto(tl.exp(total) * state, tl.trans(x_f), B_f)  # (3)
        at_tile = S + p_t[:, None] * stride_p + n[None, :]
        tl.store(at_tile, state.to(S.dtype.element_ty), mask=in_p[:, None] & in_n[None, :])


@triton.jit
def ssd_buffered_kernel(
    S, x, dt, A, B, C, D, z, dt_bias, slots, lengths, ring, y, stride: tl.constexpr, stride_ring: tl.constexpr,
    stride_D: tl.constexpr, low, high, T: tl.constexpr, P: tl.constexpr, N: tl.constexpr, HEADS_PER_GROUP: tl.constexpr,
    D_HEAD: tl.constexpr, SOFTPLUS: tl.constexpr, LIMIT: tl.constexpr, CAPACITY: tl.constexpr, WINDOW: tl.constexpr,
    OPEN: tl.constexpr, FLUSHED: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_L: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_P: tl.constexpr, TILES: tl.constexpr, HEADS: tl.constexpr, BLOCK_H: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """OPEN: rows that are not due are processed; FLUSHED: rows that are due are."""
    b = tl.program_id(2).to(tl.int64)
    h_0 = tl.program_id(1).to(tl.int64) * HEADS
    slot, length, count = _slot_length_count(slots, lengths, ring.held, b, T)
    due = (length > 0) & is_due(count, WINDOW, CAPACITY)
    if (slot >= 0) & ((OPEN & FLUSHED) | (due == FLUSHED)):
        g = h_0 // HEADS_PER_GROUP
        e, t, n, k = tl.arange(0, BLOCK_L), tl.arange(0, BLOCK_T), tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_H)
        in_n, in_h, heads = n < N, k < HEADS, h_0 + k
        p = tl.program_id(0).to(tl.int64) * (TILES * BLOCK_P) + tl.arange(0, BLOCK_P)
        at_S = S + slot * stride.S.s
        if HEADS * TILES == 1:
            early = load_rows(at_S + h_0 * stride.S.h, p * stride.S.p, n, p < P, in_n)
        past, new, real, at, row, col, is_t, sees = _entries_and_tokens(ring.origin, slot, e, t, count, length, CAPACITY)
        at_B, B_e, C_t = _load_entries_and_queries(
            B, C, ring.B, slot, b, g, at, row, col, n, past, new, real, in_n, stride, stride_ring
        )
        at_dt = ring.dt + slot * stride_ring.dt.s
        steps, decays = _window_steps(
            at_dt, dt, A, dt_bias, b, at, row, heads, past, new, in_h, low, high, stride, stride_ring, SOFTPLUS, LIMIT,
            BLOCK_H,
        )  # fmt: skip
        if tl.program_id(0) == 0:
            _keep_window(at_dt, at_B, steps, B_e, h_0, heads, at, n, new, in_h, in_n, stride_ring, HEADS_PER_GROUP)
        lds, G_e, G_t, since, B_f, scores, skips = _of_all_heads(
            steps, decays, B_e, C_t, D, heads, e, sees, past, in_h, stride_D, OPEN, FLUSHED, D_HEAD
        )
        for head in tl.range(0, HEADS, num_stages=STAGES):
            h, here = h_0 + head, k == head
            G_q, step, W = _weights_of_head(G_t, G_e, steps, here, scores, sees, is_t, skips, D_HEAD)
            at_x, at_x_t, rows_x = _rows_of_x(x, ring.x, slot, b, h, at, row, new, stride, stride_ring)
            for tile in tl.range(0, TILES, num_stages=STAGES):
                p_t = p + tile * BLOCK_P
                in_p = p_t < P
                x_e = load_at(rows_x, p_t, past | new, in_p)
                y_t = dot_left(W, x_e)
                at_tile = at_S + h * stride.S.h
                if HEADS * TILES > 1:
                    early = load_rows(at_tile, p_t * stride.S.p, n, in_p, in_n)
                state = early.to(tl.float32)
                y_t += tl.exp(G_q)[:, None] * dot_right(C_t, tl.trans(state))  # (1)
                _store_window(y_t, at_x_t, D, z, y, b, h, t, col, p_t, real, in_p, stride, stride_D, T, D_HEAD)
                tl.store(at_x + at[:, None] * stride_ring.x.l + p_t[None, :], x_e, mask=new[:, None] & in_p[None, :])  # (2)
                if FLUSHED:
                    _flush_tile(
                        at_tile, state, x_e, B_f, at_B, due, at, lds, since, step, here, past, p_t, n, in_p, in_n, stride.S.p,
                        stride_ring.B.l, not OPEN,
                    )  # fmt: skip
