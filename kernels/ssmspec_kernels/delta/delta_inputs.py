"""The arguments of the gated delta rule's kernels, and how one token is read and applied in registers.

    g = A softplus(g_raw + dt_bias),  beta = sigmoid(beta_raw)   if A is given, otherwise g and beta as given          (1)
    g = low sigmoid(-A (g_raw + dt_bias))                        instead, if it is bounded below (`kda.kda_inputs`)
    q^ = scale q / |q|,  k^ = k / |k|                            |x| = sqrt(sum x^2 + eps), 1 without the norm        (2)
    S- = diag(exp g) S                                                                                                (3)
    u  = beta (v - S-^T k^)                                                                                           (4)
    S' = S- + k^ u^T,   o = S'^T q^                                                                                   (5)

g is one log decay per value head (b, t, h), or one per key channel of each value head (b, t, h, k). A no-op token has g = 0
and beta = 0 after (1), and q = k = v = 0. Value head h reads key head h // (heads / key heads).
"""

from typing import Annotated

import triton
import triton.language as tl
from torch import Tensor

from ssmspec_ref.errors import ParameterError

from ..launch import check_pool, divides, strides
from ..row import FP32, Axes, reads, updates, weighs, writes
from ..shared.functions import sigmoid, softplus
from ..shared.strides import DeltaStrides, GroupStrides, HeadStrides, KeyStrides, RowStrides

State = Annotated[Tensor, updates("s h k v")]
Start = Annotated[Tensor, reads("s h k v", size="state")]
"""A state that is only read."""
Keys = Annotated[Tensor, reads("b t g k")]
Values = Annotated[Tensor, reads("b t h v")]
Gates = Annotated[Tensor, reads("b t h | b t h k", size="gate")]
Strengths = Annotated[Tensor, reads("b t h", size="gate")]
Decay = Annotated[Tensor, weighs("h", FP32)]
GateBias = Annotated[Tensor, weighs("h | h k", layout="dense")]
Outputs = Annotated[Tensor, writes("b t h v")]


def check_inputs(
    axes: Axes, A: Tensor | None, dt_bias: Tensor | None, slots: Tensor | None, scale: float | None, eps: float
) -> float:
    """The scale of the queries: k^-1/2 if None is given.

    Raises: ParameterError.
    """
    divides(axes["g"], axes["h"])
    check_pool(axes["s"], axes["b"], slots)
    check_bias(A, dt_bias)
    return check_scale(scale, eps, axes["k"])


def check_bias(A: Tensor | None, dt_bias: Tensor | None) -> None:
    """Raises: ParameterError for a bias of gates that come as they are."""
    if dt_bias is not None and A is None:
        raise ParameterError("dt_bias is given without A; give A for gates that come as projections, or leave both out")


def check_scale(scale: float | None, eps: float, k: int) -> float:
    """The scale of the queries. Raises: ParameterError."""
    scale = k**-0.5 if scale is None else scale
    if not (scale > 0 and eps > 0):
        raise ParameterError(f"scale and eps are {scale} and {eps}; give scale > 0 (or None) and eps > 0")
    return scale


def window_strides(
    S: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, o: Tensor, *, rows: bool = False
) -> DeltaStrides:
    """Those of the state, of inputs that were checked and of the outputs; `rows`: of the state without that over k."""
    of_q, of_k = (GroupStrides(*strides(x, 3)) for x in (q, k))
    of_v, of_g, of_beta, of_o = (HeadStrides(*strides(x, 3)) for x in (v, g, beta, o))
    of_S = RowStrides(*strides(S, 2)) if rows else KeyStrides(*strides(S, 3))
    return DeltaStrides(of_S, of_q, of_k, of_v, of_g, of_beta, of_o)


@triton.jit
def slot_of(slots, b):
    """The slot of a row."""
    slot = b
    if slots is not None:
        slot = tl.load(slots + b).to(tl.int64)
    return slot


