"""SSD (Mamba-2), a window of tokens through matrix products: a chain, or any packed tree.

    dt   = clip(softplus(dt_raw + dt_bias), dt_limit),   ld = dt A                  (1)
    G_i  = sum of ld over the tokens that i sees, itself included                   (2)
    W_ij = exp(G_i - G_j) dt_j (C_i . B_j)        where i sees j, otherwise 0       (3)
    y    = W x + exp(G) (C S^T) + D x, then y silu(z) where z is given              (4)
    S'   = exp(G_T) S + sum_j exp(G_T - G_j) dt_j x_j B_j^T          chain only     (5)

i sees j when j comes no later (chain), or lies on the path from the root to i (tree). A no-op token has ld = 0 and
x = B = C = 0. D of a head is added to the diagonal of W. A live token that is NaN makes its whole window NaN, not only what
comes behind it: 0 NaN is NaN in a product.

A program owns PROGRAM_P channels of one head of one row. What the tokens share, (1) to (3), is computed once; then it walks
its channels in tiles (p, n), with the next tiles on their way from memory while this one is multiplied. Each tile of the
state is read once and written at most once, whatever the number of tokens; products are as accurate as fp32 (`dots`).
Layout: S (s, h, p, n), a pool that rows reach through `slots`; a negative slot is padding and touches nothing.
Bound by the bytes of the state.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ssmspec_ref.errors import Unsupported

from .dots import dot_inputs, dot_left, dot_right
from .functions import silu
from .launch import d_strides, strides
from .ssd_inputs import check_inputs, check_one_type, load_rows, step_size, weights, window_tile

MOST_TOKENS = 128


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
    write_state: bool = True,
    out: Tensor | None = None,
    block_p: int | None = None,
    program_p: int | None = None,
    num_warps: int | None = None,
    stages: int | None = None,
) -> Tensor:
    """The outputs (b, t, h, p) of a window over the states S[slots], which advance in place if `write_state` is on.

    The same as `ssd_scan` but for rounding, for windows of 4 tokens and more. `live` (b, t) marks the real tokens; the output
    of a no-op is 0. The output of a padding row is not written.

    Raises: ShapeMismatch, PrecisionError, ParameterError, Unsupported, before anything is written.
    """
    more = [("live", live, "b t", (torch.bool,))]
    axes = check_inputs(S, x, dt, A, B, C, D, z, dt_bias, dt_limit, slots, out, *more)
    return launch(
        axes, S, x, dt, A, B, C, D, z, dt_bias, dt_softplus, dt_limit, slots, live, None, write_state, out,
        (block_p, program_p, num_warps, stages),
    )  # fmt: skip


def launch(
    axes: dict[str, int],
    S: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    dt_bias: Tensor | None,
    dt_softplus: bool,
    dt_limit: tuple[float, float],
    slots: Tensor | None,
    live: Tensor | None,
    ancestors: Tensor | None,
    write_state: bool,
    out: Tensor | None,
    tiles: tuple[int | None, ...],
) -> Tensor:
    """Run the kernel on arguments whose axes were checked.

    Raises: PrecisionError, Unsupported, before anything is written.
    """
    b, t, h, p, n, g = (axes[k] for k in "bthpng")
    check_one_type(x=x, B=B, C=C)
    if t > MOST_TOKENS:
        raise Unsupported(f"a window of {t} tokens; its weights fill the registers beyond {MOST_TOKENS}: cut it")
    y = torch.empty_like(x) if out is None else out
    # Two warps: with four or more and over 32 tokens the products become wgmma, and what Triton 3.6 compiled for an H200
    # then was wrong and read outside (33 nodes, tiles of 16 channels); with two it is right up to 128.
    default = window_tile(p, b * h, 16 if write_state or t > 16 else 32)
    block, program, warps, stages = (given or own for given, own in zip(tiles, default, strict=True))
    each = triton.cdiv(program, block)
    ssd_window_kernel[(triton.cdiv(p, each * block), h, b)](
        S, x, dt, A, B, C, D, z, dt_bias, slots, live, ancestors, y,
        *strides(S, 3), *strides(x, 3), *strides(dt, 3), *strides(B, 3), *strides(C, 3), *strides(z, 3), *strides(y, 3),
        *strides(live, 2), *strides(ancestors, 3), *d_strides(D), *dt_limit,
        T=t, P=p, N=n, HEADS_PER_GROUP=h // g, D_HEAD=D is not None and D.dim() == 1, SOFTPLUS=dt_softplus,
        LIMIT=dt_limit != (0.0, float("inf")), WRITE_STATE=write_state, BLOCK_T=max(16, triton.next_power_of_2(t)),
        BLOCK_N=max(16, triton.next_power_of_2(n)), BLOCK_P=block, TILES=each, STAGES=stages,
        num_warps=warps,
    )  # fmt: skip
    return y


@triton.jit
def ssd_window_kernel(
    S, x, dt, A, B, C, D, z, dt_bias, slots, live, ancestors, y,
    stride_S_s, stride_S_h, stride_S_p, stride_x_b, stride_x_t, stride_x_h, stride_dt_b, stride_dt_t, stride_dt_h,
    stride_B_b, stride_B_t, stride_B_g, stride_C_b, stride_C_t, stride_C_g, stride_z_b, stride_z_t, stride_z_h,
    stride_y_b, stride_y_t, stride_y_h, stride_live_b, stride_live_t, stride_anc_b, stride_anc_t, stride_anc_j,
    stride_D_h, stride_D_p, low, high,
    T: tl.constexpr, P: tl.constexpr, N: tl.constexpr, HEADS_PER_GROUP: tl.constexpr, D_HEAD: tl.constexpr,
    SOFTPLUS: tl.constexpr, LIMIT: tl.constexpr, WRITE_STATE: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_P: tl.constexpr, TILES: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(2).to(tl.int64)
    h = tl.program_id(1).to(tl.int64)
    slot = b
    if slots is not None:
        slot = tl.load(slots + b).to(tl.int64)
    if slot >= 0:
        g = h // HEADS_PER_GROUP
        i, n = tl.arange(0, BLOCK_T), tl.arange(0, BLOCK_N)
        t = i.to(tl.int64)
        in_t, in_n = i < T, n < N
        real = in_t
        if live is not None:
            real &= tl.load(live + b * stride_live_b + t * stride_live_t, mask=in_t, other=0) != 0
        if ancestors is not None:
            at_anc = ancestors + b * stride_anc_b
            real &= tl.load(at_anc + t * (stride_anc_t + stride_anc_j), mask=in_t, other=0) != 0
            at_pair = at_anc + t[:, None] * stride_anc_t + t[None, :] * stride_anc_j
            sees = tl.load(at_pair, mask=real[:, None] & real[None, :], other=0) != 0
        else:
            sees = (i[:, None] >= i[None, :]) & real[:, None] & real[None, :]
        bias = 0.0
        if dt_bias is not None:
            bias = tl.load(dt_bias + h).to(tl.float32)
        raw = tl.load(dt + b * stride_dt_b + t * stride_dt_t + h * stride_dt_h, mask=real, other=0.0)
        step = step_size(raw, real, bias, low, high, SOFTPLUS, LIMIT)
        ld = step * tl.load(A + h)  # (1)
        G = tl.sum(tl.where(sees, ld[None, :], 0.0), axis=1) if ancestors is not None else tl.cumsum(ld, axis=0)  # (2)
        B_t = load_rows(B + b * stride_B_b + g * stride_B_g, t * stride_B_t, n, real, in_n)
        C_t = load_rows(C + b * stride_C_b + g * stride_C_g, t * stride_C_t, n, real, in_n)
        W = weights(G, G, step, sees, dot_inputs(C_t, tl.trans(B_t)))  # (3)
        if D_HEAD:
            W = tl.where(i[:, None] == i[None, :], W + tl.load(D + h * stride_D_h).to(tl.float32), W)
        from_state = tl.exp(G)
        total = tl.sum(ld, axis=0)
        to_state = tl.exp(total - G) * step
        at_S = S + slot * stride_S_s + h * stride_S_h
        at_x = x + b * stride_x_b + h * stride_x_h
        at_y = y + b * stride_y_b + h * stride_y_h
        for tile in tl.range(0, TILES, num_stages=STAGES):
            p = (tl.program_id(0).to(tl.int64) * TILES + tile) * BLOCK_P + tl.arange(0, BLOCK_P)
            in_p = p < P
            state = load_rows(at_S, p * stride_S_p, n, in_p, in_n).to(tl.float32)
            x_t = load_rows(at_x, t * stride_x_t, p, real, in_p)
            y_t = dot_left(W, x_t) + from_state[:, None] * dot_right(C_t, tl.trans(state))  # (4)
            if D is not None and not D_HEAD:
                skip = tl.load(D + h * stride_D_h + p * stride_D_p, mask=in_p, other=0.0).to(tl.float32)
                y_t += skip[None, :] * x_t.to(tl.float32)
            if z is not None:
                y_t *= silu(load_rows(z + b * stride_z_b + h * stride_z_h, t * stride_z_t, p, real, in_p).to(tl.float32))
            tl.store(
                at_y + t[:, None] * stride_y_t + p[None, :], y_t.to(y.dtype.element_ty), mask=in_t[:, None] & in_p[None, :]
            )
            if WRITE_STATE:
                state = tl.exp(total) * state + dot_left(tl.trans(to_state[:, None] * x_t.to(tl.float32)), B_t)  # (5)
                at_tile = at_S + p[:, None] * stride_S_p + n[None, :]
                tl.store(at_tile, state.to(S.dtype.element_ty), mask=in_p[:, None] & in_n[None, :])
