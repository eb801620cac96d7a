"""What a window of the gated delta rule needs beside the state, for each head: the first of two launches (`delta_held`).

With G the sum of g over the tokens that a token sees, and r and `scores` of `delta_window`,

    M  = (I + A)^-1 diag(beta),   A_ij = beta_i scores(k)_ij where i sees j before it, else 0       (1)
    PM = scores(q) M                                                                                (2)
    from_q_t = r exp(G_t), from_k_t likewise            what a query, a key reads of the state      (3)
    to_t = r_t exp(G_T - G_t),   exp(G_T)               what a token writes, what is left           (4)

A token of a chain sees all before it, a node of a tree its ancestors; (4) is of use for chains only.

None of it knows the state, so that it is formed while nothing of the state is held: the second launch has products only.
(1) (2) are operands of those, and are kept as their three bf16 parts (`dots`): `parts` (b, h, n) has the rows of PM and then
those of M, three times. `factors` (b, h, n) has (3) and (4) in fp32.

|k|^2 and |q|^2 are diagonals of products, whose sums are those of the scores. A program is one warp and owns one head of one
row. Bound by the latency of its chain.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from .delta_inputs import gates, load_gate_params
from .delta_window import last
from .dots import dot_both, dot_inputs, split3
from .launch import overlapped, strides

LONGEST = 16
"""Tokens of a window: the rows of a product."""
PARTS, FACTORS = 3 * 2 * LONGEST * LONGEST, 4 * LONGEST


@dataclass(frozen=True)
class Solved:
    """(1) (2) as bf16 parts, (3) (4) in fp32."""

    parts: Tensor
    factors: Tensor


def scratch(b: int, h: int, device: torch.device) -> Solved:
    """Room for b rows of h heads."""
    return Solved(
        torch.empty(b, h, PARTS, dtype=torch.bfloat16, device=device),
        torch.empty(b, h, FACTORS, dtype=torch.float32, device=device),
    )


def traffic_bytes(b: int, h: int) -> int:
    """Bytes of (1) to (4) that this launch writes, whatever the number of tokens. Units: bytes.

    The next one reads as many of 9 to 16 tokens. Of up to 8 it reads the first 8 rows and columns of PM and M, and 8 of each
    factor; of a window that writes no state, neither to nor exp(G_T).
    """
    return b * h * (2 * PARTS + 4 * (3 * LONGEST + 1))


def takes(q: Tensor, g: Tensor) -> bool:
    """Whether the two launches take a window: bf16 activations, a gate per head, up to 16 tokens and 128 channels k."""
    return q.dtype == torch.bfloat16 and g.dim() == 3 and q.shape[1] <= LONGEST and q.shape[3] <= 128


def launch_solve(
    q: Tensor,
    k: Tensor,
    g: Tensor,
    beta: Tensor,
    A: Tensor | None,
    dt_bias: Tensor | None,
    slots: Tensor | None,
    live: Tensor | None,
    ancestors: Tensor | None,
    l2_norm: bool,
    scale: float,
    eps: float,
    into: Solved,
) -> None:
    """Form (1) to (4) of arguments that were checked; those of rows of padding are not written."""
    (b, t, groups, width), h = q.shape, beta.shape[2]
    _delta_solve_kernel[(h, b)](
        q, k, g, beta, A, dt_bias, slots, live, ancestors, into.parts, into.factors,
        *strides(q, 3), *strides(k, 3), *strides(g, 3), *strides(beta, 3), *strides(live, 2), *strides(ancestors, 3),
        *strides(into.parts, 2), *strides(into.factors, 2), *strides(dt_bias, 1), scale, eps,
        T=t, K=width, HEADS_PER_KEY=h // groups, L2_NORM=l2_norm, BLOCK_T=LONGEST,
        BLOCK_K=max(16, triton.next_power_of_2(width)), num_warps=1, **overlapped(q.device),
    )  # fmt: skip


@triton.jit
def store_parts(at, x, PART: tl.constexpr):
    """The three bf16 parts of x, each PART elements behind the one before."""
    hi, mid, lo = split3(x)
    tl.store(at, hi)
    tl.store(at + PART, mid)
    tl.store(at + 2 * PART, lo)


@triton.jit
def load_parts(at, mask, PART: tl.constexpr):
    """What `store_parts` wrote; zeros outside the mask."""
    hi, mid = tl.load(at, mask=mask, other=0.0), tl.load(at + PART, mask=mask, other=0.0)
    return hi, mid, tl.load(at + 2 * PART, mask=mask, other=0.0)


@triton.jit
def _delta_solve_kernel(
    q, k, g, beta, A, dt_bias, slots, live, ancestors, parts, factors,
    stride_q_b, stride_q_t, stride_q_g, stride_k_b, stride_k_t, stride_k_g, stride_g_b, stride_g_t, stride_g_h,
    stride_beta_b, stride_beta_t, stride_beta_h, stride_live_b, stride_live_t, stride_anc_b, stride_anc_t, stride_anc_j,
    stride_parts_b, stride_parts_h, stride_factors_b, stride_factors_h, stride_bias_h, scale, eps,
    T: tl.constexpr, K: tl.constexpr, HEADS_PER_KEY: tl.constexpr, L2_NORM: tl.constexpr, BLOCK_T: tl.constexpr,
    BLOCK_K: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    if OVERLAP:  # the next launch is placed once this one has waited: so what came before both is there for it too
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    b = tl.program_id(1).to(tl.int64)
    h = tl.program_id(0).to(tl.int64)
    slot = b
    if slots is not None:
        slot = tl.load(slots + b).to(tl.int64)
    if slot >= 0:
        t, i = tl.arange(0, BLOCK_T).to(tl.int64), tl.arange(0, BLOCK_K)
        real, in_k = t < T, i < K
        if live is not None:
            real &= tl.load(live + b * stride_live_b + t * stride_live_t, mask=t < T, other=0) != 0
        of_k = real[:, None] & in_k[None, :]
        at_q = q + b * stride_q_b + (h // HEADS_PER_KEY) * stride_q_g + t[:, None] * stride_q_t + i[None, :]
        at_k = k + b * stride_k_b + (h // HEADS_PER_KEY) * stride_k_g + t[:, None] * stride_k_t + i[None, :]
        q_t, k_t = tl.load(at_q, mask=of_k, other=0.0), tl.load(at_k, mask=of_k, other=0.0)
        at_beta = beta + b * stride_beta_b + h * stride_beta_h + t * stride_beta_t
        beta_t = tl.load(at_beta, mask=real, other=0.0).to(tl.float32)
        g_t = tl.load(g + b * stride_g_b + h * stride_g_h + t * stride_g_t, mask=real, other=0.0).to(tl.float32)
        decay, bias = load_gate_params(A, dt_bias, h, i, stride_bias_h, in_k, False)
        g_t, beta_t = gates(g_t, beta_t, decay, bias, A)
        g_t = tl.where(real, g_t, 0.0)
        same, sees = t[:, None] == t[None, :], t[None, :] <= t[:, None]
        if ancestors is not None:
            at_anc = ancestors + b * stride_anc_b + t[:, None] * stride_anc_t + t[None, :] * stride_anc_j
            sees = tl.load(at_anc, mask=real[:, None] & real[None, :], other=0) != 0
        G = tl.sum(tl.where(sees, g_t[None, :], 0.0), axis=1)
        to_q, to_k = dot_inputs(q_t, tl.trans(k_t)), dot_inputs(k_t, tl.trans(k_t))
        if L2_NORM:
            of_q, of_keys = tl.where(same, dot_inputs(q_t, tl.trans(q_t)), 0.0), tl.where(same, to_k, 0.0)
            r_q, r_k = scale * tl.rsqrt(tl.sum(of_q, axis=1) + eps), tl.rsqrt(tl.sum(of_keys, axis=1) + eps)
            r_j = tl.rsqrt(tl.sum(of_keys, axis=0) + eps)
        else:
            r_q, r_k, r_j = 0.0 * G + scale, 0.0 * G + 1.0, 0.0 * G + 1.0
        weight = tl.exp(tl.where(sees, G[:, None] - G[None, :], float("-inf"))) * r_j[None, :]
        to_q *= weight * r_q[:, None]
        to_k = tl.where(same, 0.0, to_k * weight * (r_k * beta_t)[:, None])
        M = tl.where(same, beta_t[None, :], 0.0)
        for s in tl.static_range(T - 1):
            column = tl.sum(tl.where((t == s)[None, :], to_k, 0.0), axis=1)
            line = tl.sum(tl.where((t == s)[:, None], M, 0.0), axis=0)
            M -= column[:, None] * line[None, :]  # (1)
        BLOCK: tl.constexpr = BLOCK_T * BLOCK_T
        at_M = parts + b * stride_parts_b + h * stride_parts_h + t[:, None] * BLOCK_T + t[None, :]
        store_parts(at_M, dot_both(to_q, M, True), 2 * BLOCK)  # (2)
        store_parts(at_M + BLOCK, M, 2 * BLOCK)
        at_factors = factors + b * stride_factors_b + h * stride_factors_h
        total = last(G, T - 1)
        tl.store(at_factors + t, r_q * tl.exp(G))  # (3)
        tl.store(at_factors + BLOCK_T + t, r_k * tl.exp(G))
        tl.store(at_factors + 2 * BLOCK_T + t, r_k * tl.exp(total - G))  # (4)
        tl.store(at_factors + 3 * BLOCK_T, tl.exp(total))
