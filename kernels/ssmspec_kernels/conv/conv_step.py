"""Causal convolution, one token.

    M' = [M_1 .. M_{w-1}, u]                 (1)
    y  = act(bias + sum_w weight_w M'_w)     (2)

A program owns a tile of channels of one row. It reads the w - 1 columns that (1) keeps, and writes all w; the state is
rounded to its storage type once, at the store.
Layout: M (s, c, w), oldest first, a pool that rows index through `slots`; a row with a negative slot is padding and is
skipped.
Bound by the bytes of the state.
"""

from typing import Annotated

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..launch import AS_WRITTEN, check_pool, strides
from ..row import Axes, Slots, launcher, reads, writes
from .conv_taps import Bias, Taps, Window, check_width, filtered, load_columns, load_filters, store_columns, tile


def traffic_bytes(b: int, c: int, w: int, *, state: int = 4, io: int = 2) -> int:
    """Bytes that must cross the memory bus for b live rows: w - 1 columns read, w written, u and y; parameters are left out.

    Units: bytes; `state` and `io` are the bytes of an element.
    """
    return b * c * ((2 * w - 1) * state + 2 * io)


@launcher
def conv_step(
    axes: Axes,
    M: Window,
    u: Annotated[Tensor, reads("b c")],
    weight: Taps,
    *,
    bias: Bias | None = None,
    activation: bool = True,
    slots: Slots | None = None,
    out: Annotated[Tensor, writes("b c")] | None = None,
    block_c: int | None = None,
    num_warps: int | None = None,
) -> Tensor:
    """Advances the windows M[slots] by one input u (b, c), in place, and returns the outputs (b, c): equations (1) and (2).

    `slots` (b) gives the window of each row (None: row b has slot b). The output of a padding row is not written.

    Raises: ShapeMismatch, PrecisionError, ParameterError, before anything is written.
    """
    b, c, w = (axes[k] for k in "bcw")
    check_width(w)
    check_pool(axes["s"], b, slots)
    y = torch.empty_like(u) if out is None else out
    block, warps = tile(c, b)
    block, warps = block_c or block, num_warps or warps
    _conv_step_kernel[(triton.cdiv(c, block), b)](
        M, u, weight, bias, slots, y, *strides(M, 2), *strides(u, 2), *strides(weight, 2), *strides(y, 2),
        C=c, W=w, ACTIVATION=activation, BLOCK_C=block, BLOCK_W=triton.next_power_of_2(w), num_warps=warps, **AS_WRITTEN,
    )  # fmt: skip
    return y


@triton.jit
def _conv_step_kernel(
    M, u, weight, bias, slots, y, stride_M_s, stride_M_c, stride_u_b, stride_u_c, stride_weight_c, stride_weight_w,
    stride_y_b, stride_y_c,
    C: tl.constexpr, W: tl.constexpr, ACTIVATION: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(1).to(tl.int64)
    slot = b
    if slots is not None:
        slot = tl.load(slots + b).to(tl.int64)
    if slot >= 0:
        c = tl.program_id(0).to(tl.int64) * BLOCK_C + tl.arange(0, BLOCK_C)
        inside = c < C
        state = M + slot * stride_M_s
        window = load_columns(state, None, None, 0, 0, True, c, inside, stride_M_c, 0, 0, W, 1)
        u_t = tl.load(u + b * stride_u_b + c * stride_u_c, mask=inside, other=0.0).to(tl.float32)
        window = window[1:]
        window += (u_t,)  # (1)
        taps, shift = load_filters(weight, bias, c, inside, stride_weight_c, stride_weight_w, W)
        y_t = filtered(window, taps, shift, W, ACTIVATION)  # (2)
        tl.store(y + b * stride_y_b + c * stride_y_c, y_t.to(y.dtype.element_ty), mask=inside)
        store_columns(state, window, c, inside, stride_M_c, W, BLOCK_C, BLOCK_W)
