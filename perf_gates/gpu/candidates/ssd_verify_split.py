"""Verification of SSD from a ring in two overlapping launches, for few rows: a candidate in place of `ssd_buffered`.

    y, ring, S_0'    as in `ssd_buffered`, (1) to (3), for windows of up to 8 tokens

In `ssd_buffered_short` every program goes through cursors, entries, scores and weights before its first product of the
state. Here a short launch does that once for a head: a program stores the weights of its tokens, and of the history if the
row is due, dt of the window, and for a group B of the window. The other launch has a program for each tile of 16 channels.
It starts once all programs of the first one have started, and until their weights are there it loads its tile, x and C, and
multiplies them; of a row that is due, it loads B of the history. So it holds no scores, and fewer registers: more programs
are resident.

The order of all sums is that of `ssd_buffered_short`. Layout: as in `ssd_buffered`; weights (b, h, w), in fp32.
Bound by the latency of the first launch, then by the bytes of the state.
"""

import torch
import triton
import triton.language as tl
import triton.language.extra.cuda  # griddepcontrol
from torch import Tensor

from perf_gates.static.kernel_modules import kernel_module
from ssmspec_ref.errors import ParameterError

INPUTS, CURSORS, ORDER, LAUNCH = (kernel_module(name) for name in ("ssd_inputs", "cursors", "flush_order", "launch"))
RING, TILE, OUTPUTS = (kernel_module(name) for name in ("ssd_ring", "ssd_state_tile", "ssd_tile_outputs"))
OPEN, FLUSH, DOTS = (kernel_module(name) for name in ("ssd_verify_open", "ssd_verify_flush", "dots"))
step_size, load_rows, is_due, row_at, place, load_at = (
    INPUTS.step_size, INPUTS.load_rows, CURSORS.is_due, ORDER.row_at, RING.place, RING.load_at
)  # fmt: skip
load_head, store_outputs, weights_by_entry = OUTPUTS.load_head, OUTPUTS.store_outputs, OUTPUTS.weights_by_entry
load_half, store_half, to_mma, permuted = TILE.load_half, TILE.store_half, TILE.to_mma, FLUSH.permuted
load_window, load_entries, append, dot_parts = OPEN.load_window, OPEN.load_entries, OPEN.append, OPEN.dot_parts
window_scores, head_weights, own_weights = FLUSH._window_scores, FLUSH._head_weights, FLUSH._own_weights
dot_inputs, dot_left, dot_onto, dot_right = DOTS.dot_inputs, DOTS.dot_left, DOTS.dot_onto, DOTS.dot_right
MOST_TOKENS = 8
CHANNELS = 16


def weights_of_a_head(capacity: int, t: int) -> int:
    """Numbers that the first launch stores for a head: (entries, tokens), tokens, history, and what is left of the state."""
    entries, history = (max(16, triton.next_power_of_2(n)) for n in (capacity, capacity - t))
    return 8 * entries + 8 + history + 8


