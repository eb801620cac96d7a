"""Commit of SSD states (Mamba-2): the accepted tokens of a window enter the states of all layers, in one launch.

    dt   = clip(softplus(dt_raw + dt_bias), dt_limit)                         (1)
    S_k' = exp(dt_k A) S + (dt_k x_k) B_k^T       over the accepted tokens k  (2)

The window was verified from S, which was only read (`ssd_window`, `ssd_tree_scan`); nothing of it is kept for the next one.
Accepted are the first `advanced` tokens, or the nodes of a path, in its order. Of several drafts of a sequence, `rows`
selects the accepted one. A program owns a tile (p, n) of one head of one row of one layer, as in `ssd_scan`; the state has
the bits of an `ssd_scan` that is not `fused`. A row that accepted nothing is neither read nor written. Layout: S (i, s, h, p,
n), layer by layer, rows through `slots`; a row with a negative slot is padding and is skipped. The heads of x (i, m, t, e, p)
may be fewer than those of S, each for h / e of them.
Bound by the bytes of the states: one read, one write.
"""

from collections.abc import Sequence
from typing import Annotated

import triton
import triton.language as tl
from torch import Tensor

from ssmspec_ref.errors import ShapeMismatch

from ..conv.conv_taps import Advanced, Path, accepted_count, check_replay
from ..launch import AS_WRITTEN, check_pool, divides, strides
from ..row import FP32, Axes, Slots, launcher, points, reads, updates, weighs
from ..shared.strides import (
    LayerGroupStrides,
    LayerHeadStrides,
    LayerStateStrides,
    LayerStepStrides,
    LayerStrides,
    PathStrides,
)
from ..shared.tuning import H200
from .ssd_inputs import check_limit, step_size
from .ssd_scan import element, state_rows


def traffic_bytes(
    advanced: Sequence[int], layers: int, e: int, h: int, p: int, n: int, g: int, *, state: int = 4, io: int = 2
) -> int:
    """Bytes that must cross the memory bus for live rows that accepted `advanced` tokens; cursors and paths are left out.

    Units: bytes; `state` and `io` are the bytes of an element.
    """
    moved = sum(1 for accepted in advanced if accepted) * 2 * h * p * n * state
    return layers * (moved + sum(advanced) * io * (e * p + g * n + h))


@launcher
def ssd_commit(
    axes: Axes,
    S: Annotated[Tensor, updates("i s h p n")],
    x: Annotated[Tensor, reads("i m t e p")],
    dt: Annotated[Tensor, reads("i m t h")],
    A: Annotated[Tensor, weighs("i h", FP32)],
    B: Annotated[Tensor, reads("i m t g n")],
    *,
    advanced: Advanced | None = None,
    path: Path | None = None,
    rows: Annotated[Tensor, points("b")] | None = None,
    dt_bias: Annotated[Tensor, weighs("i h")] | None = None,
    dt_softplus: bool = True,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    slots: Slots | None = None,
    block_p: int | None = None,
    num_warps: int | None = None,
) -> None:
    """Advances the states S[:, slots] of all layers, in place, by the accepted ones of a window's inputs (i, m, t, ..).

    Accepted are the first `advanced` (b), or the nodes `path` (b, l) padded with -1. `rows` (b) gives the row of the inputs
    for each row (None: row b uses row b). A and dt_bias (i, h). Only one row may use a slot.

    Raises: ShapeMismatch, PrecisionError, ParameterError, before anything is written.
    """
    check_replay(x, advanced, path)
    i, b, m, t, e, h, p, n, g = (axes[k] for k in "ibmtehpng")
    divides(e, h)
    divides(g, h)
    check_limit(dt_limit)
    check_pool(axes["s"], b, slots)
    if rows is None and m != b:
        raise ShapeMismatch(f"the inputs have {m} rows for {b} sequences; give rows, or a row for each")
    block, warps = tile(p)
    block, warps, longest = block_p or block, num_warps or warps, axes.get("l", 1)
    _ssd_commit_kernel[(triton.cdiv(p, block) * h * b * i,)](
        S, x, dt, A, B, dt_bias, advanced, path, rows, slots, b, h,
        LayerStateStrides(*strides(S, 4)), LayerHeadStrides(*strides(x, 4)), LayerStepStrides(*strides(dt, 4)),
        LayerStrides(*strides(A, 2)), LayerGroupStrides(*strides(B, 4)), LayerStrides(*strides(dt_bias, 2)),
        PathStrides(*strides(path, 2)), *dt_limit,
        T=t, P=p, N=n, HEADS_PER_X=h // e, HEADS_PER_GROUP=h // g, SOFTPLUS=dt_softplus,
        LIMIT=dt_limit != (0.0, float("inf")), LONGEST=longest, BLOCK_L=triton.next_power_of_2(longest),
        BLOCK_K=triton.next_power_of_2(min(t, longest) if path is not None else t), BLOCK_P=block,
        BLOCK_N=triton.next_power_of_2(n), RUN=min(32, triton.next_power_of_2(n)), num_warps=warps, **AS_WRITTEN,
    )  # fmt: skip


