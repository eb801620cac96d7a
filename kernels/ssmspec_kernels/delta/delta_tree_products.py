"""The gated delta rule over a packed tree of 33 to 128 nodes, by products: bf16 activations, a gate per head.

    G_i  = sum of g over the path from the root to i, itself included                                     (1)
    A_ij = beta_i scores(k)_ij       for strict ancestors j of i, else 0             (`delta_window`)     (2)
    P    = scores(q) (I + A)^-1 diag(beta)            once for all channels          (`delta_inverse`)    (3)
    o    = decayed(q) S + P (V - decayed(k) S)                                                            (4)

The inverse does not depend on the channels of v. A program owns tiles of v channels of one value head of one row, with all of
k: it computes (3) once and loops over its tiles, each read once and cut into bf16 parts (`dots`) once, for keys and queries.
Bound by latency: every product on the tensor cores waits at a fence for its operands, 10 times before the tiles and 14 times
for each tile, in two programs per SM, whose registers and shared memory leave no room for a third
(docs/explanation/tuning.md).

Tiles have 64 channels: with fewer, Triton 3.6 gave wrong values or reads outside memory (`ssd_window`).
Layout: S (s, h, k, v), as in `delta_scan`. The state is not written.
"""

import triton
import triton.language as tl
from torch import Tensor

from ..launch import strides
from ..shared.dots import dot_both, dot_inputs, split3
from ..shared.strides import MaskStrides
from ..shared.tree_nodes import real_nodes, seen_nodes
from ..shared.tuning import H200
from .delta_inputs import gates, load_gate_params, window_strides
from .delta_inverse import inverted
from .delta_window import norms

BLOCK_V = H200["delta_tree_products"]["block_v"]


def launch_products(
    S: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    A: Tensor | None,
    dt_bias: Tensor | None,
    slots: Tensor | None,
    ancestors: Tensor,
    o: Tensor,
    l2_norm: bool,
    scale: float,
    eps: float,
    block_v: int | None = None,
) -> None:
    """Launches the kernel on checked arguments; `block_v` channels per program, in whole tiles."""
    (b, t, groups, width), (h, channels) = q.shape, v.shape[2:]
    tiles, warps = _tile(b * h, t, channels)
    if block_v is not None:
        tiles = triton.cdiv(block_v, BLOCK_V)
    delta_tree_products_kernel[(triton.cdiv(channels, tiles * BLOCK_V), h, b)](
        S, q, k, v, g, beta, A, dt_bias, slots, ancestors, o,
        window_strides(S, q, k, v, g, beta, o), MaskStrides(*strides(ancestors, 3)), *strides(dt_bias, 1), scale, eps,
        T=t, K=width, V=channels, HEADS_PER_KEY=h // groups, L2_NORM=l2_norm, ALL=64 if t <= 64 else 128,
        BLOCK_K=max(16, triton.next_power_of_2(width)), BLOCK_V=BLOCK_V, TILES=tiles, num_warps=warps,
    )  # fmt: skip


def _tile(programs: int, t: int, channels: int) -> tuple[int, int]:
    """Tiles of a program, and its warps: chosen on an H200, where few rows are split."""
    row = H200["delta_tree_products"]
    tiles = 1 if programs <= row["few_programs"] else triton.cdiv(channels, BLOCK_V)
    return tiles, row["warps" if t <= 64 else "many_nodes_warps"]


