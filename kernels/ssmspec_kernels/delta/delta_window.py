"""What the window kernels of the gated delta rule share: a window in registers against a tile (k, v) of the state.

With G_i the sum of g over the tokens that i sees, itself included, and r the scale and norm of a query or key (one number
per token, so that the rows of a product with raw bf16 operands are scaled after it),

    decayed(x)_i   = exp(G_i) r_i x_i                                                       (1)
    scores(x)_ij   = r_i x_i^T diag(exp(G_i - G_j)) r_j k_j      if i sees j, else 0        (2)
    (I + A) U = R                          forward substitution, column by column           (3)
    S' = diag(exp G_T) S + sum_j diag(exp(G_T - G_j)) r_j k_j u_j^T                         (4)

With a gate per head exp(G) is also one number per token, and (1) (2) (4) are scaled products of raw operands. A gate per key
channel acts between the operands: (1) and (4) are products of fp32 operands, and (2) is summed column by column. The mask
of (2) is applied before exp: the exponent of a pair that is not seen may be large and positive.

A live token that is not finite makes its whole window, or tree, NaN in its head, outputs and writes alike, not only later
tokens: 0 NaN is NaN in a product. Other heads and rows are not affected. `delta_scan` goes token by token.
"""

import triton
import triton.language as tl
from torch import Tensor

from ssmspec_ref.errors import PrecisionError

from ..shared.dots import dot_both, dot_inputs, dot_right
from .delta_inputs import gates


def check_one_type(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Raises: PrecisionError unless q, k and v have one type."""
    if not q.dtype == k.dtype == v.dtype:
        raise PrecisionError(f"q, k, v are {q.dtype}, {k.dtype}, {v.dtype}; a matrix product takes one type")


@triton.jit
def load_window(
    q, k, v, g, beta, A, decay, bias, real, t, stride_q_t, stride_k_t, stride_v_t, stride_g_t, stride_beta_t,
    i, j, in_k, in_v, CHANNEL: tl.constexpr,
):  # fmt: skip
    """The real tokens t, zeros elsewhere: q and k as stored, the rest in fp32, after the gates.

    The pointers are those of token 0 of the row and the head.
    """
    of_k = real[:, None] & in_k[None, :]
    q_t = tl.load(q + t[:, None] * stride_q_t + i[None, :], mask=of_k, other=0.0)
    k_t = tl.load(k + t[:, None] * stride_k_t + i[None, :], mask=of_k, other=0.0)
    v_t = tl.load(v + t[:, None] * stride_v_t + j[None, :], mask=real[:, None] & in_v[None, :], other=0.0).to(tl.float32)
    beta_t = tl.load(beta + t * stride_beta_t, mask=real, other=0.0).to(tl.float32)
    if CHANNEL:
        g_t = tl.load(g + t[:, None] * stride_g_t + i[None, :], mask=of_k, other=0.0).to(tl.float32)
        g_t, beta_t = gates(g_t, beta_t, decay, bias, A)
        g_t = tl.where(of_k, g_t, 0.0)
    else:
        g_t = tl.load(g + t * stride_g_t, mask=real, other=0.0).to(tl.float32)
        g_t, beta_t = gates(g_t, beta_t, decay, bias, A)
        g_t = tl.where(real, g_t, 0.0)
    return q_t, k_t, v_t, g_t, beta_t


@triton.jit
def norms(x, scale, eps, L2_NORM: tl.constexpr):
    """r for each row of x: scale / |x|, or the scale alone."""
    f = x.to(tl.float32)
    if L2_NORM:
        return scale * tl.rsqrt(tl.sum(f * f, axis=1) + eps)
    return scale + 0.0 * tl.sum(tl.zeros_like(f), axis=1)


@triton.jit
def last(G, row):
    """G of the last real row, in (t) or (t, k), and 0 for row -1: the decay of a window.

    Not a separate sum, nor that of the padding after the row, which a running sum rounds differently: the weight of the
    last token in (4) is exp of the difference, exactly 1.
    """
    is_last = tl.arange(0, G.shape[0]) == row
    if len(G.shape) == 1:
        total = tl.sum(tl.where(is_last, G, 0.0), axis=0)
    else:
        total = tl.sum(tl.where(is_last[:, None], G, 0.0), axis=0)
    return total


@triton.jit
def from_state(x, r, G, state, CHANNEL: tl.constexpr, SPLIT: tl.constexpr, ROUND: tl.constexpr = False):
    """decayed(x) S (1)."""
    if CHANNEL:
        read = dot_both(x.to(tl.float32) * r[:, None] * tl.exp(G), state, SPLIT, ROUND)
    else:
        read = (r * tl.exp(G))[:, None] * dot_right(x, state, ROUND)
    return read


@triton.jit
def scores(x, r_x, G, k, r_k, G_k, sees, J: tl.constexpr, CHANNEL: tl.constexpr):
    """(2) for rows x and J keys k, each with their own G; `sees` (rows, keys)."""
    if CHANNEL:
        j = tl.arange(0, k.shape[0])
        f, k_f = x.to(tl.float32) * r_x[:, None], k.to(tl.float32) * r_k[:, None]
        result = tl.zeros([x.shape[0], k.shape[0]], tl.float32)
        for one in range(J):
            is_one = (j == one)[:, None]
            key = tl.sum(tl.where(is_one, k_f, 0.0), axis=0)
            at_key = tl.sum(tl.where(is_one, G_k, 0.0), axis=0)
            seen = tl.sum(tl.where((j == one)[None, :] & sees, 1, 0), axis=1) != 0
            weight = tl.exp(tl.where(seen[:, None], G - at_key[None, :], float("-inf")))
            column = tl.sum(f * weight * key[None, :], axis=1)
            result = tl.where((j == one)[None, :], column[:, None], result)
    else:
        weight = tl.exp(tl.where(sees, G[:, None] - G_k[None, :], float("-inf")))
        result = dot_inputs(x, tl.trans(k)) * (r_x[:, None] * r_k[None, :]) * weight
    return result


@triton.jit
def substituted(A, R, T: tl.constexpr):
    """U of (3) for A strictly lower triangular, of which T rows are used."""
    t = tl.arange(0, A.shape[0])
    for i in range(T - 1):
        column = tl.sum(tl.where((t == i)[None, :], A, 0.0), axis=1)
        row = tl.sum(tl.where((t == i)[:, None], R, 0.0), axis=0)
        R -= column[:, None] * row[None, :]
    return R


@triton.jit
def state_after(state, k, r, G, total, U, CHANNEL: tl.constexpr, SPLIT: tl.constexpr, ROUND: tl.constexpr = False):
    """The state after the window (4); `total` is G_T."""
    if CHANNEL:
        kept = k.to(tl.float32) * r[:, None] * tl.exp(total[None, :] - G)
        state = tl.exp(total)[:, None] * state + dot_both(tl.trans(kept), U, SPLIT, ROUND)
    else:
        state = tl.exp(total) * state + dot_right(tl.trans(k), (r * tl.exp(total - G))[:, None] * U, ROUND)
    return state