def tile(p: int) -> tuple[int, int]:
    """Channels and warps of a program."""
    row = H200["ssd_commit"]
    return min(triton.next_power_of_2(p), row["block_p"]), row["warps"]


@triton.jit
def _ssd_commit_kernel(
    S, x, dt, A, B, dt_bias, advanced, path, rows, slots, batch, heads, stride_S, stride_x, stride_dt, stride_A, stride_B,
    stride_bias, stride_path, low, high, T: tl.constexpr, P: tl.constexpr, N: tl.constexpr, HEADS_PER_X: tl.constexpr,
    HEADS_PER_GROUP: tl.constexpr, SOFTPLUS: tl.constexpr, LIMIT: tl.constexpr, LONGEST: tl.constexpr, BLOCK_L: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr, RUN: tl.constexpr,
):  # fmt: skip
    TILES: tl.constexpr = (P + BLOCK_P - 1) // BLOCK_P
    program = tl.program_id(0)
    tile_p = (program % TILES).to(tl.int64)
    h = (program // TILES % heads).to(tl.int64)
    b = (program // TILES // heads % batch).to(tl.int64)
    i = (program // TILES // heads // batch).to(tl.int64)
    slot, row = b, b
    if slots is not None:
        slot = tl.load(slots + b).to(tl.int64)
    if rows is not None:
        row = tl.load(rows + b).to(tl.int64)
    at_path = None if path is None else path + b * stride_path.b
    taken = accepted_count(advanced, at_path, b, T, stride_path.k, LONGEST, BLOCK_L).to(tl.int32)
    if (slot >= 0) & (taken > 0):
        runs: tl.constexpr = BLOCK_N // RUN
        p = tile_p * BLOCK_P + tl.arange(0, BLOCK_P)
        n = tl.arange(0, runs)[:, None] * RUN + tl.arange(0, RUN)[None, :]
        in_p, in_n = (p < P) | (P % BLOCK_P == 0), (n < N) | (N == BLOCK_N)
        row_p, col, inside = state_rows(tile_p * BLOCK_P, P, N, BLOCK_P, BLOCK_N, RUN)
        at_S = S + i * stride_S.i + slot * stride_S.s + h * stride_S.h + (row_p * stride_S.p)[:, None] + col
        state = tl.load(at_S, mask=inside, other=0.0, eviction_policy="evict_first").to(tl.float32)
        state = tl.reshape(state, (runs, BLOCK_P, RUN))
        at_x = x + i * stride_x.i + row * stride_x.m + h // HEADS_PER_X * stride_x.e + p
        at_B = B + i * stride_B.i + row * stride_B.m + h // HEADS_PER_GROUP * stride_B.g + n
        at_dt = dt + i * stride_dt.i + row * stride_dt.m + h * stride_dt.h
        k = tl.arange(0, BLOCK_K)
        node = k.to(tl.int64)
        live = k < taken
        if path is not None:
            node = tl.load(at_path + node * stride_path.k, mask=live, other=-1).to(tl.int64)
            live &= (node >= 0) & (node < T)
        raw = tl.load(at_dt + node * stride_dt.t, mask=live, other=0.0)
        decay = tl.load(A + i * stride_A.i + h * stride_A.h)
        bias = 0.0
        if dt_bias is not None:
            bias = tl.load(dt_bias + i * stride_bias.i + h * stride_bias.h).to(tl.float32)
        x_k, B_k = _token(at_path, at_x, at_B, 0, stride_path.k, stride_x.t, stride_B.t, in_p, in_n, T)
        steps = step_size(raw, live, bias, low, high, SOFTPLUS, LIMIT)  # (1)
        decays = tl.exp(steps * decay)
        for j in range(taken):
            after = tl.minimum(j + 1, taken - 1)
            x_next, B_next = _token(at_path, at_x, at_B, after, stride_path.k, stride_x.t, stride_B.t, in_p, in_n, T)
            update = (element(steps, k, j) * x_k)[:, None][None, :, :] * B_k[:, None, :]
            state = tl.fma(state, element(decays, k, j), update)  # (2)
            x_k, B_k = x_next, B_next
        state = tl.reshape(state, (runs * BLOCK_P, RUN))
        tl.store(at_S, state.to(S.dtype.element_ty), mask=inside, eviction_policy="evict_first")


@triton.jit
def _token(path, x, B, j, stride_k, stride_x, stride_B, in_p, in_n, T: tl.constexpr):
    """x and B of the j-th accepted token, in fp32; zeros where the path names none."""
    node = tl.cast(j, tl.int64)
    if path is not None:
        node = tl.load(path + node * stride_k).to(tl.int64)
        there = (node >= 0) & (node < T)
        in_p &= there
        in_n &= there
    x_k = tl.load(x + node * stride_x, mask=in_p, other=0.0).to(tl.float32)
    B_k = tl.load(B + node * stride_B, mask=in_n, other=0.0).to(tl.float32)
    return x_k, B_k
