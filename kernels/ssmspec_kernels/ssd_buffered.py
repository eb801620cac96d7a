"""SSD (Mamba-2) from a checkpoint and a ring: verification of a window, with the flush of the rows that are due.

With S_0 the checkpoint, j the tokens held since it, s and t those of the window, G the sum of dt A from the checkpoint on,

    y_t  = exp(G_t) C_t S_0^T + sum_{j held} exp(G_t - G_j) dt_j (C_t . B_j) x_j
           + sum_{s<=t} exp(G_t - G_s) dt_s (C_t . B_s) x_s + D x_t,  then y silu(z)                     (1)
    ring: x, dt, B of the window's tokens behind the held ones                                           (2)
    S_0' = exp(G_h) S_0 + sum_{j held} exp(G_h - G_j) dt_j x_j B_j^T       where held + 2T > L            (3)

The outputs of every row come from the old checkpoint; (3) folds committed tokens only, never the window, which may yet be
rejected. What was accepted is told to the cursors afterwards (`cursors.commit_window`), which follow the same rule.

A program owns PROGRAM_P channels of one head of one row and walks them in tiles (p, n), as in `ssd_window`. S_0 (s, h, p, n)
is read once, and written on the rows that are due, in its own type. All products are as accurate as fp32 (`dots`): what
scales x and B in (3) is never rounded to their type. Bound by the bytes of the state and of the ring's live entries.

Source: ReplaySSM, algorithm 4; the exact products and the one path for all rows are ours.
"""

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from .cursors import check_window
from .dots import dot_inputs, dot_left, dot_right
from .functions import silu
from .launch import INDICES, d_strides, strides
from .ssd_inputs import check_inputs, load_rows, step_size, weights, window_tile
from .ssd_ring import Ring, entry_bytes, place
from .ssd_scan import traffic_bytes as scan_bytes


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
    flushes = sum(1 for count in held if count + 2 * window > capacity)
    entries = sum(held) + t * len(held)
    scan = scan_bytes(len(held), t, h, p, n, g, state=state, io=io, write_state=False, z=z)
    return scan + flushes * h * p * n * state + entries * entry_bytes(h, p, n, g, io=io)


def ssd_buffered(
    S: Tensor,
    ring: Ring,
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
    block_p: int | None = None,
    program_p: int | None = None,
    num_warps: int | None = None,
    stages: int | None = None,
) -> Tensor:
    """Read a window behind the history of S[slots], hold it in the ring, flush what is due; outputs (b, t, h, p): (1) to (3).

    `window` is the longest window that comes (T of the rule; None: t). `lengths` (b) are the real tokens of each row, first
    ones first; the outputs behind them are 0, and a row of length 0 is neither flushed nor extended. The cursors of `ring`
    are read, not moved: every layer of a model may share them. A slot may be named by one row only.

    Raises: ShapeMismatch, PrecisionError, ParameterError, RingOverflow (capacity < 2 window), before anything is written.
    """
    more = [("lengths", lengths, "b", INDICES), *ring.arguments()]
    axes = check_inputs(S, x, dt, A, B, C, D, z, dt_bias, dt_limit, slots, out, *more)
    b, t, h, p, n, g = (axes[k] for k in "bthpng")
    ring.check_types(x, B, C)
    window = t if window is None else window
    check_window(ring.capacity, window, t)
    y = x.new_empty(x.shape) if out is None else out
    given = block_p, program_p, num_warps, stages
    block, program, warps, depth = (
        mine or own for mine, own in zip(given, window_tile(p, b * h, 32 if ring.capacity <= 32 else 16, 4), strict=True)
    )
    each = triton.cdiv(program, block)
    _ssd_buffered_kernel[(triton.cdiv(p, each * block), h, b)](
        S, x, dt, A, B, C, D, z, dt_bias, slots, lengths, ring.x, ring.dt, ring.B, ring.origin, ring.held, y,
        *strides(S, 3), *strides(x, 3), *strides(dt, 3), *strides(B, 3), *strides(C, 3), *strides(z, 3), *strides(y, 3),
        *strides(ring.x, 3), *strides(ring.dt, 3), *strides(ring.B, 3), *d_strides(D), *dt_limit,
        T=t, P=p, N=n, HEADS_PER_GROUP=h // g, D_HEAD=D is not None and D.dim() == 1, SOFTPLUS=dt_softplus,
        LIMIT=dt_limit != (0.0, float("inf")), CAPACITY=ring.capacity, WINDOW=window,
        BLOCK_T=max(16, triton.next_power_of_2(t)), BLOCK_L=max(16, triton.next_power_of_2(ring.capacity - window)),
        BLOCK_N=max(16, triton.next_power_of_2(n)), BLOCK_P=block, TILES=each, STAGES=depth, num_warps=warps,
    )  # fmt: skip
    return y


