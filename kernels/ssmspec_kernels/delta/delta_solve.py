"""The part of a gated delta rule window that does not need the state, per head: the first of two launches (`delta_apply`).

With G the sum of g over the tokens that a token sees, and r and `scores` of `delta_window`,

    M  = (I + A)^-1 diag(beta),   A_ij = beta_i scores(k)_ij where i sees j before it, else 0       (1)
    PM = scores(q) M                                                                                (2)
    from_q_t = r exp(G_t), from_k_t likewise            factors of the state for queries and keys  (3)
    to_t = r_t exp(G_T - G_t),   exp(G_T)               factors of each write, and of the state    (4)

A token of a chain sees all before it, a node of a tree its ancestors; (4) is used for chains only.

None of it depends on the state, so it is computed while no state is held in registers: the second launch has products only.
Layout: (1) (2) are operands of those, and are stored as their three bf16 parts (`dots`): `parts` (b, h, n) has the rows of
PM and then those of M, three times. `factors` (b, h, n) has (3) and (4) in fp32.

|k|^2 and |q|^2 are diagonals of products, whose sums are those of the scores. A program is one warp and owns one head of one
row, or two with up to 8 tokens: a row of its matrices is a token of one of them, and the blocks between the two are 0. Bound
by the latency of its dependent steps; measured times are in docs/explanation/tuning.md.
"""

from typing import Annotated, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..launch import overlapped, strides
from ..row import FP32, updates
from ..shared.dots import dot_both, dot_inputs, split3
from ..shared.load_fence import of_lanes
from ..shared.strides import GroupStrides, HeadStrides, MaskStrides, SolvedStrides, TokenStrides
from .delta_inputs import gates

LONGEST = 16
"""Most tokens of a window: the rows of a product."""
PARTS, FACTORS = 3 * 2 * LONGEST * LONGEST, 4 * LONGEST


class Solved(NamedTuple):
    """(1) (2) as bf16 parts, (3) (4) in fp32."""

    parts: Annotated[Tensor, updates("b h parts", (torch.bfloat16,), "bf16")]
    factors: Annotated[Tensor, updates("b h factors", FP32, "fp32")]


def scratch(b: int, h: int, device: torch.device) -> Solved:
    """Memory for b rows of h heads."""
    return Solved(
        torch.empty(b, h, PARTS, dtype=torch.bfloat16, device=device),
        torch.empty(b, h, FACTORS, dtype=torch.float32, device=device),
    )


def product_rows(t: int) -> int:
    """The rows of a product for t tokens of a head: two heads share a product if they fit."""
    return 8 if t <= 8 else LONGEST


def traffic_bytes(b: int, t: int, h: int) -> int:
    """Bytes of (1) to (4) that this launch writes for t tokens. Units: bytes.

    The next launch reads as many, except for a window that writes no state, of which it reads neither `to` nor exp(G_T).
    """
    return b * h * (2 * 3 * 2 * product_rows(t) ** 2 + 4 * (3 * product_rows(t) + 1))


