"""Commit by replay for Mamba-3: the accepted tokens of a window enter the four pieces of the states of all layers.

    (S', th', k', x') = the token's update, once for each accepted token in their order     (1) to (4) of `mamba3_inputs`

The window was verified from S, which was only read (`mamba3_scan`, `mamba3_tree`); nothing of it is kept but its inputs.
Accepted are the first `advanced` tokens, or the nodes of a path. Of several drafts of a sequence, `rows` selects the accepted
one. A program owns one head of one row of one layer; the state has the bits of `mamba3_scan`. A row that accepted nothing is
neither read nor written. Layout: S (i, s, h, e), layer by layer, rows through `slots`; a row with a negative slot is padding
and is skipped. Bound by the bytes of the states: one read, one write.
Source: as `ssmspec_ref.backtrack.activation_replay`.
"""

from collections.abc import Sequence
from typing import Annotated, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from ssmspec_ref.errors import ShapeMismatch

from ..conv.conv_taps import Advanced, accepted_count, check_replay
from ..delta.delta_inputs import slot_of
from ..launch import AS_WRITTEN, check_pool, strides
from ..row import Axes, Slots, launcher, points, reads, updates, weighs
from ..shared.strides import LayerHeadStrides, LayerStepStrides, PathStrides
from .mamba3_inputs import advance, check_sizes, load_state, store_pieces
from .mamba3_scan import warps


class LayerPoolStrides(NamedTuple):
    """Strides of the packed states of all layers (i, s, h, e)."""

    i: int
    s: int
    h: int


class LayerTokenStrides(NamedTuple):
    """Strides of the angles of all layers (i, m, t, f)."""

    i: int
    m: int
    t: int


class LayerRankStrides(NamedTuple):
    """Strides of the keys of all layers (i, m, t, r, g, n)."""

    i: int
    m: int
    t: int
    r: int
    g: int


class CommitStrides(NamedTuple):
    """Strides of the states of all layers and of the inputs of a window."""

    S: LayerPoolStrides
    x: LayerHeadStrides
    dt: LayerStepStrides
    A: LayerStepStrides
    trap: LayerStepStrides
    angle: LayerTokenStrides
    B: LayerRankStrides
    path: PathStrides


def traffic_bytes(
    advanced: Sequence[int], layers: int, g: int, h: int, p: int, n: int, f: int, r: int, *, state: int = 4, io: int = 2
) -> int:
    """Bytes that must cross the memory bus for live rows that accepted `advanced` tokens; cursors and paths are left out.

    Units: bytes; `state` and `io` are the bytes of an element.
    """
    moved = sum(1 for accepted in advanced if accepted) * 2 * h * (p * n + f + r * n + p) * state
    return layers * (moved + sum(advanced) * io * (h * (p + 3) + f + r * g * n))


LayerPerHeads = Annotated[Tensor, reads("i m t h")]