@triton.jit
def delta_tree_products_kernel(
    S, q, k, v, g, beta, A, dt_bias, slots, ancestors, o,
    stride, stride_anc, stride_bias_h, scale, eps,
    T: tl.constexpr, K: tl.constexpr, V: tl.constexpr, HEADS_PER_KEY: tl.constexpr, L2_NORM: tl.constexpr,
    ALL: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(2).to(tl.int64)
    h = tl.program_id(1).to(tl.int64)
    slot = b
    if slots is not None:
        slot = tl.load(slots + b).to(tl.int64)
    if slot >= 0:
        group = h // HEADS_PER_KEY
        t, i = tl.arange(0, ALL).to(tl.int64), tl.arange(0, BLOCK_K).to(tl.int64)
        in_t, in_k = t < T, i < K
        at_anc = ancestors + b * stride_anc.b
        real = real_nodes(at_anc, t, in_t, stride_anc)
        sees = seen_nodes(at_anc, t, t, real, real, stride_anc)
        before = sees & (t[:, None] != t[None, :])
        at_q, at_k = q + b * stride.q.b + group * stride.q.g, k + b * stride.k.b + group * stride.k.g
        of_k = real[:, None] & in_k[None, :]
        q_t = tl.load(at_q + t[:, None] * stride.q.t + i[None, :], mask=of_k, other=0.0)
        k_t = tl.load(at_k + t[:, None] * stride.k.t + i[None, :], mask=of_k, other=0.0)
        at_beta = beta + b * stride.beta.b + h * stride.beta.h
        beta_t = tl.load(at_beta + t * stride.beta.t, mask=real, other=0.0).to(tl.float32)
        g_t = tl.load(g + b * stride.g.b + h * stride.g.h + t * stride.g.t, mask=real, other=0.0).to(tl.float32)
        decay, bias = load_gate_params(A, dt_bias, h, i, stride_bias_h, in_k, False)
        r_q, r_k = norms(q_t, scale, eps, L2_NORM), norms(k_t, 1.0, eps, L2_NORM)
        g_t, beta_t = gates(g_t, beta_t, decay, bias, A)
        G = tl.sum(tl.where(sees, g_t[None, :], 0.0), axis=1)  # (1)
        weight = tl.exp(tl.where(sees, G[:, None] - G[None, :], float("-inf"))) * r_k[None, :]
        to_q, to_k = dot_inputs(q_t, tl.trans(k_t)), dot_inputs(k_t, tl.trans(k_t))
        coupling = tl.where(before, to_k * weight * (beta_t * r_k)[:, None], 0.0)  # (2)
        M = inverted(coupling, True) * beta_t[None, :]
        P = dot_both(to_q * weight * r_q[:, None], M, True, NINTH=False)  # (3)
        from_q, from_k = r_q * tl.exp(G), r_k * tl.exp(G)
        at_S = S + slot * stride.S.s + h * stride.S.h + i[:, None] * stride.S.k
        at_v = v + b * stride.v.b + h * stride.v.h + t[:, None] * stride.v.t
        at_o = o + b * stride.o.b + h * stride.o.h + t[:, None] * stride.o.t
        for tile in tl.range(0, TILES, num_stages=1):  # Stages would leave room for one program per SM only.
            j = (tl.program_id(0).to(tl.int64) * TILES + tile) * BLOCK_V + tl.arange(0, BLOCK_V)
            in_v = j < V
            state = tl.load(at_S + j[None, :], mask=in_k[:, None] & in_v[None, :], other=0.0).to(tl.float32)
            v_t = tl.load(at_v + j[None, :], mask=real[:, None] & in_v[None, :], other=0.0).to(tl.float32)
            hi, mid, lo = split3(state)
            read = tl.dot(k_t, lo, out_dtype=tl.float32)
            read = tl.dot(k_t, mid, acc=read, out_dtype=tl.float32)
            read = tl.dot(k_t, hi, acc=read, out_dtype=tl.float32)
            o_t = tl.dot(q_t, lo, out_dtype=tl.float32)
            o_t = tl.dot(q_t, mid, acc=o_t, out_dtype=tl.float32)
            o_t = tl.dot(q_t, hi, acc=o_t, out_dtype=tl.float32)
            o_t = from_q[:, None] * o_t + dot_both(P, v_t - from_k[:, None] * read, True, NINTH=False)  # (4)
            tl.store(at_o + j[None, :], o_t.to(o.dtype.element_ty), mask=in_t[:, None] & in_v[None, :])
