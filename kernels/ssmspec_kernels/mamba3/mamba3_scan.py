"""Mamba-3, one or several tokens in one launch, token by token in registers.

    S', th', k', x' = the four pieces after a token,  y = its output          (1) to (5) of `mamba3_inputs`

A program owns one head of one row: it reads the four pieces once, processes the tokens in order, and writes them once, or not
at all. So a window is the same arithmetic as single tokens, bit for bit. The pieces are rounded to their storage type once,
at the end. One program for a head leaves a small batch with few programs; this was not measured on a GPU yet.

Layout: S (s, h, e) as in `mamba3_inputs`, a pool that rows index through `slots`; a row with a negative slot is padding and
is skipped. Bound by the bytes of the state: one read, and one write if it is kept.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..delta.delta_inputs import slot_of
from ..launch import AS_WRITTEN, strides
from ..row import Axes, Live, Slots, launcher, moved
from ..shared.strides import TokenStrides
from ..shared.tuning import H200
from . import mamba3_inputs as mamba3
from .mamba3_inputs import advance, check_window, load_state, read, store_pieces, window_strides


def traffic_bytes(
    b: int, t: int, g: int, h: int, p: int, n: int, f: int, r: int, *, state: int = 4, io: int = 2, z: bool = False,
    write_state: bool = True,
) -> int:  # fmt: skip
    """Bytes that must cross the memory bus for b live rows: state, inputs and outputs; parameters are left out.

    Units: bytes; `state` and `io` are the bytes of an element; `z` says that the outputs are gated.
    """
    axes = {"s": b, "b": b, "t": t, "g": g, "h": h, "p": p, "n": n, "f": f, "r": r, "e": p * n + f + r * n + p}
    return moved(mamba3_scan, axes, {"state": state, "io": io}, without=() if z else ("z",), kept=write_state)


@launcher
def mamba3_scan(
    axes: Axes,
    S: mamba3.State,
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
    D: mamba3.PerHead | None = None,
    z: mamba3.Heads | None = None,
    up: mamba3.Map | None = None,
    gate: mamba3.Map | None = None,
    down: mamba3.Map | None = None,
    A_floor: float = 1e-4,
    eps: float = 1e-5,
    halves: bool = False,
    slots: Slots | None = None,
    live: Live | None = None,
    write_state: bool = True,
    out: mamba3.Outputs | None = None,
    num_warps: int | None = None,
) -> Tensor:
    """Advances the states S[slots] by a window of tokens, in place, and returns the outputs (b, t, h, p).

    The inputs are those of the projection: x, z (b, t, h, p), dt, A, trap (b, t, h), angle (b, t, f), B, C (b, t, r, g, n).
    Norms (n), biases (h, r, n), dt_bias and D (h), the maps up, gate and down (h, r, p) are parameters; a map left out
    is 1. `slots` (b) gives the state of each row (None: row b has slot b); several rows may share one if `write_state` is
    off. `live` (b, t) marks the real tokens; a no-op's inputs are not read, and its output is 0. The output of a padding row
    is not written.

    Raises: ShapeMismatch, PrecisionError, ParameterError, before anything is written.
    """
    check_window(axes, A_floor, eps, slots)
    weights = B_norm, C_norm, B_bias, C_bias, dt_bias, D, up, gate, down
    y = torch.empty_like(x) if out is None else out
    launch(
        axes, S, (x, dt, A, trap, angle, B, C, z), weights, (slots, live, None, None, None, y), axes["t"], A_floor, eps,
        halves, write_state, num_warps,
    )  # fmt: skip
    return y


def launch(
    axes: dict[str, int],
    S: Tensor,
    inputs: tuple[Tensor | None, ...],
    weights: tuple[Tensor | None, ...],
    rest: tuple[Tensor | None, ...],
    tokens: int,
    floor: float,
    eps: float,
    halves: bool,
    write_state: bool,
    num_warps: int | None,
) -> None:
    """Starts the kernel; the arguments are already checked. `rest` is slots, live, places, bounds, fresh and the outputs."""
    _, live, places, bounds, _, y = rest
    h, p, n = axes["h"], axes["p"], axes["n"]
    rows = axes["b"] if bounds is None else bounds.shape[0] - 1
    mamba3_scan_kernel[(h, rows)](
        S, *inputs, *weights, *rest,
        *window_strides(S, *inputs, y), TokenStrides(*strides(live, 2)), TokenStrides(*strides(places, 2)), tokens,  # type: ignore[arg-type, call-arg]
        floor, eps,
        P=p, N=n, F=axes["f"], R=axes["r"], HEADS=h // axes["g"], HALVES=halves, WRITE_STATE=write_state,
        BLOCK_P=triton.next_power_of_2(p), BLOCK_J=triton.next_power_of_2(n // 2),
        num_warps=num_warps or warps(p, n), **AS_WRITTEN,
    )  # fmt: skip


def warps(p: int, n: int) -> int:
    """Warps of a program with a state of p times n numbers."""
    row = H200["mamba3_scan"]
    return max(1, min(row["warps"], triton.next_power_of_2(p * n) // row["states_a_warp"]))


@triton.jit
def mamba3_scan_kernel(
    S, x, dt, A, trap, angle, B, C, z, B_norm, C_norm, B_bias, C_bias, dt_bias, D, up, gate, down, slots, live, places,
    bounds, fresh, y, stride, stride_out, stride_live, stride_places, tokens, floor, eps,
    P: tl.constexpr, N: tl.constexpr, F: tl.constexpr, R: tl.constexpr, HEADS: tl.constexpr, HALVES: tl.constexpr,
    WRITE_STATE: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_J: tl.constexpr,
):  # fmt: skip
    """With `places` the state after every token is stored too; with `bounds` the tokens of row b are a part of one run."""
    h, b = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    slot = slot_of(slots, b)
    if slot >= 0:
        i, j = tl.arange(0, BLOCK_P), tl.arange(0, BLOCK_J)
        first, count, begins = tl.cast(0, tl.int64), tokens, False
        if bounds is not None:
            first = tl.load(bounds + b).to(tl.int64)
            count = (tl.load(bounds + b + 1) - first).to(tl.int32)
        if fresh is not None:
            begins = tl.load(fresh + b) != 0
        at_S = S + slot * stride.S.s + h * stride.S.h
        held = load_state(at_S, i, j, not begins if fresh is None else ~begins, P, N, F, R, HALVES)
        at_bias, at_query = B_bias + h * R * N, C_bias + h * R * N
        at_up = None if up is None else up + h * R * P
        at_gate = None if gate is None else gate + h * R * P
        at_down = None if down is None else down + h * R * P
        at_D = None if D is None else D + h
        for m in tl.range(count, disable_licm=R > 1):
            t = first + m
            real = True
            if live is not None:
                real = tl.load(live + b * stride_live.b + t * stride_live.t) != 0
            at_z = None if z is None else z + b * stride_out.z.b + t * stride_out.z.t + h * stride_out.z.h
            held, cos, sin = advance(
                held, x + b * stride.x.b + t * stride.x.t + h * stride.x.h,
                dt + b * stride.dt.b + t * stride.dt.t + h * stride.dt.h,
                A + b * stride.A.b + t * stride.A.t + h * stride.A.h,
                trap + b * stride.trap.b + t * stride.trap.t + h * stride.trap.h,
                angle + b * stride.angle.b + t * stride.angle.t,
                B + b * stride.B.b + t * stride.B.t + h // HEADS * stride.B.g, B_norm, at_bias, dt_bias + h, at_up, i, j,
                real, stride.B.r, floor, eps, P, N, F, R, HALVES, live is not None,
            )  # fmt: skip
            y_t = read(
                held, cos, sin, C + b * stride.C.b + t * stride.C.t + h // HEADS * stride.C.g, at_z, C_norm, at_query, at_D,
                at_up, at_gate, at_down, i, j, real, stride.C.r, eps, P, N, R, HALVES,
            )  # fmt: skip
            at_y = y + b * stride_out.y.b + t * stride_out.y.t + h * stride_out.y.h + i
            tl.store(at_y, y_t.to(y.dtype.element_ty), mask=i < P)
            if places is not None:
                place = tl.load(places + b * stride_places.b + t * stride_places.t).to(tl.int64)
                if place >= 0:
                    store_pieces(S + place * stride.S.s + h * stride.S.h, held, i, j, P, N, F, R, HALVES)
        if WRITE_STATE:
            store_pieces(at_S, held, i, j, P, N, F, R, HALVES)