@launcher
def mamba3_commit(
    axes: Axes,
    S: Annotated[Tensor, updates("i s h e")],
    x: Annotated[Tensor, reads("i m t h p")],
    dt: LayerPerHeads,
    A: LayerPerHeads,
    trap: LayerPerHeads,
    angle: Annotated[Tensor, reads("i m t f")],
    B: Annotated[Tensor, reads("i m t r g n")],
    B_norm: Annotated[Tensor, weighs("i n", layout="whole")],
    B_bias: Annotated[Tensor, weighs("i h r n", layout="whole")],
    dt_bias: Annotated[Tensor, weighs("i h", layout="whole")],
    *,
    up: Annotated[Tensor, weighs("i h r p", layout="whole")] | None = None,
    A_floor: float = 1e-4,
    eps: float = 1e-5,
    halves: bool = False,
    advanced: Advanced | None = None,
    path: Annotated[Tensor, points("b k")] | None = None,
    rows: Annotated[Tensor, points("b")] | None = None,
    slots: Slots | None = None,
    num_warps: int | None = None,
) -> None:
    """Advances the states S[:, slots] of all layers, in place, by the accepted ones of a window's inputs (i, m, t, ..).

    Accepted are the first `advanced` (b), or the nodes `path` (b, l) padded with -1. `rows` (b) gives the row of the inputs
    for each row (None: row b uses row b). Parameters are those of `mamba3_scan` with an axis of layers in front. Only one row
    may use a slot.

    Raises: ShapeMismatch, PrecisionError, ParameterError, before anything is written.
    """
    check_replay(x, advanced, path)
    check_sizes(axes, A_floor, eps)
    i, b, h, p, n, longest = axes["i"], axes["b"], axes["h"], axes["p"], axes["n"], axes.get("k", 1)
    check_pool(axes["s"], b, slots)
    if rows is None and axes["m"] != b:
        raise ShapeMismatch(f"the inputs have {axes['m']} rows for {b} sequences; give rows, or a row for each")
    per_head = (LayerStepStrides(*strides(a, 4)) for a in (dt, A, trap))
    of = CommitStrides(  # type: ignore[call-arg]
        LayerPoolStrides(*strides(S, 3)), LayerHeadStrides(*strides(x, 4)), *per_head, LayerTokenStrides(*strides(angle, 3)),  # type: ignore[arg-type]
        LayerRankStrides(*strides(B, 5)), PathStrides(*strides(path, 2)),
    )  # fmt: skip
    _mamba3_commit_kernel[(h, b, i)](
        S, x, dt, A, trap, angle, B, B_norm, B_bias, dt_bias, up, advanced, path, rows, slots, of, h, A_floor, eps,
        T=axes["t"], P=p, N=n, F=axes["f"], R=axes["r"], HEADS=h // axes["g"], HALVES=halves, LONGEST=longest,
        BLOCK_L=triton.next_power_of_2(longest), BLOCK_P=triton.next_power_of_2(p), BLOCK_J=triton.next_power_of_2(n // 2),
        num_warps=num_warps or warps(p, n), **AS_WRITTEN,
    )  # fmt: skip


@triton.jit
def _mamba3_commit_kernel(
    S, x, dt, A, trap, angle, B, B_norm, B_bias, dt_bias, up, advanced, path, taken_rows, slots, stride, heads, floor, eps,
    T: tl.constexpr, P: tl.constexpr, N: tl.constexpr, F: tl.constexpr, R: tl.constexpr, HEADS: tl.constexpr,
    HALVES: tl.constexpr, LONGEST: tl.constexpr, BLOCK_L: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_J: tl.constexpr,
):  # fmt: skip
    h, b = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    layer = tl.program_id(2).to(tl.int64)
    slot, m = slot_of(slots, b), slot_of(taken_rows, b)
    at_path = None if path is None else path + b * stride.path.b
    taken = accepted_count(advanced, at_path, b, T, stride.path.k, LONGEST, BLOCK_L).to(tl.int32)
    if (slot >= 0) & (taken > 0):
        i, j, own = tl.arange(0, BLOCK_P), tl.arange(0, BLOCK_J), layer * heads + h
        at_S = S + layer * stride.S.i + slot * stride.S.s + h * stride.S.h
        held = load_state(at_S, i, j, True, P, N, F, R, HALVES)
        at_up = None if up is None else up + own * R * P
        at_x = x + layer * stride.x.i + m * stride.x.m + h * stride.x.e
        at_dt = dt + layer * stride.dt.i + m * stride.dt.m + h * stride.dt.h
        at_A = A + layer * stride.A.i + m * stride.A.m + h * stride.A.h
        at_trap = trap + layer * stride.trap.i + m * stride.trap.m + h * stride.trap.h
        at_angle = angle + layer * stride.angle.i + m * stride.angle.m
        at_B = B + layer * stride.B.i + m * stride.B.m + h // HEADS * stride.B.g
        for k in tl.range(taken, disable_licm=R > 1):
            t, real = tl.cast(k, tl.int64), True
            if path is not None:
                t = tl.load(at_path + t * stride.path.k).to(tl.int64)
                real = (t >= 0) & (t < T)
            held, _, _ = advance(
                held, at_x + t * stride.x.t, at_dt + t * stride.dt.t, at_A + t * stride.A.t, at_trap + t * stride.trap.t,
                at_angle + t * stride.angle.t, at_B + t * stride.B.t, B_norm + layer * N, B_bias + own * R * N, dt_bias + own,
                at_up, i, j, real, stride.B.r, floor, eps, P, N, F, R, HALVES, path is not None,
            )  # fmt: skip
        store_pieces(at_S, held, i, j, P, N, F, R, HALVES)
