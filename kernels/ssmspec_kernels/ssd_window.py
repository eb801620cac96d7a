"""SSD (Mamba-2), a window of tokens through matrix products: a chain, or any packed tree.

    dt   = clip(softplus(dt_raw + dt_bias), dt_limit),   ld = dt A                  (1)
    G_i  = sum of ld over the tokens that i sees, itself included                   (2)
    W_ij = exp(G_i - G_j) dt_j (C_i . B_j)        where i sees j, otherwise 0       (3)
    y    = W x + exp(G) (C S^T) + D x, then y silu(z) where z is given              (4)
    S'   = exp(G_T) S + sum_j exp(G_T - G_j) dt_j x_j B_j^T          chain only     (5)

i sees j when j comes no later (chain), or lies on the path from the root to i (tree). The mask is applied before exp: the
exponent of a pair that is not seen may be large and positive. A no-op token has ld = 0 and x = B = C = 0.

A program owns a tile (p, n) of one head of one row, with all of n. It reads the tile of the state once and writes it at most
once, whatever the number of tokens; the state meets the tokens in one product on the tensor cores, in fp32 (`dots`).
Layout: S (s, h, p, n), a pool that rows reach through `slots`; a negative slot is padding and touches nothing.
Bound by the bytes of the state.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ssmspec_ref.errors import ParameterError, PrecisionError, Unsupported

from .dots import dot_inputs, dot_left, dot_right
from .functions import silu, softplus
from .launch import FLOATS, INDICES, d_strides, divides, sizes, strides


def ssd_window(
    S: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    *,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = True,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    slots: Tensor | None = None,
    live: Tensor | None = None,
    ancestors: Tensor | None = None,
    write_state: bool = True,
    out: Tensor | None = None,
    block_p: int | None = None,
    num_warps: int | None = None,
) -> Tensor:
    """The outputs (b, t, h, p) of a window over the states S[slots], which advance in place if `write_state` is on.

    `live` (b, t) marks the real tokens; the output of a no-op is 0. `ancestors` (b, t, t) makes the window a tree: node
    t sees node j. A tree leaves no state. The output of a padding row is not written.

    Raises: ShapeMismatch, PrecisionError, ParameterError, Unsupported (a tree that should write a state), before anything
    is written.
    """
    d_axes = "h p" if D is not None and D.dim() == 2 else "h"
    axes = sizes(
        [
            ("S", S, "s h p n", FLOATS),
            ("x", x, "b t h p", FLOATS),
            ("dt", dt, "b t h", FLOATS),
            ("A", A, "h", (torch.float32,)),
            ("B", B, "b t g n", FLOATS),
            ("C", C, "b t g n", FLOATS),
            ("D", D, d_axes, FLOATS),
            ("z", z, "b t h p", FLOATS),
            ("dt_bias", dt_bias, "h", FLOATS),
            ("slots", slots, "b", INDICES),
            ("live", live, "b t", (torch.bool,)),
            ("ancestors", ancestors, "b t j", (torch.bool,)),
            ("out", out, "b t h p", FLOATS),
        ]
    )
    b, t, h, p, n, g = (axes[k] for k in "bthpng")
    divides(g, h)
    low, high = dt_limit
    if not 0 <= low <= high:
        raise ParameterError(f"dt_limit came as ({low}, {high}); give 0 <= low <= high")
    if slots is None and axes["s"] < b:
        raise ParameterError(f"the pool holds {axes['s']} states for {b} rows; give slots, or a state for each row")
    if not x.dtype == B.dtype == C.dtype:
        raise PrecisionError(f"x, B, C came as {x.dtype}, {B.dtype}, {C.dtype}; a matrix product takes one type")
    if ancestors is not None and write_state:
        raise Unsupported("a tree has no one state at its end; call with write_state=False and commit the accepted path")
    y = torch.empty_like(x) if out is None else out
    tile, warps = _tile(p, b * h)
    tile, warps = block_p or tile, num_warps or warps
    _ssd_window_kernel[(triton.cdiv(p, tile), h, b)](
        S, x, dt, A, B, C, D, z, dt_bias, slots, live, ancestors, y,
        *strides(S, 3), *strides(x, 3), *strides(dt, 3), *strides(B, 3), *strides(C, 3), *strides(z, 3), *strides(y, 3),
        *strides(live, 2), *strides(ancestors, 3), *d_strides(D), low, high,
        T=t, P=p, N=n, HEADS_PER_GROUP=h // g, SOFTPLUS=dt_softplus, LIMIT=(low, high) != (0.0, float("inf")),
        WRITE_STATE=write_state, BLOCK_T=max(16, triton.next_power_of_2(t)), BLOCK_P=tile,
        BLOCK_N=max(16, triton.next_power_of_2(n)), num_warps=warps,
    )  # fmt: skip
    return y


def _tile(p: int, programs: int) -> tuple[int, int]:
    """Channels and warps of a program."""
    return max(16, min(triton.next_power_of_2(p), 64 if programs >= 1024 else 16)), 4


@triton.jit
def _ssd_window_kernel(
    S, x, dt, A, B, C, D, z, dt_bias, slots, live, ancestors, y,
    stride_S_s, stride_S_h, stride_S_p, stride_x_b, stride_x_t, stride_x_h, stride_dt_b, stride_dt_t, stride_dt_h,
    stride_B_b, stride_B_t, stride_B_g, stride_C_b, stride_C_t, stride_C_g, stride_z_b, stride_z_t, stride_z_h,
    stride_y_b, stride_y_t, stride_y_h, stride_live_b, stride_live_t, stride_anc_b, stride_anc_t, stride_anc_j,
    stride_D_h, stride_D_p, low, high,
    T: tl.constexpr, P: tl.constexpr, N: tl.constexpr, HEADS_PER_GROUP: tl.constexpr, SOFTPLUS: tl.constexpr,
    LIMIT: tl.constexpr, WRITE_STATE: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(2).to(tl.int64)
    h = tl.program_id(1).to(tl.int64)
    slot = b
    if slots is not None:
        slot = tl.load(slots + b).to(tl.int64)
    if slot >= 0:
        g = h // HEADS_PER_GROUP
        t = tl.arange(0, BLOCK_T)
        p = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
        n = tl.arange(0, BLOCK_N)
        inside = (p < P)[:, None] & (n < N)[None, :]
        tile = S + slot * stride_S_s + h * stride_S_h + p[:, None] * stride_S_p + n[None, :]
        state = tl.load(tile, mask=inside, other=0.0).to(tl.float32)
        real = t < T
        if live is not None:
            real &= tl.load(live + b * stride_live_b + t * stride_live_t, mask=t < T, other=0) != 0
        step = tl.load(dt + b * stride_dt_b + t * stride_dt_t + h * stride_dt_h, mask=real, other=0.0).to(tl.float32)
        if dt_bias is not None:
            step += tl.load(dt_bias + h).to(tl.float32)
        if SOFTPLUS:
            step = softplus(step)
        if LIMIT:
            step = tl.minimum(tl.maximum(step, low), high)
        step = tl.where(real, step, 0.0)
        ld = step * tl.load(A + h)  # (1)
        if ancestors is not None:
            at = ancestors + b * stride_anc_b + t[:, None] * stride_anc_t + t[None, :] * stride_anc_j
            sees = tl.load(at, mask=real[:, None] & real[None, :], other=0) != 0
            G = tl.sum(tl.where(sees, ld[None, :], 0.0), axis=1)  # (2)
            G_j = tl.sum(tl.where(tl.trans(sees), ld[:, None], 0.0), axis=0)
        else:
            sees = (t[:, None] >= t[None, :]) & real[:, None] & real[None, :]
            G = tl.cumsum(ld, axis=0)  # (2)
            G_j = G
        at_x = x + b * stride_x_b + t[:, None] * stride_x_t + h * stride_x_h + p[None, :]
        x_t = tl.load(at_x, mask=real[:, None] & (p < P)[None, :], other=0.0)
        at_B = B + b * stride_B_b + t[:, None] * stride_B_t + g * stride_B_g + n[None, :]
        B_t = tl.load(at_B, mask=real[:, None] & (n < N)[None, :], other=0.0)
        at_C = C + b * stride_C_b + t[:, None] * stride_C_t + g * stride_C_g + n[None, :]
        C_t = tl.load(at_C, mask=real[:, None] & (n < N)[None, :], other=0.0)
        W = (
            tl.exp(tl.where(sees, G[:, None] - G_j[None, :], float("-inf"))) * step[None, :] * dot_inputs(C_t, tl.trans(B_t))
        )  # (3)
        y_t = dot_left(W, x_t) + tl.exp(G)[:, None] * dot_right(C_t, tl.trans(state))  # (4)
        x_f = x_t.to(tl.float32)
        if D is not None:
            y_t += tl.load(D + h * stride_D_h + p * stride_D_p, mask=p < P, other=0.0).to(tl.float32)[None, :] * x_f
        if z is not None:
            at_z = z + b * stride_z_b + t[:, None] * stride_z_t + h * stride_z_h + p[None, :]
            y_t *= silu(tl.load(at_z, mask=real[:, None] & (p < P)[None, :], other=0.0).to(tl.float32))
        at_y = y + b * stride_y_b + t[:, None] * stride_y_t + h * stride_y_h + p[None, :]
        tl.store(at_y, y_t.to(y.dtype.element_ty), mask=(t < T)[:, None] & (p < P)[None, :])
        if WRITE_STATE:
            total = tl.sum(ld, axis=0)
            weight = tl.exp(total - G) * step
            state = tl.exp(total) * state + dot_left(tl.trans(weight[:, None] * x_f), B_t)  # (5)
            tl.store(tile, state.to(S.dtype.element_ty), mask=inside)
