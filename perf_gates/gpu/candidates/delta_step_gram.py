"""The delta rule's plain step with norms whose bits do not depend on the tile: a candidate in place of `delta_scan`.

    G = [q; k] [q; k]^T          one product of matrices: q q, q k, k k                                    (1)
    o and S' as in `delta_scan`, (1) to (5), with |q|, |k| and q^ k^ from G

`delta_scan` sums the norms over the warps of a program, so that a tile of another number of warps gives a row other bits, and
one tile must serve all batches. A product of matrices sums along k in the order of its instructions, in each warp alike, and
the sums over the state are in runs of a lane, then over LANES, alike for every tile with that many lanes. So few rows can
have small tiles of one warp, whose reductions need no barrier, and many rows the current tiles.

For activations in bf16, one decay for a head. Layout: as in `delta_scan`.
Bound by the bytes of the state; for few rows by the chain slot, state, sums after one launch.
"""

import torch
import triton
import triton.language as tl
import triton.language.extra.cuda  # griddepcontrol
from torch import Tensor

from perf_gates.static.kernel_modules import kernel_module
from ssmspec_ref.errors import ParameterError

INPUTS, LAUNCH = kernel_module("delta_inputs"), kernel_module("launch")
load_gate_params, gates, rows, spread = INPUTS.load_gate_params, INPUTS.gates, INPUTS.rows, INPUTS.spread
FEW_HEADS = 128
"""Up to this number of heads of rows a program is one warp of 16 channels: 4 rows of 32 heads."""
FEW, MANY = (8, 16, 1), (8, 64, 4)
"""Lanes along k, value channels and warps of a program. All have the same lanes."""


def delta_step_gram(
    S: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    A: Tensor | None = None,
    dt_bias: Tensor | None = None,
    scale: float | None = None,
    eps: float = 1e-6,
    slots: Tensor | None = None,
    out: Tensor | None = None,
    tiles: tuple[int, int, int] | None = None,
) -> Tensor:
    """As `delta_scan` with one token (b, 1, ..), a decay for each head, and its norm.

    Raises: ShapeMismatch, PrecisionError, ParameterError, before anything is written.
    """
    more = (("out", out, "b t h v", LAUNCH.FLOATS),)
    axes, scale = INPUTS.check_inputs(S, q, k, v, g, beta, A, dt_bias, slots, scale, eps, *more)
    if axes["t"] != 1 or g.dim() != 3 or q.dtype != torch.bfloat16 or k.dtype != q.dtype:
        raise ParameterError(f"{axes['t']} tokens of {q.dtype} and g of {g.dim()} axes; give one in bf16 and g (b, t, h)")
    b, groups, h = (axes[a] for a in "bgh")
    o = torch.empty_like(v) if out is None else out
    lanes, block, warps = tiles or (FEW if b * h <= FEW_HEADS else MANY)
    block = min(block, triton.next_power_of_2(axes["v"]))
    gram_step_kernel[(triton.cdiv(axes["v"], block), h, b)](
        S, q, k, v, g, beta, A, dt_bias, slots, o, INPUTS.window_strides(S, q, k, v, g, beta, o, rows=True),
        *LAUNCH.strides(dt_bias, 1), scale, eps, K=axes["k"], V=axes["v"], ROW=S.stride(2), HEADS_PER_KEY=h // groups,
        LANES=lanes, BLOCK_K=max(16, triton.next_power_of_2(axes["k"])), BLOCK_V=block, num_warps=warps,
        **LAUNCH.overlapped(S.device),
    )  # fmt: skip
    return o


@triton.jit
def gram_step_kernel(
    S, q, k, v, g, beta, A, dt_bias, slots, o, stride, stride_bias_h, scale, eps, K: tl.constexpr, V: tl.constexpr,
    ROW: tl.constexpr, HEADS_PER_KEY: tl.constexpr, LANES: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
    b, h = tl.program_id(2).to(tl.int64), tl.program_id(1).to(tl.int64)
    slot = b
    if slots is not None:
        slot = tl.load(slots + b).to(tl.int64)
    i, j = tl.arange(0, BLOCK_K), tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
    in_k, in_v = (i < K) | (K == BLOCK_K), (j < V) | (V % BLOCK_V == 0)
    decay, bias = load_gate_params(A, dt_bias, h, i, stride_bias_h, in_k, False)
    at_q = q + b * stride.q.b + (h // HEADS_PER_KEY) * stride.q.g + i
    at_k = k + b * stride.k.b + (h // HEADS_PER_KEY) * stride.k.g + i
    q_t = tl.load(at_q, mask=in_k, other=0.0)
    k_t = tl.load(at_k, mask=in_k, other=0.0)
    v_t = tl.load(v + b * stride.v.b + h * stride.v.h + j, mask=in_v, other=0.0).to(tl.float32)
    g_t = tl.load(g + b * stride.g.b + h * stride.g.h).to(tl.float32)
    beta_t = tl.load(beta + b * stride.beta.b + h * stride.beta.h).to(tl.float32)
    if slot >= 0:
        row = rows(BLOCK_K, LANES)
        inside = ((row < K) | (K == BLOCK_K))[:, None] & in_v[None, :]
        at_S = S + slot * stride.S.s + h * stride.S.h + row[:, None].to(tl.int64) * ROW + j[None, :]
        state = tl.load(at_S, mask=inside, other=0.0).to(tl.float32)
        qq, both, kk = _gram(q_t, k_t)  # (1)
        g_t, beta_t = gates(g_t, beta_t, decay, bias, A)
        a, r_q, r_k = tl.exp(g_t), scale * tl.rsqrt(qq + eps), tl.rsqrt(kk + eps)
        q_s, k_s = spread(q_t.to(tl.float32), LANES), spread(k_t.to(tl.float32), LANES)
        u = r_k * (beta_t * (v_t - a * r_k * tl.sum(state * k_s[:, None], axis=0)))
        o_t = r_q * (a * tl.sum(state * q_s[:, None], axis=0) + both * u)
        at_o = o + b * stride.o.b + h * stride.o.h + j
        tl.store(at_o, o_t.to(o.dtype.element_ty), mask=in_v)
        state = tl.fma(k_s[:, None], u[None, :], a * state)
        tl.store(at_S, state.to(S.dtype.element_ty), mask=inside)


@triton.jit
def _gram(q, k):
    """q q, q k and k k of two rows in bf16 (1); the sums over the entries of G add zeros only."""
    r, c = tl.arange(0, 16)[:, None], tl.arange(0, 8)[None, :]
    none = tl.zeros_like(q)[None, :]
    left = tl.where(r == 0, q[None, :], tl.where(r == 1, k[None, :], none))
    right = tl.where(tl.trans(c) == 0, q[None, :], tl.where(tl.trans(c) == 1, k[None, :], none))
    G = tl.dot(left, tl.trans(right), out_dtype=tl.float32)
    of_q, of_k = tl.sum(tl.where(r == 0, G, 0.0), axis=0), tl.sum(tl.where(r == 1, G, 0.0), axis=0)
    at = tl.arange(0, 8)
    qq, qk = tl.sum(tl.where(at == 0, of_q, 0.0), axis=0), tl.sum(tl.where(at == 1, of_q, 0.0), axis=0)
    return qq, qk, tl.sum(tl.where(at == 1, of_k, 0.0), axis=0)
