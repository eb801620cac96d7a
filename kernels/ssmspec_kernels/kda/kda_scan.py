"""Kimi Delta Attention, one or several tokens in one launch, token by token in registers.

    g, beta as in `kda_inputs`;   q^ = scale q / |q|,  k^ = k / |k|     (1)
    S- = diag(exp g) S                                                 (2)
    u  = beta (v - S-^T k^)                                            (3)
    S' = S- + k^ u^T,   o = S'^T q^                                    (4)

A program owns v channels of one value head of one row, with all of k: it reads its tile of the state once, processes the
tokens in order, and writes it once, or not at all. So a window is the same arithmetic as single tokens. For an element of
the state a token takes four instructions: the decay, the two sums over k, which do not wait for each other
(`delta.delta_inputs`), and the write. Everything is computed in fp32; the state is rounded to its storage type once, at the
end.

Layout: S (s, h, k, v), a pool that rows index through `slots`; a row with a negative slot is padding and is skipped. Lanes
hold runs of k, as in `delta.delta_scan`. Bound by the bytes of the state: one read, and one write if it is kept.

Source: Kimi Linear, section 3; the order of the sums is that of `delta.delta_scan`.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..delta import delta_inputs as delta
from ..delta.delta_inputs import advance, load_gate_params, load_token, rows, window_strides
from ..launch import overlapped, strides
from ..row import Axes, Live, Slots, launcher, moved
from ..shared.strides import TokenStrides
from ..shared.tuning import H200
from .kda_inputs import KeyBias, KeyGates, check_kda, kda_gates


def traffic_bytes(
    b: int, t: int, g: int, h: int, k: int, v: int, *, state: int = 4, io: int = 2, gate: int = 4, write_state: bool = True
) -> int:
    """Bytes that must cross the memory bus for b live rows: state, q, k, v, o, g and beta; parameters are left out.

    Units: bytes; `state`, `io` and `gate` are the bytes of an element; `gate` is that of g and beta.
    """
    axes = {"s": b, "b": b, "t": t, "g": g, "h": h, "k": k, "v": v}
    return moved(kda_scan, axes, {"state": state, "io": io, "gate": gate}, kept=write_state)


@launcher
def kda_scan(
    axes: Axes,
    S: delta.State,
    q: delta.Keys,
    k: delta.Keys,
    v: delta.Values,
    g: KeyGates,
    beta: delta.Strengths,
    *,
    A: delta.Decay | None = None,
    dt_bias: KeyBias | None = None,
    lower_bound: float | None = None,
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
    """Advances the states S[slots] by a window of tokens, in place, and returns the outputs (b, t, h, v): (1) to (4).

    `g` (b, t, h, k) is a log decay, `beta` (b, t, h); with `A` (h) both are given as projections, and g is formed with
    `dt_bias` (h, k) and, if given, `lower_bound` (`kda_inputs`). `slots` (b) gives the state of each row (None: row b has
    slot b); several rows may share one if `write_state` is off. `live` (b, t) marks the real tokens; a no-op's output is 0.
    The output of a padding row is not written. Unless `fused`, products are rounded before they are summed, and all windows
    have one tile: the bits of a token do not depend on the number of tokens. `tiles`: see `tile`.

    Raises: ShapeMismatch, PrecisionError, ParameterError, before anything is written.
    """
    scale = check_kda(axes, A, dt_bias, lower_bound, slots, scale, eps)
    o = torch.empty_like(v) if out is None else out
    lanes, block, warps = tiles or tile(axes["k"], axes["v"], axes["t"], fused)
    kda_scan_kernel[(triton.cdiv(axes["v"], block), axes["h"], axes["b"])](
        S, q, k, v, g, beta, A, dt_bias, slots, live, None, o,
        window_strides(S, q, k, v, g, beta, o, rows=True), TokenStrides(*strides(live, 2)), TokenStrides(0, 0),
        *strides(dt_bias, 1), scale, eps, lower_bound or 0.0,
        T=axes["t"], K=axes["k"], V=axes["v"], ROW=S.stride(2), HEADS_PER_KEY=axes["h"] // axes["g"],
        BOUNDED=lower_bound is not None, L2_NORM=l2_norm, WRITE_STATE=write_state, LANES=lanes,
        BLOCK_K=triton.next_power_of_2(axes["k"]), BLOCK_V=block, num_warps=warps, enable_fp_fusion=fused,
        **overlapped(S.device),
    )  # fmt: skip
    return o


def tile(k: int, v: int, tokens: int, fused: bool = True) -> tuple[int, int, int]:
    """Lanes along k, value channels, and warps of a program.

    The number of rows does not matter, nor that of tokens unless `fused`: other warps would sum norms in another order.
    """
    row = H200["kda_scan"]
    if not fused:
        return unfused_tile(k, v, row["unfused_block_v"])
    block, warps = (row["step_block_v"], row["step_warps"]) if tokens == 1 else (row["block_v"], 1)
    return min(row["lanes"], triton.next_power_of_2(k)), min(block, triton.next_power_of_2(v)), warps


def unfused_tile(k: int, v: int, block: int) -> tuple[int, int, int]:
    """As `tile`, of up to `block` value channels, which do not change the bits: those of a scan that is not fused."""
    return min(H200["kda_scan"]["unfused_lanes"], triton.next_power_of_2(k)), min(block, triton.next_power_of_2(v)), 1


@triton.jit
def kda_scan_kernel(
    S, q, k, v, g, beta, A, dt_bias, slots, live, places, o,
    stride, stride_live, stride_places, stride_bias_h, scale, eps, low,
    T: tl.constexpr, K: tl.constexpr, V: tl.constexpr, ROW: tl.constexpr, HEADS_PER_KEY: tl.constexpr, BOUNDED: tl.constexpr,
    L2_NORM: tl.constexpr, WRITE_STATE: tl.constexpr, LANES: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
    b, h = tl.program_id(2).to(tl.int64), tl.program_id(1).to(tl.int64)
    slot = b
    if slots is not None:
        slot = tl.load(slots + b).to(tl.int64)
    i = tl.arange(0, BLOCK_K)
    j = tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
    in_k = (i < K) | (K == BLOCK_K)
    in_v = (j < V) | (V % BLOCK_V == 0)
    decay, bias = load_gate_params(A, dt_bias, h, i, stride_bias_h, in_k, True)
    at_q = q + b * stride.q.b + (h // HEADS_PER_KEY) * stride.q.g + i
    at_k = k + b * stride.k.b + (h // HEADS_PER_KEY) * stride.k.g + i
    at_v, at_o = v + b * stride.v.b + h * stride.v.h + j, o + b * stride.o.b + h * stride.o.h + j
    at_g, at_beta = g + b * stride.g.b + h * stride.g.h + i, beta + b * stride.beta.b + h * stride.beta.h
    at_live = live
    if live is not None:
        at_live = live + b * stride_live.b
    real, q_t, k_t, v_t, g_t, beta_t = load_token(
        at_q, at_k, at_v, at_g, at_beta, at_live, 0, stride.q.t, stride.k.t, stride.v.t, stride.g.t, stride.beta.t,
        stride_live.t, in_k, in_v, True,
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
                    stride.g.t, stride.beta.t, stride_live.t, in_k, in_v, True,
                )  # fmt: skip
            g_t, beta_t = kda_gates(g_t, beta_t, decay, bias, low, A, BOUNDED)  # (1)
            o_t, state = advance(state, real, q_t, k_t, v_t, g_t, beta_t, scale, eps, True, L2_NORM, LANES)  # (2) to (4)
            tl.store(at_o + tl.cast(t, tl.int64) * stride.o.t, o_t.to(o.dtype.element_ty), mask=in_v)
            if places is not None:
                place = tl.load(places + b * stride_places.b + tl.cast(t, tl.int64) * stride_places.t).to(tl.int64)
                if place >= 0:
                    tl.store(at_S + (place - slot) * stride.S.s, state.to(S.dtype.element_ty), mask=inside)
            real, q_t, k_t, v_t, g_t, beta_t = real_next, q_next, k_next, v_next, g_next, beta_next
        if WRITE_STATE:
            tl.store(at_S, state.to(S.dtype.element_ty), mask=inside)