def supports(q: Tensor, g: Tensor) -> bool:
    """Whether the two launches support a window: bf16 activations, a gate per head, up to 16 tokens and 128 channels k."""
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
    """Computes (1) to (4) from checked arguments; nothing is written for padding rows."""
    (b, t, groups, width), h = q.shape, beta.shape[2]
    each = product_rows(t)
    _delta_solve_kernel[(triton.cdiv(h, LONGEST // each), b)](
        q, k, g, beta, A, dt_bias, slots, live, ancestors, *into,
        GroupStrides(*strides(q, 3)), GroupStrides(*strides(k, 3)), HeadStrides(*strides(g, 3)),
        HeadStrides(*strides(beta, 3)), TokenStrides(*strides(live, 2)), MaskStrides(*strides(ancestors, 3)),
        SolvedStrides(*strides(into.parts, 2)), SolvedStrides(*strides(into.factors, 2)), *strides(dt_bias, 1), scale, eps,
        T=t, K=width, HEADS=h, HEADS_PER_KEY=h // groups, L2_NORM=l2_norm, BLOCK_T=LONGEST, EACH=each,
        BLOCK_K=max(16, triton.next_power_of_2(width)), num_warps=1, **overlapped(q.device),
    )  # fmt: skip


@triton.jit
def store_parts(at, x, PART: tl.constexpr, kept):
    """Stores the three bf16 parts of x where `kept`, each PART elements after the previous one."""
    hi, mid, lo = split3(x)
    tl.store(at, hi, mask=kept)
    tl.store(at + PART, mid, mask=kept)
    tl.store(at + 2 * PART, lo, mask=kept)


@triton.jit
def load_parts(at, mask, PART: tl.constexpr):
    """What `store_parts` wrote; zeros outside the mask."""
    hi, mid = tl.load(at, mask=mask, other=0.0), tl.load(at + PART, mask=mask, other=0.0)
    return hi, mid, tl.load(at + 2 * PART, mask=mask, other=0.0)


@triton.jit
def quarters(x):
    """From (2 t, 2 t), queries before keys: the products of queries, of queries with keys, and of keys, each (t, t)."""
    t: tl.constexpr = x.shape[0] // 2
    with_q, with_k = tl.split(tl.permute(tl.reshape(x, (2, t, 2, t)), (1, 3, 0, 2)))
    of_q, _ = tl.split(with_q)
    to_q, to_k = tl.split(with_k)
    return of_q, to_q, to_k


@triton.jit
def _of_chain(
    q, k, g, beta, A, dt_bias, live, b, h, t, x, i, there, own, stride_q, stride_k, stride_g, stride_beta, stride_live,
    stride_bias_h, K: tl.constexpr, HEADS: tl.constexpr, HEADS_PER_KEY: tl.constexpr,
):  # fmt: skip
    """For a window: products of queries, of queries with keys, and of keys; beta, G, and which tokens each one sees."""
    decay, bias = 0.0, 0.0
    real, group = there, h // HEADS_PER_KEY
    if live is not None:
        real &= tl.load(live + b * stride_live.b + t * stride_live.t, mask=there, other=0) != 0
    of_k = real[:, None] & (i < K)[None, :]
    at_q = q + b * stride_q.b + (group * stride_q.g + t * stride_q.t)[:, None] + i[None, :]
    at_k = k + b * stride_k.b + (group * stride_k.g + t * stride_k.t)[:, None] + i[None, :]
    q_t, k_t = tl.load(at_q, mask=of_k, other=0.0), tl.load(at_k, mask=of_k, other=0.0)
    at_beta = beta + b * stride_beta.b + h * stride_beta.h + t * stride_beta.t
    beta_t = tl.load(at_beta, mask=real, other=0.0).to(tl.float32)
    g_t = tl.load(g + b * stride_g.b + h * stride_g.h + t * stride_g.t, mask=real, other=0.0).to(tl.float32)
    if A is not None:
        decay = tl.load(A + h, mask=h < HEADS, other=0.0)
    if dt_bias is not None:
        bias = tl.load(dt_bias + h * stride_bias_h, mask=h < HEADS, other=0.0).to(tl.float32)
    g_t, beta_t = gates(g_t, beta_t, decay, bias, A)
    g_t = tl.where(real, g_t, 0.0)
    same, sees = x[:, None] == x[None, :], own & (t[None, :] <= t[:, None])
    G = tl.sum(tl.where(sees, g_t[None, :], 0.0), axis=1)
    to_q, to_k = dot_inputs(q_t, tl.trans(k_t)), dot_inputs(k_t, tl.trans(k_t))
    of_q = dot_inputs(q_t, tl.trans(q_t))
    return of_q, to_q, to_k, beta_t, G, same, sees


@triton.jit
def _of_tree(
    q, k, g, beta, A, dt_bias, live, ancestors, b, h, t, x, i, there, own, stride_q, stride_k, stride_g, stride_beta,
    stride_live, stride_anc, stride_bias_h, K: tl.constexpr, HEADS_PER_KEY: tl.constexpr, BLOCK_T: tl.constexpr,
    EACH: tl.constexpr,
):  # fmt: skip
    """As `_of_chain`, for a tree."""
    decay, bias = 0.0, 0.0
    # Loads as below are faster for trees, those above for chains; the order of the lines and of the early loads
    # matters in both (docs/explanation/tuning.md). One lane loads each token's number and computes its gates
    # (`of_lanes`).
    h_1, t_1, there_1 = h[:, None], t[:, None], there[:, None]
    real_1 = there_1
    if live is not None:
        real_1 &= tl.load(live + b * stride_live.b + t_1 * stride_live.t, mask=there_1, other=0) != 0
    real = of_lanes(real_1.to(tl.int32)) != 0
    at_beta = beta + b * stride_beta.b + h_1 * stride_beta.h + t_1 * stride_beta.t
    beta_t = tl.load(at_beta, mask=real_1, other=0.0).to(tl.float32)
    at_g = g + b * stride_g.b + h_1 * stride_g.h + t_1 * stride_g.t
    g_t = tl.load(at_g, mask=real_1, other=0.0).to(tl.float32)
    if A is not None:
        decay = tl.load(A + h_1, mask=there_1, other=0.0)
    if dt_bias is not None:
        bias = tl.load(dt_bias + h_1 * stride_bias_h, mask=there_1, other=0.0).to(tl.float32)
    at_anc = ancestors + b * stride_anc.b + t[:, None] * stride_anc.t + t[None, :] * stride_anc.j
    seen = tl.load(at_anc, mask=own & there[:, None] & there[None, :], other=0)
    tl.debug_barrier()  # all of these are loaded before the block below, which its products wait for
    # The rows of one block: queries, then keys. Two blocks would be loaded one after the other.
    y = tl.arange(0, 2 * BLOCK_T)
    is_key, t_y = y >= BLOCK_T, (y % EACH).to(tl.int64)
    group = (tl.program_id(0) * (BLOCK_T // EACH) + y % BLOCK_T // EACH).to(tl.int64) // HEADS_PER_KEY
    at_q = q + b * stride_q.b + (group * stride_q.g + t_y * stride_q.t)[:, None]
    at_k = k + b * stride_k.b + (group * stride_k.g + t_y * stride_k.t)[:, None]
    real_y = tl.reshape(tl.broadcast_to(real[None, :], (2, BLOCK_T)), (2 * BLOCK_T,))
    of_both = real_y[:, None] & (i < K)[None, :]
    both = tl.load(tl.where(is_key[:, None], at_k, at_q) + i[None, :], mask=of_both, other=0.0)
    of_q, to_q, to_k = quarters(dot_inputs(both, tl.trans(both)))
    g_t, beta_t = gates(g_t, beta_t, decay, bias, A)
    g_t, beta_t = of_lanes(g_t), of_lanes(beta_t)
    same = x[:, None] == x[None, :]
    sees = (seen != 0) & real[:, None] & real[None, :]
    G = tl.sum(tl.where(sees, g_t[None, :], 0.0), axis=1)
    return of_q, to_q, to_k, beta_t, G, same, sees


@triton.jit
def _solve(of_q, to_q, to_k, beta_t, G, same, sees, own, t, scale, eps, T: tl.constexpr, L2_NORM: tl.constexpr):
    """The matrix of (1), the scores it multiplies in (2), and the norms of queries and keys."""
    if L2_NORM:
        of_q, of_keys = tl.where(same, of_q, 0.0), tl.where(same, to_k, 0.0)
        r_q, r_k = scale * tl.rsqrt(tl.sum(of_q, axis=1) + eps), tl.rsqrt(tl.sum(of_keys, axis=1) + eps)
        r_j = tl.rsqrt(tl.sum(of_keys, axis=0) + eps)
    else:
        r_q, r_k, r_j = 0.0 * G + scale, 0.0 * G + 1.0, 0.0 * G + 1.0
    weight = tl.exp(tl.where(sees, G[:, None] - G[None, :], float("-inf"))) * r_j[None, :]
    to_q = tl.where(sees, to_q * (weight * r_q[:, None]), 0.0)  # values of another head may be NaN
    to_k = tl.where(sees & ~same, to_k * weight * (r_k * beta_t)[:, None], 0.0)
    M = tl.where(same, beta_t[None, :], 0.0)
    for s in tl.static_range(T - 1):
        column = tl.sum(tl.where((t == s)[None, :], to_k, 0.0), axis=1)
        line = tl.sum(tl.where((t == s)[:, None], M, 0.0), axis=0)  # of each head, its own columns
        M -= tl.where(own, column[:, None] * line[None, :], 0.0)  # (1)
    return M, to_q, r_q, r_k


@triton.jit
def _delta_solve_kernel(
    q, k, g, beta, A, dt_bias, slots, live, ancestors, parts, factors,
    stride_q, stride_k, stride_g, stride_beta, stride_live, stride_anc, stride_parts, stride_factors, stride_bias_h, scale,
    eps,
    T: tl.constexpr, K: tl.constexpr, HEADS: tl.constexpr, HEADS_PER_KEY: tl.constexpr, L2_NORM: tl.constexpr,
    BLOCK_T: tl.constexpr, EACH: tl.constexpr, BLOCK_K: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    if OVERLAP:  # the next launch may start once this one has waited: so all earlier launches have ended for it too
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    b = tl.program_id(1).to(tl.int64)
    slot = b
    if slots is not None:
        slot = tl.load(slots + b).to(tl.int64)
    if slot >= 0:
        x, i = tl.arange(0, BLOCK_T), tl.arange(0, BLOCK_K)
        h, t = (tl.program_id(0) * (BLOCK_T // EACH) + x // EACH).to(tl.int64), (x % EACH).to(tl.int64)
        there, own = (t < T) & (h < HEADS), x[:, None] // EACH == x[None, :] // EACH
        if ancestors is None:
            of_q, to_q, to_k, beta_t, G, same, sees = _of_chain(
                q, k, g, beta, A, dt_bias, live, b, h, t, x, i, there, own, stride_q, stride_k, stride_g, stride_beta,
                stride_live, stride_bias_h, K, HEADS, HEADS_PER_KEY,
            )  # fmt: skip
        else:
            of_q, to_q, to_k, beta_t, G, same, sees = _of_tree(
                q, k, g, beta, A, dt_bias, live, ancestors, b, h, t, x, i, there, own, stride_q, stride_k, stride_g,
                stride_beta, stride_live, stride_anc, stride_bias_h, K, HEADS_PER_KEY, BLOCK_T, EACH,
            )  # fmt: skip
        M, to_q, r_q, r_k = _solve(of_q, to_q, to_k, beta_t, G, same, sees, own, t, scale, eps, T, L2_NORM)
        BLOCK: tl.constexpr = BLOCK_T * BLOCK_T
        at_M = parts + b * stride_parts.b + (h * stride_parts.h + t * BLOCK_T)[:, None] + t[None, :]
        kept = own & (h < HEADS)[:, None]
        store_parts(at_M, dot_both(to_q, M, True), 2 * BLOCK, kept)  # (2)
        store_parts(at_M + BLOCK, M, 2 * BLOCK, kept)
        at_factors = factors + b * stride_factors.b + h * stride_factors.h
        total = tl.sum(tl.where(own & (t == T - 1)[None, :], G[None, :], 0.0), axis=1)
        tl.store(at_factors + t, r_q * tl.exp(G), mask=h < HEADS)  # (3)
        tl.store(at_factors + BLOCK_T + t, r_k * tl.exp(G), mask=h < HEADS)
        tl.store(at_factors + 2 * BLOCK_T + t, r_k * tl.exp(total - G), mask=h < HEADS)  # (4)
        tl.store(at_factors + 3 * BLOCK_T, tl.exp(total), mask=(h < HEADS) & (t == 0))
