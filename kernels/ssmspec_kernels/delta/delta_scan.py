"""The gated delta rule, one or several tokens in one launch, token by token in registers.

    g, beta, q^, k^ as in `delta_inputs` (1) (2)
    S- = diag(exp g) S                        (3)
    u  = beta (v - S-^T k^)                   (4)
    S' = S- + k^ u^T,   o = S'^T q^           (5)

(5) computes o from S-, in parallel with (4): o = S-^T q^ + (q^ k^) u, so that no sum over k waits for u. A program owns v
channels of one value head of one row, with all of k: it reads its tile of the state once, processes the tokens in order, and
writes it once, or not at all. So a window is the same arithmetic as single tokens. Everything is computed in fp32; the state
is rounded to its storage type once, at the end.

A lane holds 4 values adjacent in v and a run of k, one of LANES: sums over k begin within a lane and end with log2(LANES)
shuffles. q and k are normalized in place and reach the lanes as runs (`delta_inputs`).

Layout: S (s, h, k, v), a pool that rows index through `slots`; a row with a negative slot is padding and is skipped.
Bound by the bytes of the state: one read, and one write if it is kept. The cost of each further token is in
docs/explanation/tuning.md.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..launch import overlapped, strides
from ..row import Axes, Live, Slots, launcher, moved
from ..shared.strides import TokenStrides
from ..shared.tuning import H200
from . import delta_inputs as delta
from .delta_inputs import advance, check_inputs, gates, load_gate_params, load_token, rows, slot_of, window_strides


def traffic_bytes(
    b: int,
    t: int,
    g: int,
    h: int,
    k: int,
    v: int,
    *,
    state: int = 4,
    io: int = 2,
    gate: int = 4,
    write_state: bool = True,
    channel: bool = False,
) -> int:
    """Bytes that must cross the memory bus for b live rows: state, q, k, v, o, g and beta; parameters are left out.

    Units: bytes; `state`, `io` and `gate` are the bytes of an element; `gate` is that of g and beta.
    """
    axes = {"s": b, "b": b, "t": t, "g": g, "h": h, "k": k, "v": v}
    return moved(delta_scan, axes, {"state": state, "io": io, "gate": gate}, kept=write_state, form=int(channel))


@launcher
def delta_scan(
    axes: Axes,
    S: delta.State,
    q: delta.Keys,
    k: delta.Keys,
    v: delta.Values,
    g: delta.Gates,
    beta: delta.Strengths,
    *,
    A: delta.Decay | None = None,
    dt_bias: delta.GateBias | None = None,
    l2_norm: bool = True,
    scale: float | None = None,
    eps: float = 1e-6,
    slots: Slots | None = None,
    live: Live | None = None,
    write_state: bool = True,
    out: delta.Outputs | None = None,
    fused: bool = True,
    tiles: tuple[int, int, int] | None = None,
) -> Tensor:
    """Advances the states S[slots] by a window of tokens, in place, and returns the outputs (b, t, h, v): (1) to (5).

    `g` (b, t, h) or (b, t, h, k) is a log decay, `beta` (b, t, h); with `A` (h) both are given as projections
    (`delta_inputs`). `slots` (b) gives the state of each row (None: row b has slot b); several rows may share one if
    `write_state` is off. `live` (b, t) marks the real tokens; the output of a no-op is 0. The output of a padding row is not
    written. Unless `fused`, products are rounded before they are summed: the bits of a token do not depend on the number of
    tokens.

    Raises: ShapeMismatch, PrecisionError, ParameterError, before anything is written.
    """
    scale = check_inputs(axes, A, dt_bias, slots, scale, eps)
    block = tiles or tile(axes["k"], axes["v"], axes["t"], fused)
    most = registers(S, axes["k"], axes["t"]) if fused and g.dim() == 3 else None
    return launch_scan(
        axes, S, q, k, v, g, beta, A, dt_bias, slots, live, None, out, scale, eps, block, L2_NORM=l2_norm,
        WRITE_STATE=write_state, maxnreg=most, enable_fp_fusion=fused,
    )  # fmt: skip


def launch_scan(
    axes: Axes,
    S: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    A: Tensor | None,
    dt_bias: Tensor | None,
    slots: Tensor | None,
    live: Tensor | None,
    places: Tensor | None,
    out: Tensor | None,
    scale: float,
    eps: float,
    tiles: tuple[int, int, int],
    low: float | None = None,
    **options: Any,
) -> Tensor:
    """The scan of checked arguments, those of `delta_scan`; `places` are those of `delta_snapshots`, and with a lower bound
    `low` the option BOUNDED says whether there is one."""
    o = torch.empty_like(v) if out is None else out
    lanes, block, warps = tiles
    delta_scan_kernel[(triton.cdiv(axes["v"], block), axes["h"], axes["b"])](
        S, q, k, v, g, beta, A, dt_bias, slots, live, places, o,
        window_strides(S, q, k, v, g, beta, o, rows=True), TokenStrides(*strides(live, 2)),
        TokenStrides(*strides(places, 2)), *strides(dt_bias, 1), scale, eps, low,
        T=axes["t"], K=axes["k"], V=axes["v"], ROW=S.stride(2), HEADS_PER_KEY=axes["h"] // axes["g"], CHANNEL=g.dim() == 4,
        LANES=lanes, BLOCK_K=triton.next_power_of_2(axes["k"]), BLOCK_V=block, num_warps=warps, **options,
        **overlapped(S.device),
    )  # fmt: skip
    return o


def tile(k: int, v: int, tokens: int, fused: bool = True) -> tuple[int, int, int]:
    """Lanes along k, value channels, and warps of a program, as measured on an H200 at 128 x 128.

    The number of rows does not matter, nor that of tokens unless `fused`: other warps would sum norms in another order.
    """
    row = H200["delta_scan"]
    if not fused:
        lanes, block, warps = row["unfused_lanes"], row["unfused_block_v"], 1
    elif tokens == 1:
        lanes, block, warps = row["lanes"], row["step_block_v"], row["step_warps"]
    else:
        lanes, block, warps = row["lanes"], row["block_v"], 1
    return min(lanes, triton.next_power_of_2(k)), min(block, triton.next_power_of_2(v)), warps


def registers(S: Tensor, k: int, tokens: int) -> int | None:
    """The most registers of a lane: on sm_90 128 for a window, so that four warps share a scheduler
    (docs/explanation/tuning.md)."""
    hopper = S.is_cuda and torch.cuda.get_device_capability(S.device) == (9, 0)
    return H200["delta_scan"]["registers"] if hopper and tokens > 1 and k <= 128 else None


@triton.jit
def delta_scan_kernel(
    S, q, k, v, g, beta, A, dt_bias, slots, live, places, o,
    stride, stride_live, stride_places, stride_bias_h, scale, eps, low,
    T: tl.constexpr, K: tl.constexpr, V: tl.constexpr, ROW: tl.constexpr, HEADS_PER_KEY: tl.constexpr, CHANNEL: tl.constexpr,
    L2_NORM: tl.constexpr, WRITE_STATE: tl.constexpr, LANES: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
    OVERLAP: tl.constexpr, BOUNDED: tl.constexpr = False,
):  # fmt: skip
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
    b, h = tl.program_id(2).to(tl.int64), tl.program_id(1).to(tl.int64)
    slot = slot_of(slots, b)
    i = tl.arange(0, BLOCK_K)
    j = tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
    in_k = (i < K) | (K == BLOCK_K)
    in_v = (j < V) | (V % BLOCK_V == 0)
    decay, bias = load_gate_params(A, dt_bias, h, i, stride_bias_h, in_k, CHANNEL)
    at_q = q + b * stride.q.b + (h // HEADS_PER_KEY) * stride.q.g + i
    at_k = k + b * stride.k.b + (h // HEADS_PER_KEY) * stride.k.g + i
    at_v = v + b * stride.v.b + h * stride.v.h + j
    at_o = o + b * stride.o.b + h * stride.o.h + j
    at_g = g + b * stride.g.b + h * stride.g.h
    if CHANNEL:
        at_g += i
    at_beta = beta + b * stride.beta.b + h * stride.beta.h
    at_live = live
    if live is not None:
        at_live = live + b * stride_live.b
    real, q_t, k_t, v_t, g_t, beta_t = load_token(
        at_q, at_k, at_v, at_g, at_beta, at_live, 0, stride.q.t, stride.k.t, stride.v.t, stride.g.t, stride.beta.t,
        stride_live.t, in_k, in_v, CHANNEL,
    )  # fmt: skip
    if slot >= 0:
        row = rows(BLOCK_K, LANES)
        inside = ((row < K) | (K == BLOCK_K))[:, None] & in_v[None, :]
        at_S = S + slot * stride.S.s + h * stride.S.h + row[:, None].to(tl.int64) * ROW + j[None, :]
        state = tl.load(at_S, mask=inside, other=0.0).to(tl.float32)
        for t in range(T):
            # The next token is loaded before the output of this one is stored: a load does not pass a store.
            real_next, q_next, k_next, v_next, g_next, beta_next = real, q_t, k_t, v_t, g_t, beta_t
            if T > 1:
                real_next, q_next, k_next, v_next, g_next, beta_next = load_token(
                    at_q, at_k, at_v, at_g, at_beta, at_live, tl.minimum(t + 1, T - 1), stride.q.t, stride.k.t, stride.v.t,
                    stride.g.t, stride.beta.t, stride_live.t, in_k, in_v, CHANNEL,
                )  # fmt: skip
            g_t, beta_t = gates(g_t, beta_t, decay, bias, A, low, BOUNDED)  # (1)
            o_t, state = advance(state, real, q_t, k_t, v_t, g_t, beta_t, scale, eps, CHANNEL, L2_NORM, LANES)  # (2) to (5)
            tl.store(at_o + tl.cast(t, tl.int64) * stride.o.t, o_t.to(o.dtype.element_ty), mask=in_v)
            if places is not None:
                place = tl.load(places + b * stride_places.b + tl.cast(t, tl.int64) * stride_places.t).to(tl.int64)
                if place >= 0:
                    tl.store(at_S + (place - slot) * stride.S.s, state.to(S.dtype.element_ty), mask=inside)
            real, q_t, k_t, v_t, g_t, beta_t = real_next, q_next, k_next, v_next, g_next, beta_next
        if WRITE_STATE:
            tl.store(at_S, state.to(S.dtype.element_ty), mask=inside)