def ssd_verify_split(
    S: Tensor,
    ring: object,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    *,
    window: int | None = None,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = True,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    slots: Tensor | None = None,
    lengths: Tensor | None = None,
    out: Tensor | None = None,
    weights: Tensor | None = None,
) -> Tensor:
    """As `ssd_buffered`, for windows of up to 8 tokens; `weights` (b, h, w) is memory for what the first launch stores.

    Raises: ShapeMismatch, PrecisionError, ParameterError, RingOverflow, before anything is written.
    """
    held: tuple[Tensor, ...] = ring.tensors  # type: ignore[attr-defined]
    strides, capacity = ring.strides, int(ring.capacity)  # type: ignore[attr-defined]
    more = [("lengths", lengths, "b", LAUNCH.INDICES), ("weights", weights, "b h w", (torch.float32,))]
    given = INPUTS.check_inputs(
        S, x, dt, A, B, C, D, z, dt_bias, dt_softplus, dt_limit, slots, out, *more, *ring.arguments()  # type: ignore[attr-defined]
    )  # fmt: skip
    b, t, h, p, n, g = given.sizes
    ring.check_types(x, B, C)  # type: ignore[attr-defined]
    window = t if window is None else window
    CURSORS.check_window(capacity, window, t)
    size = weights_of_a_head(capacity, t)
    if t > MOST_TOKENS or (weights is not None and weights.shape[2] != size):
        raise ParameterError(f"{t} tokens and weights {weights and tuple(weights.shape)}; give up to 8, and (b, h, {size})")
    y = torch.empty_like(x) if out is None else out
    kept = torch.empty(b, h, size, dtype=torch.float32, device=x.device) if weights is None else weights
    constant = kernel_module("strides").constant
    common = {
        "T": t, "N": n, "D_HEAD": given.skip_per_head, "CAPACITY": capacity, "WINDOW": window,
        "HEADS_PER_GROUP": h // g, "HALF_N": max(16, triton.next_power_of_2(n) // 2),
        "BLOCK_L": max(16, triton.next_power_of_2(capacity)), "BLOCK_F": max(16, triton.next_power_of_2(capacity - t)),
        "num_warps": 1, **LAUNCH.overlapped(y.device),
    }  # fmt: skip
    of_all = constant(INPUTS.window_strides(given, y)), constant(strides), constant(INPUTS.skip_strides(given))
    constants = given.constants
    weights_kernel[(h, b)](
        dt, A, B, C, D, dt_bias, slots, lengths, held, kept, *of_all, *dt_limit, h,
        SOFTPLUS=constants["SOFTPLUS"], LIMIT=constants["LIMIT"], **common,
    )  # fmt: skip
    tiles = triton.cdiv(p, CHANNELS)
    tiles_kernel[(tiles * h, b)](
        S, x, C, D, z, slots, lengths, held, kept, y, *of_all, h, P=p, BLOCK_P=CHANNELS, TILES=tiles, **common
    )
    return y


