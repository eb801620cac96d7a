"""SSD (Mamba-2) from a checkpoint and a ring: verification of a window, with the flush of the rows that are due.

With S_0 the checkpoint, j the tokens held since it, s and t those of the window, G the sum of dt A from the checkpoint on,

    y_t  = exp(G_t) C_t S_0^T + sum_{j held} exp(G_t - G_j) dt_j (C_t . B_j) x_j
           + sum_{s<=t} exp(G_t - G_s) dt_s (C_t . B_s) x_s + D x_t,  then y silu(z)                     (1)
    ring: x, dt, B of the window's tokens behind the held ones                                           (2)
    S_0' = exp(G_h) S_0 + sum_{j held} exp(G_h - G_j) dt_j x_j B_j^T       where held + 2T > L            (3)

The outputs of every row come from the old checkpoint; (3) folds committed tokens only, never the window, which may yet be
rejected. What was accepted is told to the cursors afterwards (`cursors.commit_window`), which follow the same rule.

A program owns HEADS heads of one group of one row: what only B and C enter is computed once for all of them, what dt enters
once for a head, whose channels are then walked in tiles (p, n), the next tile on its way while one is worked on. Held tokens
and those of the window are one block of entries; products have p for rows, so that few tokens fill them with few zeros.
S_0 (s, h, p, n) is read once, and written on the rows that are due, in its own type. All products are as accurate as fp32
(`dots`): what scales x and B in (3) is never rounded to their type. Where rows are many, those that are due have a launch of
their own, in which the others end at once, and the reverse: (3) takes twice the registers of (1), and half the programs would
be resident if one kernel held both. Strides are constants of the kernel: as arguments their 64-bit products were a third of
all instructions.
Bound by the bytes of the state and of the ring's live entries, where as many programs are resident as hide their prologue.

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
from .ssd_inputs import check_inputs, load_rows, step_size
from .ssd_ring import Ring, entry_bytes, fold, place
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
    block_p: int = 16,
    block_k: int = 32,
    heads: int | None = None,
    tiles: int | None = None,
    num_warps: int = 1,
    stages: int | None = None,
    apart: bool | None = None,
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
    across = triton.cdiv(p, block_p)
    heads_, tiles_, stages_, apart_ = choice(b * h, across)
    each = min(tiles or tiles_, across)
    many = min(heads or heads_, h // g) if each == across else 1
    stages, apart = stages or stages_, apart_ if apart is None else apart
    for rows in ("open", "due") if apart else ("all",):
        many = 1 if rows == "due" else many
        programs = triton.cdiv(h // g, many) * triton.cdiv(across, each)
        _ssd_buffered_kernel[(programs, g, b)](
            S, x, dt, A, B, C, D, z, dt_bias, slots, lengths, ring.x, ring.dt, ring.B, ring.origin, ring.held, y,
            *strides(S, 3), *strides(x, 3), *strides(dt, 3), *strides(B, 3), *strides(C, 3), *strides(z, 3), *strides(y, 3),
            *strides(ring.x, 3), *strides(ring.dt, 3), *strides(ring.B, 3), *d_strides(D), *dt_limit,
            T=t, P=p, N=n, HEADS_PER_GROUP=h // g, D_HEAD=D is not None and D.dim() == 1, SOFTPLUS=dt_softplus,
            LIMIT=dt_limit != (0.0, float("inf")), CAPACITY=ring.capacity, WINDOW=window, ROWS=rows,
            BLOCK_T=max(8, triton.next_power_of_2(t)), BLOCK_L=max(16, triton.next_power_of_2(ring.capacity)),
            BLOCK_N=max(16, triton.next_power_of_2(n)),
            BLOCK_K=min(block_k, max(16, triton.next_power_of_2(n))), BLOCK_P=block_p,
            HEADS=many, TILES=each, STAGES=stages, num_warps=num_warps,
        )  # fmt: skip
    return y


def choice(rows: int, across: int) -> tuple[int, int, int, bool]:
    """Heads and tiles of a program, pipeline stages, and whether rows that are due have a launch of their own; `rows` counts
    heads of rows."""
    if rows >= 4096:
        return 4, across, 2, True
    return (1, across, 2, True) if rows >= 1024 else (1, 1, 1, False)


@triton.jit
def _ssd_buffered_kernel(
    S, x, dt, A, B, C, D, z, dt_bias, slots, lengths, ring_x, ring_dt, ring_B, origin, held, y, stride_S_s: tl.constexpr,
    stride_S_h: tl.constexpr, stride_S_p: tl.constexpr, stride_x_b: tl.constexpr, stride_x_t: tl.constexpr,
    stride_x_h: tl.constexpr, stride_dt_b: tl.constexpr, stride_dt_t: tl.constexpr, stride_dt_h: tl.constexpr,
    stride_B_b: tl.constexpr, stride_B_t: tl.constexpr, stride_B_g: tl.constexpr, stride_C_b: tl.constexpr,
    stride_C_t: tl.constexpr, stride_C_g: tl.constexpr, stride_z_b: tl.constexpr, stride_z_t: tl.constexpr,
    stride_z_h: tl.constexpr, stride_y_b: tl.constexpr, stride_y_t: tl.constexpr, stride_y_h: tl.constexpr,
    stride_ring_x_s: tl.constexpr, stride_ring_x_l: tl.constexpr, stride_ring_x_h: tl.constexpr,
    stride_ring_dt_s: tl.constexpr, stride_ring_dt_l: tl.constexpr, stride_ring_dt_h: tl.constexpr,
    stride_ring_B_s: tl.constexpr, stride_ring_B_l: tl.constexpr, stride_ring_B_g: tl.constexpr, stride_D_h: tl.constexpr,
    stride_D_p: tl.constexpr, low, high, T: tl.constexpr, P: tl.constexpr, N: tl.constexpr, HEADS_PER_GROUP: tl.constexpr,
    D_HEAD: tl.constexpr, SOFTPLUS: tl.constexpr, LIMIT: tl.constexpr, CAPACITY: tl.constexpr, WINDOW: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_L: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    BLOCK_P: tl.constexpr, HEADS: tl.constexpr, TILES: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(2).to(tl.int64)
    g = tl.program_id(1).to(tl.int64)
    slot = b
    if slots is not None:
        slot = tl.load(slots + b).to(tl.int64)
    length = T
    if lengths is not None:
        length = tl.minimum(tl.load(lengths + b).to(tl.int32), T)
    count = tl.load(held + slot, mask=slot >= 0, other=0).to(tl.int32)
    due = (count + 2 * WINDOW > CAPACITY) & (length > 0)
    if (slot >= 0) & ((ROWS == "all") | (due == (ROWS == "due"))):
        across: tl.constexpr = (P + BLOCK_P - 1) // BLOCK_P
        e, t, n = tl.arange(0, BLOCK_L), tl.arange(0, BLOCK_T), tl.arange(0, BLOCK_N)
        in_n = n < N
        first = tl.load(origin + slot).to(tl.int32)
        i = e - count
        past, new, real = i < 0, (i >= 0) & (i < length), t < length
        is_t = i[:, None] == t[None, :]
        sees = (i[:, None] <= t[None, :]) & (past | new)[:, None] & real[None, :]
        at, row, col = place(first + e, CAPACITY), i.to(tl.int64), t.to(tl.int64)
        at_B = ring_B + slot * stride_ring_B_s + g * stride_ring_B_g
        at_B_t, at_C_t = B + b * stride_B_b + g * stride_B_g, C + b * stride_C_b + g * stride_C_g
        scores = tl.zeros((BLOCK_L, BLOCK_T), dtype=tl.float32)
        for part in tl.static_range(BLOCK_N // BLOCK_K):
            k = part * BLOCK_K + tl.arange(0, BLOCK_K)
            B_e = load_rows(at_B, at * stride_ring_B_l, k, past, k < N)
            B_e = tl.where(past[:, None], B_e, load_rows(at_B_t, row * stride_B_t, k, new, k < N))
            scores += dot_inputs(B_e, load_rows(at_C_t, k, col * stride_C_t, k < N, real))
        C_t = load_rows(at_C_t, n, col * stride_C_t, in_n, real)
        if tl.program_id(0) == 0:
            B_t = load_rows(at_B_t, col * stride_B_t, n, real, in_n)
            at_new = place(first + count + t, CAPACITY)
            inside = real[:, None] & in_n[None, :]
            tl.store(at_B + at_new[:, None] * stride_ring_B_l + n[None, :], B_t, mask=inside)  # (2)
        parts: tl.constexpr = (across + TILES - 1) // TILES
        part = tl.program_id(0) % parts
        for head in tl.range(0, HEADS, num_stages=1):
            index = tl.program_id(0) // parts * HEADS + head
            live = index < HEADS_PER_GROUP
            h = g * HEADS_PER_GROUP + index
            at_S = S + slot * stride_S_s + h * stride_S_h
            at_x = ring_x + slot * stride_ring_x_s + h * stride_ring_x_h
            at_dt = ring_dt + slot * stride_ring_dt_s + h * stride_ring_dt_h
            at_x_t = x + b * stride_x_b + h * stride_x_h
            step = tl.load(at_dt + at * stride_ring_dt_l, mask=past & live, other=0.0)
            raw = tl.load(dt + b * stride_dt_b + row * stride_dt_t + h * stride_dt_h, mask=new & live, other=0.0)
            decay = tl.load(A + h, mask=live, other=0.0)
            bias = 0.0
            if dt_bias is not None:
                bias = tl.load(dt_bias + h, mask=live, other=0.0).to(tl.float32)
            step += step_size(raw, new, bias, low, high, SOFTPLUS, LIMIT)
            G, G_h = tl.cumsum(step * decay, axis=0), tl.sum(tl.where(past, step * decay, 0.0), axis=0)
            G_t = tl.sum(tl.where(is_t, G[:, None], 0.0), axis=0)
            W = tl.exp(tl.where(sees, G_t[None, :] - G[:, None], float("-inf"))) * step[:, None] * scores
            if D_HEAD:
                W = tl.where(is_t, W + tl.load(D + h * stride_D_h, mask=live, other=0.0).to(tl.float32), W)
            tl.store(at_dt + at * stride_ring_dt_l, step, mask=new & live & (part == 0))  # (2)
            for tile in tl.range(0, TILES, num_stages=STAGES):
                p = (part * TILES + tile) * BLOCK_P + tl.arange(0, BLOCK_P)
                in_p = (p < P) & live
                state = load_rows(at_S, p * stride_S_p, n, in_p, in_n).to(tl.float32)
                x_e = load_rows(at_x, at * stride_ring_x_l, p, past, in_p)
                x_e = tl.where(past[:, None], x_e, load_rows(at_x_t, row * stride_x_t, p, new, in_p))
                y_t = tl.exp(G_t)[None, :] * dot_left(state, C_t) + dot_right(tl.trans(x_e), W)  # (1)
                seen = in_p[:, None] & real[None, :]
                if D is not None and not D_HEAD:
                    skip = tl.load(D + h * stride_D_h + p * stride_D_p, mask=in_p, other=0.0).to(tl.float32)
                    x_t = tl.load(at_x_t + p[:, None] + col[None, :] * stride_x_t, mask=seen, other=0.0)
                    y_t += skip[:, None] * x_t.to(tl.float32)
                if z is not None:
                    at_z = z + b * stride_z_b + h * stride_z_h + p[:, None] + col[None, :] * stride_z_t
                    y_t *= silu(tl.load(at_z, mask=seen, other=0.0).to(tl.float32))
                at_y = y + b * stride_y_b + h * stride_y_h + p[:, None] + col[None, :] * stride_y_t
                tl.store(at_y, y_t.to(y.dtype.element_ty), mask=in_p[:, None] & (t < T)[None, :])
                tl.store(at_x + at[:, None] * stride_ring_x_l + p[None, :], x_e, mask=new[:, None] & in_p[None, :])  # (2)
                if ROWS != "open":  # noqa: SIM102, settled when the kernel is compiled
                    if due:
                        state = fold(
                            state, G_h, decay, at_x, at_dt, at_B, stride_ring_x_l, stride_ring_dt_l, stride_ring_B_l,
                            first, count, p, n, in_p, in_n, CAPACITY,
                        )  # fmt: skip
                        inside = in_p[:, None] & in_n[None, :]
                        tl.store(at_S + p[:, None] * stride_S_p + n[None, :], state.to(S.dtype.element_ty), mask=inside)
