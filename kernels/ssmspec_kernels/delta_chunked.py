"""The gated delta rule, a window of 1 to 32 tokens through matrix products and a triangular solve (WY, or UT, transform).

    G_i  = sum of g up to i                                                                              (1)
    A_ij = beta_i scores(k)_ij    for j < i, else 0             `scores`, `decayed`: see `delta_window`  (2)
    (I + A) U = beta (V - decayed(k) S)                         what each token writes                   (3)
    o    = decayed(q) S + scores(q) U                                                                    (4)
    S'   = diag(exp G_T) S + sum_j diag(exp(G_T - G_j)) k^_j u_j^T                                       (5)

No token waits for a state: the state meets all tokens in one product for the keys and one for the queries, in fp32 (`dots`).
A no-op token has g = 0 and q = k = v = 0, so that nothing is written whatever its beta.

A program owns v channels of one value head of one row, with all of k. It reads its tile of the state once and writes it at
most once, whatever the number of tokens. Layout: S (s, h, k, v), as in `delta_scan`. Bound by the bytes of the state.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ssmspec_ref.errors import ParameterError

from .delta_inputs import check_inputs, load_gate_params
from .delta_scan import traffic_bytes
from .delta_window import carried, check_one_type, from_state, load_window, norms, scores, substituted
from .dots import dot_both
from .launch import FLOATS, strides

__all__ = ["delta_chunked", "traffic_bytes"]

LONGEST = 32


def delta_chunked(
    S: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    A: Tensor | None = None,
    dt_bias: Tensor | None = None,
    l2_norm: bool = True,
    scale: float | None = None,
    eps: float = 1e-6,
    slots: Tensor | None = None,
    live: Tensor | None = None,
    write_state: bool = True,
    out: Tensor | None = None,
    block_v: int | None = None,
    num_warps: int | None = None,
) -> Tensor:
    """Advance the states S[slots] by a window of tokens, in place, and return the outputs (b, t, h, v): (1) to (5).

    The arguments are those of `delta_scan`; q, k and v have one type.

    Raises: ShapeMismatch, PrecisionError, ParameterError (more than 32 tokens), before anything is written.
    """
    more = ("live", live, "b t", (torch.bool,)), ("out", out, "b t h v", FLOATS)
    axes, scale = check_inputs(S, q, k, v, g, beta, A, dt_bias, slots, scale, eps, *more)
    check_one_type(q, k, v)
    b, t, groups, h = (axes[a] for a in "btgh")
    if t > LONGEST:
        raise ParameterError(f"the window holds {t} tokens; a launch takes up to {LONGEST}: cut it, or use delta_scan")
    o = torch.empty_like(v) if out is None else out
    block, warps = tile(axes["v"], t, g.dim() == 4)
    block, warps = block_v or block, num_warps or warps
    _delta_chunked_kernel[(triton.cdiv(axes["v"], block), h, b)](
        S, q, k, v, g, beta, A, dt_bias, slots, live, o,
        *strides(S, 3), *strides(q, 3), *strides(k, 3), *strides(v, 3), *strides(g, 3), *strides(beta, 3),
        *strides(o, 3), *strides(live, 2), *strides(dt_bias, 1), scale, eps,
        T=t, K=axes["k"], V=axes["v"], HEADS_PER_KEY=h // groups, CHANNEL=g.dim() == 4, L2_NORM=l2_norm,
        WRITE_STATE=write_state, SPLIT=q.dtype == torch.bfloat16, BLOCK_T=max(16, triton.next_power_of_2(t)),
        BLOCK_K=max(16, triton.next_power_of_2(axes["k"])), BLOCK_V=block, num_warps=warps,
    )  # fmt: skip
    return o


def tile(v: int, tokens: int, channel: bool) -> tuple[int, int]:
    """Value channels and warps of a program: more warps where more is held in registers beside the state."""
    return max(16, min(triton.next_power_of_2(v), 32)), 8 if channel or tokens > 16 else 4


@triton.jit
def _delta_chunked_kernel(
    S, q, k, v, g, beta, A, dt_bias, slots, live, o,
    stride_S_s, stride_S_h, stride_S_k, stride_q_b, stride_q_t, stride_q_g, stride_k_b, stride_k_t, stride_k_g,
    stride_v_b, stride_v_t, stride_v_h, stride_g_b, stride_g_t, stride_g_h, stride_beta_b, stride_beta_t, stride_beta_h,
    stride_o_b, stride_o_t, stride_o_h, stride_live_b, stride_live_t, stride_bias_h, scale, eps,
    T: tl.constexpr, K: tl.constexpr, V: tl.constexpr, HEADS_PER_KEY: tl.constexpr, CHANNEL: tl.constexpr,
    L2_NORM: tl.constexpr, WRITE_STATE: tl.constexpr, SPLIT: tl.constexpr, BLOCK_T: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(2).to(tl.int64)
    h = tl.program_id(1).to(tl.int64)
    slot = b
    if slots is not None:
        slot = tl.load(slots + b).to(tl.int64)
    if slot >= 0:
        t = tl.arange(0, BLOCK_T).to(tl.int64)
        i = tl.arange(0, BLOCK_K).to(tl.int64)
        j = tl.program_id(0).to(tl.int64) * BLOCK_V + tl.arange(0, BLOCK_V)
        in_k, in_v = i < K, j < V
        inside = in_k[:, None] & in_v[None, :]
        at_S = S + slot * stride_S_s + h * stride_S_h + i[:, None] * stride_S_k + j[None, :]
        state = tl.load(at_S, mask=inside, other=0.0).to(tl.float32)
        real = t < T
        if live is not None:
            real &= tl.load(live + b * stride_live_b + t * stride_live_t, mask=t < T, other=0) != 0
        decay, bias = load_gate_params(A, dt_bias, h, i, stride_bias_h, in_k, CHANNEL)
        q_t, k_t, v_t, g_t, beta_t = load_window(
            q + b * stride_q_b + (h // HEADS_PER_KEY) * stride_q_g, k + b * stride_k_b + (h // HEADS_PER_KEY) * stride_k_g,
            v + b * stride_v_b + h * stride_v_h, g + b * stride_g_b + h * stride_g_h,
            beta + b * stride_beta_b + h * stride_beta_h, A, decay, bias, real, t,
            stride_q_t, stride_k_t, stride_v_t, stride_g_t, stride_beta_t, i, j, in_k, in_v, CHANNEL,
        )  # fmt: skip
        G = tl.cumsum(g_t, axis=0)  # (1)
        r_q, r_k = norms(q_t, scale, eps, L2_NORM), norms(k_t, 1.0, eps, L2_NORM)
        before, up_to = t[:, None] > t[None, :], t[:, None] >= t[None, :]
        coupling = beta_t[:, None] * scores(k_t, r_k, G, k_t, r_k, G, before, T, CHANNEL)  # (2)
        U = beta_t[:, None] * (v_t - from_state(k_t, r_k, G, state, CHANNEL, SPLIT))
        U = substituted(coupling, U, T)  # (3)
        o_t = from_state(q_t, r_q, G, state, CHANNEL, SPLIT)
        o_t += dot_both(scores(q_t, r_q, G, k_t, r_k, G, up_to, T, CHANNEL), U, SPLIT)  # (4)
        at_o = o + b * stride_o_b + t[:, None] * stride_o_t + h * stride_o_h + j[None, :]
        tl.store(at_o, o_t.to(o.dtype.element_ty), mask=(t < T)[:, None] & in_v[None, :])
        if WRITE_STATE:
            state = carried(state, k_t, r_k, G, tl.sum(g_t, axis=0), U, CHANNEL, SPLIT)  # (5)
            tl.store(at_S, state.to(S.dtype.element_ty), mask=inside)
