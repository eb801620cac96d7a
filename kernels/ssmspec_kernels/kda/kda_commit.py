"""Commit by replay of activations for Kimi Delta Attention: the accepted tokens of a window enter the states of all layers.

    g, beta as in `kda_inputs`;   k^ = k / |k|                                               (1)
    S- = diag(exp g) S,  u = beta (v - S-^T k^),  S' = S- + k^ u^T    over the accepted tokens    (2)

The window was verified from S, which was only read (`kda_scan`, `kda_tree`); nothing of it is kept but its activations.
Accepted are the first `advanced` tokens, or the nodes of a path, in its order. Of several drafts of a sequence, `rows`
selects the accepted one. A program owns v channels of one head of one row of one layer, as in `kda_scan`; the state has the
bits of a `kda_scan` that is not `fused`. A row that accepted nothing is neither read nor written. Layout: S (i, s, h, k, v),
layer by layer, rows through `slots`; a row with a negative slot is padding and is skipped.
Bound by the bytes of the states: one read, one write. Source: as `ssmspec_ref.backtrack.activation_replay`.
"""

from collections.abc import Sequence
from typing import Annotated

import triton
import triton.language as tl
from torch import Tensor

from ssmspec_ref.errors import ParameterError, ShapeMismatch

from ..conv.conv_taps import Advanced, Path, accepted_count, check_replay
from ..delta.delta_inputs import advance, gates, load_gate_params, rows, slot_of
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
from .kda_inputs import check_bound
from .kda_scan import unfused_tile


def traffic_bytes(
    advanced: Sequence[int], layers: int, g: int, h: int, k: int, v: int, *, state: int = 4, io: int = 2, gate: int = 4
) -> int:
    """Bytes that must cross the memory bus for live rows that accepted `advanced` tokens; cursors and paths are left out.

    Units: bytes; `state`, `io` and `gate` are the bytes of an element; `gate` is that of g and beta.
    """
    moved = sum(1 for accepted in advanced if accepted) * 2 * h * k * v * state
    return layers * (moved + sum(advanced) * (io * (g * k + h * v) + gate * h * (k + 1)))


@launcher
def kda_commit(
    axes: Axes,
    S: Annotated[Tensor, updates("i s h k v")],
    k: Annotated[Tensor, reads("i m t g k")],
    v: Annotated[Tensor, reads("i m t h v")],
    g: Annotated[Tensor, reads("i m t h k", size="gate")],
    beta: Annotated[Tensor, reads("i m t h", size="gate")],
    *,
    advanced: Advanced | None = None,
    path: Path | None = None,
    rows: Annotated[Tensor, points("b")] | None = None,
    A: Annotated[Tensor, weighs("i h", FP32, "dense")] | None = None,
    dt_bias: Annotated[Tensor, weighs("i h k", layout="dense")] | None = None,
    lower_bound: float | None = None,
    l2_norm: bool = True,
    eps: float = 1e-6,
    slots: Slots | None = None,
) -> None:
    """Advances the states S[:, slots] of all layers, in place, by the accepted ones of a window's inputs (i, m, t, ..).

    Accepted are the first `advanced` (b), or the nodes `path` (b, l) padded with -1. `rows` (b) gives the row of the inputs
    for each row (None: row b uses row b). With A (i, h) the gates are projections, as for `kda_scan`; dt_bias (i, h, k). Only
    one row may use a slot.

    Raises: ShapeMismatch, PrecisionError, ParameterError, before anything is written.
    """
    check_replay(k, advanced, path)
    check_bound(A, lower_bound)
    i, b, t, h, longest = axes["i"], axes["b"], axes["t"], axes["h"], axes.get("l", 1)
    divides(axes["g"], h)
    check_pool(axes["s"], b, slots)
    if rows is None and axes["m"] != b:
        raise ShapeMismatch(f"the inputs have {axes['m']} rows for {b} sequences; give rows, or a row for each")
    if not eps > 0 or (dt_bias is not None and A is None):
        raise ParameterError(f"eps is {eps}, and dt_bias {'without' if A is None else 'with'} A; give eps > 0, and A too")
    lanes, block, warps = unfused_tile(axes["k"], axes["v"], H200["kda_commit"]["block_v"])
    _kda_commit_kernel[(triton.cdiv(axes["v"], block) * h * b * i,)](
        S, k, v, g, beta, A, dt_bias, advanced, path, rows, slots, b, h,
        LayerStateStrides(*strides(S, 4)), LayerGroupStrides(*strides(k, 4)), LayerHeadStrides(*strides(v, 4)),
        LayerStepStrides(*strides(g, 4)), LayerStepStrides(*strides(beta, 4)), LayerStrides(*strides(A, 2)),
        LayerStrides(*strides(dt_bias, 2)), PathStrides(*strides(path, 2)), eps, lower_bound or 0.0,
        T=t, K=axes["k"], V=axes["v"], HEADS_PER_KEY=h // axes["g"], BOUNDED=lower_bound is not None, L2_NORM=l2_norm,
        LONGEST=longest, BLOCK_L=triton.next_power_of_2(longest), LANES=lanes,
        BLOCK_K=triton.next_power_of_2(axes["k"]), BLOCK_V=block, num_warps=warps, **AS_WRITTEN,
    )  # fmt: skip