@triton.jit
def _ssd_buffered_kernel(
    S, x, dt, A, B, C, D, z, dt_bias, slots, lengths, ring_x, ring_dt, ring_B, origin, held, y,
    stride_S_s, stride_S_h, stride_S_p, stride_x_b, stride_x_t, stride_x_h, stride_dt_b, stride_dt_t, stride_dt_h,
    stride_B_b, stride_B_t, stride_B_g, stride_C_b, stride_C_t, stride_C_g, stride_z_b, stride_z_t, stride_z_h,
    stride_y_b, stride_y_t, stride_y_h, stride_ring_x_s, stride_ring_x_l, stride_ring_x_h,
    stride_ring_dt_s, stride_ring_dt_l, stride_ring_dt_h, stride_ring_B_s, stride_ring_B_l, stride_ring_B_g,
    stride_D_h, stride_D_p, low, high,
    T: tl.constexpr, P: tl.constexpr, N: tl.constexpr, HEADS_PER_GROUP: tl.constexpr, D_HEAD: tl.constexpr,
    SOFTPLUS: tl.constexpr, LIMIT: tl.constexpr, CAPACITY: tl.constexpr, WINDOW: tl.constexpr, BLOCK_T: tl.constexpr,
    BLOCK_L: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_P: tl.constexpr, TILES: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(2).to(tl.int64)
    h = tl.program_id(1).to(tl.int64)
    slot = b
    if slots is not None:
        slot = tl.load(slots + b).to(tl.int64)
    if slot >= 0:
        g = h // HEADS_PER_GROUP
        i, l, n = tl.arange(0, BLOCK_T), tl.arange(0, BLOCK_L), tl.arange(0, BLOCK_N)
        t = i.to(tl.int64)
        in_n = n < N
        length = T
        if lengths is not None:
            length = tl.minimum(tl.load(lengths + b).to(tl.int32), T)
        real = i < length
        first = tl.load(origin + slot).to(tl.int32)
        count = tl.load(held + slot).to(tl.int32)
        past = l < count
        at_past, at_new = place(first + l, CAPACITY), place(first + count + i, CAPACITY)
        due = (count + 2 * WINDOW > CAPACITY) & (length > 0)
        decay = tl.load(A + h)
        bias = 0.0
        if dt_bias is not None:
            bias = tl.load(dt_bias + h).to(tl.float32)
        at_dt = ring_dt + slot * stride_ring_dt_s + h * stride_ring_dt_h
        at_B = ring_B + slot * stride_ring_B_s + g * stride_ring_B_g
        step_l = tl.load(at_dt + at_past * stride_ring_dt_l, mask=past, other=0.0)
        raw = tl.load(dt + b * stride_dt_b + t * stride_dt_t + h * stride_dt_h, mask=real, other=0.0)
        step = step_size(raw, real, bias, low, high, SOFTPLUS, LIMIT)
        B_l = load_rows(at_B, at_past * stride_ring_B_l, n, past, in_n)
        B_t = load_rows(B + b * stride_B_b + g * stride_B_g, t * stride_B_t, n, real, in_n)
        C_t = load_rows(C + b * stride_C_b + g * stride_C_g, t * stride_C_t, n, real, in_n)
        G_l, total = tl.cumsum(step_l * decay, axis=0), tl.sum(step_l * decay, axis=0)
        G = tl.cumsum(step * decay, axis=0)
        sees = (i[:, None] >= i[None, :]) & real[:, None] & real[None, :]
        W_l = weights(total + G, G_l, step_l, real[:, None], dot_inputs(C_t, tl.trans(B_l)))
        W = weights(G, G, step, sees, dot_inputs(C_t, tl.trans(B_t)))
        if D_HEAD:
            W = tl.where(i[:, None] == i[None, :], W + tl.load(D + h * stride_D_h).to(tl.float32), W)
        from_state = tl.exp(total + G)
        to_state = tl.exp(total - G_l) * step_l
        owns = real & (tl.program_id(0) == 0)
        tl.store(at_dt + at_new * stride_ring_dt_l, step, mask=owns)
        own_rows = (owns & (h % HEADS_PER_GROUP == 0))[:, None] & in_n[None, :]
        tl.store(at_B + at_new[:, None] * stride_ring_B_l + n[None, :], B_t, mask=own_rows)  # (2)
        at_S = S + slot * stride_S_s + h * stride_S_h
        at_ring = ring_x + slot * stride_ring_x_s + h * stride_ring_x_h
        at_y = y + b * stride_y_b + h * stride_y_h
        for tile in tl.range(0, TILES, num_stages=STAGES):
            p = (tl.program_id(0).to(tl.int64) * TILES + tile) * BLOCK_P + tl.arange(0, BLOCK_P)
            in_p = p < P
            state = load_rows(at_S, p * stride_S_p, n, in_p, in_n).to(tl.float32)
            x_l = load_rows(at_ring, at_past * stride_ring_x_l, p, past, in_p)
            x_t = load_rows(x + b * stride_x_b + h * stride_x_h, t * stride_x_t, p, real, in_p)
            y_t = dot_left(W, x_t) + dot_left(W_l, x_l) + from_state[:, None] * dot_right(C_t, tl.trans(state))  # (1)
            if D is not None and not D_HEAD:
                skip = tl.load(D + h * stride_D_h + p * stride_D_p, mask=in_p, other=0.0).to(tl.float32)
                y_t += skip[None, :] * x_t.to(tl.float32)
            if z is not None:
                y_t *= silu(load_rows(z + b * stride_z_b + h * stride_z_h, t * stride_z_t, p, real, in_p).to(tl.float32))
            in_y = (i < T)[:, None] & in_p[None, :]
            tl.store(at_y + t[:, None] * stride_y_t + p[None, :], y_t.to(y.dtype.element_ty), mask=in_y)
            new = real[:, None] & in_p[None, :]
            tl.store(at_ring + at_new[:, None] * stride_ring_x_l + p[None, :], x_t, mask=new)  # (2)
            if due:
                state = tl.exp(total) * state + dot_left(tl.trans(to_state[:, None] * x_l.to(tl.float32)), B_l)  # (3)
                inside = in_p[:, None] & in_n[None, :]
                tl.store(at_S + p[:, None] * stride_S_p + n[None, :], state.to(S.dtype.element_ty), mask=inside)
