"""Mamba-3 from a checkpoint and a ring: verification of a window, with the flush of the rows that are due.

    S_h, th_h, k_h, x_h = the four pieces after the held entries, from the checkpoint                     (1)
    y_s  = the output of token s of the window, from (1) on                0 after a row's real tokens       (2)
    ring: the window's tokens after the held ones                                                         (3)
    checkpoint' = (1)                                                      if held + 2T > L                  (4)

(4) adds committed tokens only, never the window, which may still be rejected. The cursors are updated with the accepted
tokens afterwards (`cursors.commit_window`), by the same rule. A program owns one head of one row, and walks over the entries
and the window in order, as `mamba3_scan`: the state is read once and written only where due, and the bits are those of
single tokens. An entry costs a token's arithmetic at every window; whether a product of matrices would cost less was not
measured.

Layout: S (s, h, e), the ring in `mamba3_ring`; rows through `slots`, a negative slot is padding and is skipped.
Bound by the bytes of the state, with many entries by their arithmetic. Source: ReplaySSM, algorithm 8.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..delta.ring.delta_ring import place
from ..launch import AS_WRITTEN
from ..row import Axes, Lengths, Slots, launcher
from ..shared.cursors import check_window as check_ring
from ..shared.cursors import flushes, is_due
from ..shared.flush_order import row_at
from . import mamba3_inputs as mamba3
from .mamba3_inputs import advance, check_window, load_state, read, store_pieces, window_strides
from .mamba3_ring import Ring, appended, replayed
from .mamba3_scan import traffic_bytes as scan_bytes
from .mamba3_scan import warps


def traffic_bytes(
    held: Sequence[int], t: int, g: int, h: int, p: int, n: int, f: int, r: int, *, capacity: int, window: int,
    state: int = 4, io: int = 2, z: bool = False,
) -> int:  # fmt: skip
    """Bytes that must cross the memory bus for live rows with `held` entries each and t real tokens; cursors are left out.

    Units: bytes; `state` and `io` are the bytes of an element, in the ring too; `z` says that the outputs are gated.
    """
    entry = (h * (p + 3) + f + r * g * n) * io
    whole = h * (p * n + f + r * n + p) * state
    read_ = scan_bytes(len(held), t, g, h, p, n, f, r, state=state, io=io, z=z, write_state=False)
    return read_ + sum(held) * entry + len(held) * t * entry + flushes(held, window=window, capacity=capacity) * whole


@launcher
def mamba3_buffered(
    axes: Axes,
    S: mamba3.State,
    ring: Ring,
    x: mamba3.Heads,
    dt: mamba3.PerHeads,
    A: mamba3.PerHeads,
    trap: mamba3.PerHeads,
    angle: mamba3.Angles,
    B: mamba3.Projs,
    C: mamba3.Projs,
    B_norm: mamba3.Norm,
    C_norm: mamba3.Norm,
    B_bias: mamba3.RankBias,
    C_bias: mamba3.RankBias,
    dt_bias: mamba3.PerHead,
    *,
    window: int | None = None,
    D: mamba3.PerHead | None = None,
    z: mamba3.Heads | None = None,
    up: mamba3.Map | None = None,
    gate: mamba3.Map | None = None,
    down: mamba3.Map | None = None,
    A_floor: float = 1e-4,
    eps: float = 1e-5,
    halves: bool = False,
    slots: Slots | None = None,
    lengths: Lengths | None = None,
    out: mamba3.Outputs | None = None,
    num_warps: int | None = None,
) -> Tensor:
    """Reads a window after the history of S[slots], stores it in the ring, flushes what is due: (1) to (4). Returns the
    outputs (b, t, h, p).

    The inputs and parameters are those of `mamba3_scan`. `window` is the longest window (T of the rule; None: t). `lengths`
    (b) counts the real tokens of each row, which come first; the outputs after them are 0, and a row of length 0 is neither
    flushed nor extended. The cursors of `ring` are read, not updated: every layer of a model may share them. Only one row may
    use a slot.

    Raises: ShapeMismatch, PrecisionError, ParameterError, RingOverflow (capacity < 2 window), before anything is written.
    """
    check_window(axes, A_floor, eps, slots)
    weights = B_norm, C_norm, B_bias, C_bias, dt_bias, D, up, gate, down
    h, p, n = axes["h"], axes["p"], axes["n"]
    window = axes["t"] if window is None else window
    check_ring(ring.capacity, window, axes["t"])
    y = torch.empty_like(x) if out is None else out
    _mamba3_buffered_kernel[(h, axes["b"])](
        S, ring.tensors, x, dt, A, trap, angle, B, C, z, *weights, slots, lengths, y,
        *window_strides(S, x, dt, A, trap, angle, B, C, z, y), ring.strides, A_floor, eps,
        T=axes["t"], P=p, N=n, F=axes["f"], R=axes["r"], HEADS=h // axes["g"], HALVES=halves, WINDOW=window,
        CAPACITY=ring.capacity, BLOCK_P=triton.next_power_of_2(p), BLOCK_J=triton.next_power_of_2(n // 2),
        num_warps=num_warps or warps(p, n), **AS_WRITTEN,
    )  # fmt: skip
    return y


@triton.jit
def _mamba3_buffered_kernel(
    S, ring, x, dt, A, trap, angle, B, C, z, B_norm, C_norm, B_bias, C_bias, dt_bias, D, up, gate, down, slots, lengths, y,
    stride, stride_out, stride_ring, floor, eps,
    T: tl.constexpr, P: tl.constexpr, N: tl.constexpr, F: tl.constexpr, R: tl.constexpr, HEADS: tl.constexpr,
    HALVES: tl.constexpr, WINDOW: tl.constexpr, CAPACITY: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_J: tl.constexpr,
):  # fmt: skip
    h, b = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    slot, length, first, count = row_at(b, slots, lengths, ring.origin, ring.held, T)
    if slot >= 0:
        i, j = tl.arange(0, BLOCK_P), tl.arange(0, BLOCK_J)
        at_S = S + slot * stride.S.s + h * stride.S.h
        at_bias, at_query = B_bias + h * R * N, C_bias + h * R * N
        at_up = None if up is None else up + h * R * P
        at_gate = None if gate is None else gate + h * R * P
        at_down = None if down is None else down + h * R * P
        at_D = None if D is None else D + h
        held = load_state(at_S, i, j, True, P, N, F, R, HALVES)
        held = replayed(
            held, ring, stride_ring, slot, h, first, count, B_norm, at_bias, dt_bias + h, at_up, i, j, floor, eps,
            P, N, F, R, HEADS, HALVES, CAPACITY,
        )  # (1)  # fmt: skip
        if (length > 0) & is_due(count, WINDOW, CAPACITY):
            store_pieces(at_S, held, i, j, P, N, F, R, HALVES)  # (4)
        for m in tl.range(T, disable_licm=R > 1):
            t, real = tl.cast(m, tl.int64), m < length
            at_z = None if z is None else z + b * stride_out.z.b + t * stride_out.z.t + h * stride_out.z.h
            at_x, at_dt = x + b * stride.x.b + t * stride.x.t + h * stride.x.h, dt + b * stride.dt.b + t * stride.dt.t
            at_A, at_trap = A + b * stride.A.b + t * stride.A.t, trap + b * stride.trap.b + t * stride.trap.t
            at_dt, at_A, at_trap = at_dt + h * stride.dt.h, at_A + h * stride.A.h, at_trap + h * stride.trap.h
            at_angle = angle + b * stride.angle.b + t * stride.angle.t
            at_B = B + b * stride.B.b + t * stride.B.t + h // HEADS * stride.B.g
            held, cos, sin = advance(
                held, at_x, at_dt, at_A, at_trap, at_angle, at_B, B_norm, at_bias, dt_bias + h, at_up, i, j, real,
                stride.B.r, floor, eps, P, N, F, R, HALVES, lengths is not None,
            )  # fmt: skip
            y_t = read(
                held, cos, sin, C + b * stride.C.b + t * stride.C.t + h // HEADS * stride.C.g, at_z, C_norm, at_query, at_D,
                at_up, at_gate, at_down, i, j, real, stride.C.r, eps, P, N, R, HALVES,
            )  # (2)  # fmt: skip
            at_y = y + b * stride_out.y.b + t * stride_out.y.t + h * stride_out.y.h + i
            tl.store(at_y, y_t.to(y.dtype.element_ty), mask=i < P)
            appended(
                ring, stride_ring, slot, h, place(first + count + m, CAPACITY), at_x, at_dt, at_A, at_trap, at_angle, at_B,
                i, j, real, stride.B.r, P, N, F, R, HEADS,
            )  # (3)  # fmt: skip
