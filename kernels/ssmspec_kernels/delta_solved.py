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
row, or two of up to 8 tokens: a row of its matrices is a token of one of them, and what stands between the two is 0. Bound by
the latency of its chain: by itself 5 tokens take 0.18, 0.10 and 0.06 plain steps for 16, 64 and 256 rows on an H200, and took
0.19, 0.14 and 0.12 with a head a program.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from .delta_inputs import gates
from .dots import dot_both, dot_inputs, split3
from .fence import of_lanes
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


def rows(t: int) -> int:
    """The rows of a product that t tokens of a head take: two heads share one where they fit."""
    return 8 if t <= 8 else LONGEST


def traffic_bytes(b: int, t: int, h: int) -> int:
    """Bytes of (1) to (4) that this launch writes for t tokens. Units: bytes.

    The next one reads as many, but for a window that writes no state, of which it reads neither to nor exp(G_T).
    """
    return b * h * (2 * 3 * 2 * rows(t) ** 2 + 4 * (3 * rows(t) + 1))


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
    each = rows(t)
    _delta_solve_kernel[(triton.cdiv(h, LONGEST // each), b)](
        q, k, g, beta, A, dt_bias, slots, live, ancestors, into.parts, into.factors,
        *strides(q, 3), *strides(k, 3), *strides(g, 3), *strides(beta, 3), *strides(live, 2), *strides(ancestors, 3),
        *strides(into.parts, 2), *strides(into.factors, 2), *strides(dt_bias, 1), scale, eps,
        T=t, K=width, HEADS=h, HEADS_PER_KEY=h // groups, L2_NORM=l2_norm, BLOCK_T=LONGEST, EACH=each,
        BLOCK_K=max(16, triton.next_power_of_2(width)), num_warps=1, **overlapped(q.device),
    )  # fmt: skip


@triton.jit
def store_parts(at, x, PART: tl.constexpr, kept):
    """The three bf16 parts of x where they are kept, each PART elements behind the one before."""
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
    """Of (2 t, 2 t), queries before keys, the products of queries, of queries with keys, and of keys, each (t, t)."""
    t: tl.constexpr = x.shape[0] // 2
    with_q, with_k = tl.split(tl.permute(tl.reshape(x, (2, t, 2, t)), (1, 3, 0, 2)))
    of_q, _ = tl.split(with_q)
    to_q, to_k = tl.split(with_k)
    return of_q, to_q, to_k


@triton.jit
def _delta_solve_kernel(
    q, k, g, beta, A, dt_bias, slots, live, ancestors, parts, factors,
    stride_q_b, stride_q_t, stride_q_g, stride_k_b, stride_k_t, stride_k_g, stride_g_b, stride_g_t, stride_g_h,
    stride_beta_b, stride_beta_t, stride_beta_h, stride_live_b, stride_live_t, stride_anc_b, stride_anc_t, stride_anc_j,
    stride_parts_b, stride_parts_h, stride_factors_b, stride_factors_h, stride_bias_h, scale, eps,
    T: tl.constexpr, K: tl.constexpr, HEADS: tl.constexpr, HEADS_PER_KEY: tl.constexpr, L2_NORM: tl.constexpr,
    BLOCK_T: tl.constexpr, EACH: tl.constexpr, BLOCK_K: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    if OVERLAP:  # the next launch is placed once this one has waited: so what came before both is there for it too
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
        decay, bias = 0.0, 0.0
        if ancestors is None:
            real, group = there, h // HEADS_PER_KEY
            if live is not None:
                real &= tl.load(live + b * stride_live_b + t * stride_live_t, mask=there, other=0) != 0
            of_k = real[:, None] & (i < K)[None, :]
            at_q = q + b * stride_q_b + (group * stride_q_g + t * stride_q_t)[:, None] + i[None, :]
            at_k = k + b * stride_k_b + (group * stride_k_g + t * stride_k_t)[:, None] + i[None, :]
            q_t, k_t = tl.load(at_q, mask=of_k, other=0.0), tl.load(at_k, mask=of_k, other=0.0)
            at_beta = beta + b * stride_beta_b + h * stride_beta_h + t * stride_beta_t
            beta_t = tl.load(at_beta, mask=real, other=0.0).to(tl.float32)
            g_t = tl.load(g + b * stride_g_b + h * stride_g_h + t * stride_g_t, mask=real, other=0.0).to(tl.float32)
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
        else:
            # By loads as below a tree of 13 takes 0.73 to 0.93 of its time by those above, a chain 0.99 to 1.25. The order of
            # the lines counts in both, as what is asked for early (a chain of 5 by 89 registers, not 146: 1.35 of its time).
            # A number for each token is loaded, and its gates are formed, by one lane (`of_lanes`).
            h_1, t_1, there_1 = h[:, None], t[:, None], there[:, None]
            real_1 = there_1
            if live is not None:
                real_1 &= tl.load(live + b * stride_live_b + t_1 * stride_live_t, mask=there_1, other=0) != 0
            real = of_lanes(real_1.to(tl.int32)) != 0
            at_beta = beta + b * stride_beta_b + h_1 * stride_beta_h + t_1 * stride_beta_t
            beta_t = tl.load(at_beta, mask=real_1, other=0.0).to(tl.float32)
            at_g = g + b * stride_g_b + h_1 * stride_g_h + t_1 * stride_g_t
            g_t = tl.load(at_g, mask=real_1, other=0.0).to(tl.float32)
            if A is not None:
                decay = tl.load(A + h_1, mask=there_1, other=0.0)
            if dt_bias is not None:
                bias = tl.load(dt_bias + h_1 * stride_bias_h, mask=there_1, other=0.0).to(tl.float32)
            at_anc = ancestors + b * stride_anc_b + t[:, None] * stride_anc_t + t[None, :] * stride_anc_j
            seen = tl.load(at_anc, mask=own & there[:, None] & there[None, :], other=0)
            tl.debug_barrier()  # all of these are asked for before the block below, which its products wait for
            # The rows of one block: queries, then keys. Two would be asked for one after the other had come.
            y = tl.arange(0, 2 * BLOCK_T)
            is_key, t_y = y >= BLOCK_T, (y % EACH).to(tl.int64)
            group = (tl.program_id(0) * (BLOCK_T // EACH) + y % BLOCK_T // EACH).to(tl.int64) // HEADS_PER_KEY
            at_q = q + b * stride_q_b + (group * stride_q_g + t_y * stride_q_t)[:, None]
            at_k = k + b * stride_k_b + (group * stride_k_g + t_y * stride_k_t)[:, None]
            real_y = tl.reshape(tl.broadcast_to(real[None, :], (2, BLOCK_T)), (2 * BLOCK_T,))
            of_both = real_y[:, None] & (i < K)[None, :]
            both = tl.load(tl.where(is_key[:, None], at_k, at_q) + i[None, :], mask=of_both, other=0.0)
            of_q, to_q, to_k = quarters(dot_inputs(both, tl.trans(both)))
            g_t, beta_t = gates(g_t, beta_t, decay, bias, A)
            g_t, beta_t = of_lanes(g_t), of_lanes(beta_t)
            same = x[:, None] == x[None, :]
            sees = (seen != 0) & real[:, None] & real[None, :]
            G = tl.sum(tl.where(sees, g_t[None, :], 0.0), axis=1)
        if L2_NORM:
            of_q, of_keys = tl.where(same, of_q, 0.0), tl.where(same, to_k, 0.0)
            r_q, r_k = scale * tl.rsqrt(tl.sum(of_q, axis=1) + eps), tl.rsqrt(tl.sum(of_keys, axis=1) + eps)
            r_j = tl.rsqrt(tl.sum(of_keys, axis=0) + eps)
        else:
            r_q, r_k, r_j = 0.0 * G + scale, 0.0 * G + 1.0, 0.0 * G + 1.0
        weight = tl.exp(tl.where(sees, G[:, None] - G[None, :], float("-inf"))) * r_j[None, :]
        to_q = tl.where(sees, to_q * (weight * r_q[:, None]), 0.0)  # of another head may be NaN
        to_k = tl.where(sees & ~same, to_k * weight * (r_k * beta_t)[:, None], 0.0)
        M = tl.where(same, beta_t[None, :], 0.0)
        for s in tl.static_range(T - 1):
            column = tl.sum(tl.where((t == s)[None, :], to_k, 0.0), axis=1)
            line = tl.sum(tl.where((t == s)[:, None], M, 0.0), axis=0)  # of each head, its own columns
            M -= tl.where(own, column[:, None] * line[None, :], 0.0)  # (1)
        BLOCK: tl.constexpr = BLOCK_T * BLOCK_T
        at_M = parts + b * stride_parts_b + (h * stride_parts_h + t * BLOCK_T)[:, None] + t[None, :]
        kept = own & (h < HEADS)[:, None]
        store_parts(at_M, dot_both(to_q, M, True), 2 * BLOCK, kept)  # (2)
        store_parts(at_M + BLOCK, M, 2 * BLOCK, kept)
        at_factors = factors + b * stride_factors_b + h * stride_factors_h
        total = tl.sum(tl.where(own & (t == T - 1)[None, :], G[None, :], 0.0), axis=1)
        tl.store(at_factors + t, r_q * tl.exp(G), mask=h < HEADS)  # (3)
        tl.store(at_factors + BLOCK_T + t, r_k * tl.exp(G), mask=h < HEADS)
        tl.store(at_factors + 2 * BLOCK_T + t, r_k * tl.exp(total - G), mask=h < HEADS)  # (4)
        tl.store(at_factors + 3 * BLOCK_T, tl.exp(total), mask=(h < HEADS) & (t == 0))
