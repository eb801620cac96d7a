"""The gated delta rule over a packed tree of 33 to 128 nodes, by products: bf16 activations, a gate per head.

    G_i  = sum of g over the path from the root to i, itself included                                     (1)
    A_ij = beta_i scores(k)_ij       for strict ancestors j of i, else 0             (`delta_window`)     (2)
    P    = scores(q) (I + A)^-1 diag(beta)            once for all channels          (`delta_inverse`)    (3)
    o    = decayed(q) S + P (V - decayed(k) S)                                                            (4)

The inverse knows no channel of v. A program owns tiles of v channels of one value head of one row, with all of k: it makes
(3) once and walks its tiles, each read once and cut into bf16 parts (`dots`) once, for keys and queries. Bound by latency:
every product on the tensor cores waits behind a fence for its operands, about 460 cycles with them on an H200, 10 before the
tiles and 14 for each, in two programs an SM, whose registers and shared memory leave no room for a third.

Tiles have 64 channels: with fewer, Triton 3.6 gave wrong values or reads outside memory (`ssd_window`).
Layout: S (s, h, k, v), as in `delta_scan`. Nothing of the state is written.
"""

import triton
import triton.language as tl
from torch import Tensor

from .delta_inputs import gates, load_gate_params
from .delta_inverse import inverted
from .delta_window import norms
from .dots import dot_both, dot_inputs, split3
from .launch import strides

BLOCK_V = 64


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
    """Launch the kernel on arguments that were checked; `block_v` channels a program, in whole tiles."""
    (b, t, groups, width), (h, channels) = q.shape, v.shape[2:]
    tiles, warps = _tile(b * h, t, channels)
    if block_v is not None:
        tiles = triton.cdiv(block_v, BLOCK_V)
    delta_tree_products_kernel[(triton.cdiv(channels, tiles * BLOCK_V), h, b)](
        S, q, k, v, g, beta, A, dt_bias, slots, ancestors, o,
        *strides(S, 3), *strides(q, 3), *strides(k, 3), *strides(v, 3), *strides(g, 3), *strides(beta, 3),
        *strides(o, 3), *strides(ancestors, 3), *strides(dt_bias, 1), scale, eps,
        T=t, K=width, V=channels, HEADS_PER_KEY=h // groups, L2_NORM=l2_norm, ALL=64 if t <= 64 else 128,
        BLOCK_K=max(16, triton.next_power_of_2(width)), BLOCK_V=BLOCK_V, TILES=tiles, num_warps=warps,
    )  # fmt: skip


def _tile(programs: int, t: int, channels: int) -> tuple[int, int]:
    """Tiles of a program, and its warps: as measured on an H200, where few rows are split."""
    return 1 if programs <= 64 else triton.cdiv(channels, BLOCK_V), 4 if t <= 64 else 8


@triton.jit
def delta_tree_products_kernel(
    S, q, k, v, g, beta, A, dt_bias, slots, ancestors, o,
    stride_S_s, stride_S_h, stride_S_k, stride_q_b, stride_q_t, stride_q_g, stride_k_b, stride_k_t, stride_k_g,
    stride_v_b, stride_v_t, stride_v_h, stride_g_b, stride_g_t, stride_g_h, stride_beta_b, stride_beta_t, stride_beta_h,
    stride_o_b, stride_o_t, stride_o_h, stride_anc_b, stride_anc_t, stride_anc_j, stride_bias_h, scale, eps,
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
        at_anc = ancestors + b * stride_anc_b
        real = tl.load(at_anc + t * (stride_anc_t + stride_anc_j), mask=in_t, other=0) != 0
        sees = at_anc + t[:, None] * stride_anc_t + t[None, :] * stride_anc_j
        sees = tl.load(sees, mask=real[:, None] & real[None, :], other=0) != 0
        before = sees & (t[:, None] != t[None, :])
        at_q, at_k = q + b * stride_q_b + group * stride_q_g, k + b * stride_k_b + group * stride_k_g
        of_k = real[:, None] & in_k[None, :]
        q_t = tl.load(at_q + t[:, None] * stride_q_t + i[None, :], mask=of_k, other=0.0)
        k_t = tl.load(at_k + t[:, None] * stride_k_t + i[None, :], mask=of_k, other=0.0)
        at_beta = beta + b * stride_beta_b + h * stride_beta_h
        beta_t = tl.load(at_beta + t * stride_beta_t, mask=real, other=0.0).to(tl.float32)
        g_t = tl.load(g + b * stride_g_b + h * stride_g_h + t * stride_g_t, mask=real, other=0.0).to(tl.float32)
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
        at_S = S + slot * stride_S_s + h * stride_S_h + i[:, None] * stride_S_k
        at_v = v + b * stride_v_b + h * stride_v_h + t[:, None] * stride_v_t
        at_o = o + b * stride_o_b + h * stride_o_h + t[:, None] * stride_o_t
        for tile in tl.range(0, TILES, num_stages=1):  # Stages of tiles would leave room for one program an SM.
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