@triton.jit
def weights_kernel(
    dt, A, B, C, D, dt_bias, slots, lengths, ring, weights, stride, stride_ring, stride_D, low, high, heads,
    T: tl.constexpr, N: tl.constexpr, HEADS_PER_GROUP: tl.constexpr, D_HEAD: tl.constexpr, SOFTPLUS: tl.constexpr,
    LIMIT: tl.constexpr, CAPACITY: tl.constexpr, WINDOW: tl.constexpr, BLOCK_L: tl.constexpr, BLOCK_F: tl.constexpr,
    HALF_N: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Weights of the tokens of a head of a row, dt of the window, and B of the window for the first head of a group."""
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    h, b = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    slot, length, first, count = row_at(b, slots, lengths, ring.origin, ring.held, T)
    if slot >= 0:
        g, whole = h // HEADS_PER_GROUP, N == 2 * HALF_N
        B, C = B + b * stride.B.b + g * stride.B.g, C + b * stride.C.b + g * stride.C.g
        ring_B = ring.B + slot * stride_ring.B.s + g * stride_ring.B.g
        ring_dt = ring.dt + slot * stride_ring.dt.s + h * stride_ring.dt.h
        dt += b * stride.dt.b + h * stride.dt.h
        weights += (b * heads + h) * (8 * BLOCK_L + 16 + BLOCK_F)
        head = load_head(A, D, dt_bias, h, None, stride_D.h, D_HEAD)
        if (length > 0) & is_due(count, WINDOW, CAPACITY):
            _flushed_weights(
                dt, B, C, ring_dt, weights, head, stride, stride_ring, low, high, length, first, count, N, D_HEAD, SOFTPLUS,
                LIMIT, CAPACITY, BLOCK_L, BLOCK_F, HALF_N, whole,
            )  # fmt: skip
        else:
            _open_weights(
                dt, B, C, ring_B, ring_dt, weights, head, stride, stride_ring, low, high, length, first, count, N, D_HEAD,
                SOFTPLUS, LIMIT, CAPACITY, BLOCK_L, HALF_N, whole,
            )  # fmt: skip
        if h % HEADS_PER_GROUP == 0:
            append(B, stride.B.t, ring_B, stride_ring.B.l, length, first + count, N, 2 * HALF_N, CAPACITY)  # (2)


@triton.jit
def _open_weights(
    dt, B, C, ring_B, ring_dt, weights, head, stride, stride_ring, low, high, length, first, count, N: tl.constexpr,
    D_HEAD: tl.constexpr, SOFTPLUS: tl.constexpr, LIMIT: tl.constexpr, CAPACITY: tl.constexpr, BLOCK_L: tl.constexpr,
    HALF_N: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """W (entries, tokens) and exp(G_t), as in `verify_open`; dt of the window in the ring."""
    decay, bias, skip = head
    e, t = tl.arange(0, BLOCK_L), tl.arange(0, 8)
    i = e - count
    past, new, real = i < 0, (i >= 0) & (i < length), t < length
    at = place(first + e, CAPACITY)
    sees, own = (i[:, None] <= t[None, :]) & (past | new)[:, None] & real[None, :], i[:, None] == t[None, :]
    raw = tl.load(dt + i.to(tl.int64) * stride.dt.t, mask=new, other=0.0)
    step = tl.load(ring_dt + at * stride_ring.dt.l, mask=past, other=0.0)
    C_left = tl.trans(load_window(C, stride.C.t, length, 0, N, 8, HALF_N, WHOLE))
    C_right = tl.trans(load_window(C, stride.C.t, length, HALF_N, N, 8, HALF_N, WHOLE))
    entries = ring_B, stride_ring.B.l, first, count
    scores = dot_inputs(load_entries(entries, B, stride.B.t, length, 0, N, BLOCK_L, HALF_N, CAPACITY, WHOLE), C_left)
    scores += dot_inputs(load_entries(entries, B, stride.B.t, length, HALF_N, N, BLOCK_L, HALF_N, CAPACITY, WHOLE), C_right)
    scores = tl.where(sees, scores, 0.0)
    step += step_size(raw, new, bias, low, high, SOFTPLUS, LIMIT)
    tl.store(ring_dt + at * stride_ring.dt.l, step, mask=new)  # (2)
    G_e = tl.cumsum(step * decay, axis=0)
    G_t = tl.sum(tl.where(own, G_e[:, None], 0.0), axis=0)
    W = weights_by_entry(G_e, G_t, step, scores, sees, own, skip, D_HEAD)
    tl.store(weights + e[:, None] * 8 + t[None, :], W)
    tl.store(weights + 8 * BLOCK_L + t, tl.exp(G_t))


@triton.jit
def _flushed_weights(
    dt, B, C, ring_dt, weights, head, stride, stride_ring, low, high, length, first, count, N: tl.constexpr,
    D_HEAD: tl.constexpr, SOFTPLUS: tl.constexpr, LIMIT: tl.constexpr, CAPACITY: tl.constexpr, BLOCK_L: tl.constexpr,
    BLOCK_F: tl.constexpr, HALF_N: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """As in `verify_flush`: W (tokens, tokens), exp(G'_t), the weights of the history, and what is left of the state."""
    decay, bias, skip = head
    e, i, t = tl.arange(0, BLOCK_F), tl.arange(0, 16), tl.arange(0, 8)
    past, follows, new = e < count, e + 1 < count, i < length
    at, at_next = place(first + e, CAPACITY), place(first + e + 1, CAPACITY)
    at_new = place(tl.where(new, first + count + i, 0), CAPACITY)
    sees, own = (i[:, None] <= t[None, :]) & (t < length)[None, :], i[:, None] == t[None, :]
    raw = tl.load(dt + i.to(tl.int64) * stride.dt.t, mask=new, other=0.0)
    step = tl.load(ring_dt + at * stride_ring.dt.l, mask=past, other=0.0)
    behind = tl.load(ring_dt + at_next * stride_ring.dt.l, mask=follows, other=0.0)
    _, _, scores = window_scores(B, stride.B.t, C, stride.C.t, length, sees, N, HALF_N, WHOLE)
    weight, scale, own_step = head_weights(raw, step, behind, decay, bias, new, low, high, SOFTPLUS, LIMIT)
    tl.store(ring_dt + at_new * stride_ring.dt.l, own_step, mask=new)  # (2)
    W, growth = own_weights(own_step, decay, scores, sees, own, skip, D_HEAD)
    tl.store(weights + i[:, None] * 8 + t[None, :], W)
    tl.store(weights + 8 * BLOCK_L + t, growth)
    tl.store(weights + 8 * BLOCK_L + 8 + e, weight)
    tl.store(weights + 8 * BLOCK_L + 8 + BLOCK_F, scale)


@triton.jit
def tiles_kernel(
    S, x, C, D, z, slots, lengths, ring, weights, y, stride, stride_ring, stride_D, heads, P: tl.constexpr, T: tl.constexpr,
    N: tl.constexpr, HEADS_PER_GROUP: tl.constexpr, D_HEAD: tl.constexpr, CAPACITY: tl.constexpr, WINDOW: tl.constexpr,
    BLOCK_L: tl.constexpr, BLOCK_F: tl.constexpr, HALF_N: tl.constexpr, BLOCK_P: tl.constexpr, TILES: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    """Outputs of a tile (1), x of the window in the ring (2), and its new state if the row is due (3)."""
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
    h, b = (tl.program_id(0) // TILES).to(tl.int64), tl.program_id(1).to(tl.int64)
    slot, length, first, count = row_at(b, slots, lengths, ring.origin, ring.held, T)
    if slot >= 0:
        g, whole = h // HEADS_PER_GROUP, (P % BLOCK_P == 0) & (N == 2 * HALF_N)
        n, p_0 = tl.arange(0, HALF_N), tl.program_id(0) % TILES * BLOCK_P
        p = p_0 + tl.arange(0, BLOCK_P)
        in_p, at_S = (p < P) | whole, S + slot * stride.S.s + h * stride.S.h
        halves = (
            load_half(at_S, p, n, stride.S.p, in_p, N, whole), load_half(at_S, p, n + HALF_N, stride.S.p, in_p, N, whole)
        )  # fmt: skip
        C += b * stride.C.b + g * stride.C.g
        C_left = tl.trans(load_window(C, stride.C.t, length, 0, N, 8, HALF_N, whole))
        C_right = tl.trans(load_window(C, stride.C.t, length, HALF_N, N, 8, HALF_N, whole))
        x += b * stride.x.b
        ring_x = ring.x + slot * stride_ring.x.s + h * stride_ring.x.h
        weights += (b * heads + h) * (8 * BLOCK_L + 16 + BLOCK_F)
        at_row = (at_S, x, ring_x, weights, D, z, y, b, h, first, count, length)
        if (length > 0) & is_due(count, WINDOW, CAPACITY):
            ring_B = ring.B + slot * stride_ring.B.s + g * stride_ring.B.g
            _flushed_tile(
                at_row, ring_B, halves, C_left, C_right, p, p_0, in_p, stride, stride_ring, stride_D, P, T, N, D_HEAD,
                CAPACITY, BLOCK_L, BLOCK_F, HALF_N, OVERLAP, whole,
            )  # fmt: skip
        else:
            _open_tile(
                at_row, halves, C_left, C_right, p, in_p, stride, stride_ring, stride_D, T, D_HEAD, CAPACITY, BLOCK_L, HALF_N,
                BLOCK_P, OVERLAP,
            )  # fmt: skip
    elif OVERLAP:
        tl.extra.cuda.gdc_wait()  # this launch may not end before the one it overlaps


@triton.jit
def _open_tile(
    at_row, halves, C_left, C_right, p, in_p, stride, stride_ring, stride_D, T: tl.constexpr, D_HEAD: tl.constexpr,
    CAPACITY: tl.constexpr, BLOCK_L: tl.constexpr, HALF_N: tl.constexpr, BLOCK_P: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """(1) and (2) from the old state, as in `verify_open`."""
    _, x, ring_x, weights, D, z, y, b, h, first, count, length = at_row
    e, t = tl.arange(0, BLOCK_L), tl.arange(0, 8)
    i = e - count
    new, at = (i >= 0) & (i < length), place(first + e, CAPACITY)
    into = ring_x + at * stride_ring.x.l
    x_e = load_at(tl.where(new, x + h * stride.x.h + i.to(tl.int64) * stride.x.t, into), p, i < length, in_p)
    zeros = tl.zeros((BLOCK_P, 8), tl.float32)
    hi, mid, lo = dot_parts(zeros, zeros, zeros, to_mma(halves[0], HALF_N), C_left)
    hi, mid, lo = dot_parts(hi, mid, lo, to_mma(halves[1], HALF_N), C_right)
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
    W = tl.load(weights + e[:, None] * 8 + t[None, :])
    growth = tl.load(weights + 8 * BLOCK_L + t)
    y_t = growth[None, :] * (hi + (mid + lo)) + dot_right(tl.trans(x_e), W)  # (1)
    store_outputs(y_t, x, D, z, y, b, h, p, in_p, t < length, stride.x, stride_D, stride.z, stride.y, T, D_HEAD)
    tl.store(into[:, None] + p[None, :], x_e, mask=new[:, None] & in_p[None, :])  # (2)


@triton.jit
def _flushed_tile(
    at_row, ring_B, halves, C_left, C_right, p, p_0, in_p, stride, stride_ring, stride_D, P: tl.constexpr, T: tl.constexpr,
    N: tl.constexpr, D_HEAD: tl.constexpr, CAPACITY: tl.constexpr, BLOCK_L: tl.constexpr, BLOCK_F: tl.constexpr,
    HALF_N: tl.constexpr, OVERLAP: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """(1) to (3) from the new state, as in `verify_flush`."""
    at_S, x, ring_x, weights, D, z, y, b, h, first, count, length = at_row
    e, i, t, n = tl.arange(0, BLOCK_F), tl.arange(0, 16), tl.arange(0, 8), tl.arange(0, HALF_N)
    past, new, at, m = e < count, i < length, place(first + e, CAPACITY), n + HALF_N
    x_e = load_rows(ring_x, at * stride_ring.x.l, p, past, in_p)
    x_t = load_rows(x + h * stride.x.h, i.to(tl.int64) * stride.x.t, p, new, in_p)
    B_left = permuted(load_rows(ring_B, at * stride_ring.B.l, n, past, (n < N) | WHOLE), BLOCK_F, HALF_N)
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
    W, growth = tl.load(weights + i[:, None] * 8 + t[None, :]), tl.load(weights + 8 * BLOCK_L + t)
    weight, scale = tl.load(weights + 8 * BLOCK_L + 8 + e), tl.load(weights + 8 * BLOCK_L + 8 + BLOCK_F)
    weighted = tl.trans(weight[:, None] * x_e.to(tl.float32))
    state = dot_onto(scale * to_mma(halves[0], HALF_N), weighted, B_left)  # (3)
    store_half(at_S, state, p_0, 0, stride.S.p, True, P, N, HALF_N, False, WHOLE)
    y_t = dot_left(state, C_left)
    B_right = permuted(load_rows(ring_B, at * stride_ring.B.l, m, past, (m < N) | WHOLE), BLOCK_F, HALF_N)
    state = dot_onto(scale * to_mma(halves[1], HALF_N), weighted, B_right)  # (3)
    store_half(at_S, state, p_0, HALF_N, stride.S.p, True, P, N, HALF_N, False, WHOLE)
    y_t = growth[None, :] * dot_onto(y_t, state, C_right) + dot_right(tl.trans(x_t), W)  # (1)
    store_outputs(y_t, x, D, z, y, b, h, p, in_p, t < length, stride.x, stride_D, stride.z, stride.y, T, D_HEAD)
    at_new = place(tl.where(new, first + count + i, 0), CAPACITY)
    tl.store((ring_x + at_new * stride_ring.x.l)[:, None] + p[None, :], x_t, mask=new[:, None] & in_p[None, :])  # (2)