@triton.jit
def load_gate_params(A, dt_bias, h, i, stride_bias_h, in_k, CHANNEL: tl.constexpr):
    """A and dt_bias of a head, in fp32; zeros where absent."""
    decay, bias = 0.0, 0.0
    if A is not None:
        decay = tl.load(A + h)
    if dt_bias is not None:
        if CHANNEL:
            bias = tl.load(dt_bias + h * stride_bias_h + i, mask=in_k, other=0.0).to(tl.float32)
        else:
            bias = tl.load(dt_bias + h * stride_bias_h).to(tl.float32)
    return decay, bias


@triton.jit
def gates(g, beta, decay, bias, A, low=None, BOUNDED: tl.constexpr = False):
    """The log decay and the strength of the write (1)."""
    if A is not None:
        if BOUNDED:  # noqa: SIM108 (a statement for each gate)
            g = low * sigmoid(-decay * (g + bias))
        else:
            g = decay * softplus(g + bias)
        beta = sigmoid(beta)
    return g, beta


@triton.jit
def load_token(
    q, k, v, g, beta, live, t, stride_q, stride_k, stride_v, stride_g, stride_beta, stride_live, in_k, in_v,
    CHANNEL: tl.constexpr,
):  # fmt: skip
    """Values of token t, the gates in fp32; zeros for a no-op. The pointers are those of token 0."""
    real = True
    t = tl.cast(t, tl.int64)
    if live is not None:
        real = tl.load(live + t * stride_live) != 0
    q_t = tl.load(q + t * stride_q, mask=in_k & real, other=0.0)
    k_t = tl.load(k + t * stride_k, mask=in_k & real, other=0.0)
    v_t = tl.load(v + t * stride_v, mask=in_v & real, other=0.0)
    if CHANNEL:
        g_t = tl.load(g + t * stride_g, mask=in_k & real, other=0.0).to(tl.float32)
    else:
        g_t = tl.load(g + t * stride_g).to(tl.float32)
    beta_t = tl.load(beta + t * stride_beta).to(tl.float32)
    return real, q_t, k_t, v_t, g_t, beta_t


@triton.jit
def advance(state, real, q, k, v, g, beta, scale, eps, CHANNEL: tl.constexpr, L2_NORM: tl.constexpr, LANES: tl.constexpr):
    """Applies one token to a tile (k, v) of the state, its rows in the order of `rows`: its output and the state after it.

    The output is computed from the state before the token, o = S-^T q^ + (q^ k^) u, in parallel with (4): its sum over k
    does not wait for u. q and k enter unnormalized; their norms are factors of the sums, which do not wait for them.
    """
    q, k, v = q.to(tl.float32), k.to(tl.float32), v.to(tl.float32)
    a = tl.exp(tl.where(real, g, 0.0))
    r_q, r_k = scale, 1.0
    if L2_NORM:
        r_q = scale * tl.rsqrt(tl.sum(q * q, axis=0) + eps)
        r_k = tl.rsqrt(tl.sum(k * k, axis=0) + eps)  # (2)
    both = tl.sum(q * k, axis=0)
    q, k = spread(q, LANES), spread(k, LANES)
    if CHANNEL:
        state *= spread(a, LANES)[:, None]  # (3)
        a = 1.0
    u = r_k * (tl.where(real, beta, 0.0) * (v - a * r_k * tl.sum(state * k[:, None], axis=0)))  # (4)
    o = r_q * (a * tl.sum(state * q[:, None], axis=0) + both * u)
    return o, tl.fma(k[:, None], u[None, :], a * state)  # (5)


@triton.jit
def rows(BLOCK_K: tl.constexpr, LANES: tl.constexpr):
    """The channel k of each row of a tile: the rows of LANES lanes in turn, each lane with consecutive channels of its
    run."""
    row = tl.arange(0, BLOCK_K)
    return row % LANES * (BLOCK_K // LANES) + row // LANES


@triton.jit
def spread(x, LANES: tl.constexpr):
    """x (k) in the order of `rows`, so that a lane loads its run of k from shared memory in few loads."""
    return tl.reshape(tl.trans(tl.reshape(x, (LANES, x.shape[0] // LANES))), x.shape)