@triton.jit
def _accepted(path, k, v, g, beta, n, stride_path, stride_k, stride_v, stride_g, stride_beta, in_k, in_v, T: tl.constexpr):
    """The n-th accepted token; zeros where the path names none of the window. The pointers are those of token 0."""
    node, real = tl.cast(n, tl.int64), True
    if path is not None:
        node = tl.load(path + node * stride_path).to(tl.int64)
        real = (node >= 0) & (node < T)
    k_t = tl.load(k + node * stride_k, mask=in_k & real, other=0.0)
    v_t = tl.load(v + node * stride_v, mask=in_v & real, other=0.0)
    g_t = tl.load(g + node * stride_g, mask=in_k & real, other=0.0).to(tl.float32)
    return real, k_t, v_t, g_t, tl.load(beta + node * stride_beta, mask=real, other=0.0).to(tl.float32)


@triton.jit
def _kda_commit_kernel(
    S, k, v, g, beta, A, dt_bias, advanced, path, taken_rows, slots, batch, heads, stride_S, stride_k, stride_v, stride_g,
    stride_beta, stride_A, stride_bias, stride_path, eps, low,
    T: tl.constexpr, K: tl.constexpr, V: tl.constexpr, HEADS_PER_KEY: tl.constexpr, BOUNDED: tl.constexpr,
    L2_NORM: tl.constexpr, LONGEST: tl.constexpr, BLOCK_L: tl.constexpr, LANES: tl.constexpr, BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
):  # fmt: skip
    TILES: tl.constexpr = (V + BLOCK_V - 1) // BLOCK_V
    program = tl.program_id(0)
    h, b = (program // TILES % heads).to(tl.int64), (program // TILES // heads % batch).to(tl.int64)
    layer = (program // TILES // heads // batch).to(tl.int64)
    slot, m = slot_of(slots, b), slot_of(taken_rows, b)
    at_path = None if path is None else path + b * stride_path.b
    taken = accepted_count(advanced, at_path, b, T, stride_path.k, LONGEST, BLOCK_L).to(tl.int32)
    if (slot >= 0) & (taken > 0):
        i, j = tl.arange(0, BLOCK_K), program % TILES * BLOCK_V + tl.arange(0, BLOCK_V)
        in_k, in_v = (i < K) | (K == BLOCK_K), (j < V) | (V % BLOCK_V == 0)
        row = rows(BLOCK_K, LANES)
        inside = ((row < K) | (K == BLOCK_K))[:, None] & in_v[None, :]
        at_S = S + layer * stride_S.i + slot * stride_S.s + h * stride_S.h + row[:, None].to(tl.int64) * stride_S.p
        at_S += j[None, :]
        state = tl.load(at_S, mask=inside, other=0.0).to(tl.float32)
        at_A = None if A is None else A + layer * stride_A.i
        at_bias = None if dt_bias is None else dt_bias + layer * stride_bias.i
        decay, bias = load_gate_params(at_A, at_bias, h, i, stride_bias.h, in_k, True)
        at_k = k + layer * stride_k.i + m * stride_k.m + h // HEADS_PER_KEY * stride_k.g + i
        at_v = v + layer * stride_v.i + m * stride_v.m + h * stride_v.e + j
        at_g = g + layer * stride_g.i + m * stride_g.m + h * stride_g.h + i
        at_beta = beta + layer * stride_beta.i + m * stride_beta.m + h * stride_beta.h
        real, k_t, v_t, g_t, beta_t = _accepted(
            at_path, at_k, at_v, at_g, at_beta, 0, stride_path.k, stride_k.t, stride_v.t, stride_g.t, stride_beta.t, in_k,
            in_v, T,
        )  # fmt: skip
        for n in range(taken):
            after = tl.minimum(n + 1, taken - 1)
            real_next, k_next, v_next, g_next, beta_next = _accepted(
                at_path, at_k, at_v, at_g, at_beta, after, stride_path.k, stride_k.t, stride_v.t, stride_g.t, stride_beta.t,
                in_k, in_v, T,
            )  # fmt: skip
            g_t, beta_t = gates(g_t, beta_t, decay, bias, at_A, low, BOUNDED)  # (1)
            _, state = advance(state, real, k_t, k_t, v_t, g_t, beta_t, 1.0, eps, True, L2_NORM, LANES)  # (2)
            real, k_t, v_t, g_t, beta_t = real_next, k_next, v_next, g_next, beta_next
        tl.store(at_S, state.to(S.dtype.element_ty), mask=inside)
