"""The short convolution, one or several tokens in one launch, between its two gates.

    u  = B x                                  (1)
    M  = [S | u]                              w columns, oldest first            (2)
    y  = C (bias + sum_w weight_w M_w)        0 for a no-op                      (3)
    S' = M without its oldest column          S for a no-op                      (4)

A program owns a tile of channels of one row: it reads their columns once, loops over the tokens with them in registers, and
writes them once, or not at all. Everything is computed in fp32; the state is rounded to its storage type once, at the end.
The tiles are those of the convolution; they were not measured with gates.

Layout: S (s, d, w - 1), oldest first, a pool that rows index through `slots`; a row with a negative slot is padding and is
skipped. Bound by the bytes of the inputs, for one token of the state too.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..conv.conv_taps import load_columns, load_filters, store_columns, tile
from ..launch import AS_WRITTEN, strides
from ..row import Axes, Live, Slots, launcher, moved
from . import shortconv_columns as short
from .shortconv_columns import check_window, read_token

UNROLLED = 32
"""Longest window whose tokens are unrolled."""


def traffic_bytes(b: int, t: int, d: int, w: int, *, state: int = 4, io: int = 2, write_state: bool = True) -> int:
    """Bytes that must cross the memory bus for b live rows of t real tokens: columns, B, C, x, y; parameters are left out.

    Units: bytes; `state` and `io` are the bytes of an element.
    """
    axes = {"s": b, "b": b, "t": t, "d": d, "q": w - 1}
    return moved(shortconv_scan, axes, {"state": state, "io": io}, kept=write_state)


@launcher
def shortconv_scan(
    axes: Axes,
    S: short.State,
    B: short.Inners,
    C: short.Inners,
    x: short.Inners,
    weight: short.Taps,
    *,
    bias: short.Bias | None = None,
    slots: Slots | None = None,
    live: Live | None = None,
    write_state: bool = True,
    out: short.Outputs | None = None,
    block_d: int | None = None,
    num_warps: int | None = None,
) -> Tensor:
    """Advances the columns S[slots] by a window of tokens (b, t, d), in place, and returns the outputs: (1) to (4).

    `slots` (b) gives the state of each row (None: row b has slot b); several rows may share one if `write_state` is off.
    `live` (b, t) marks the real tokens; a no-op's inputs are not read. The output of a padding row is not written. A token
    has the same bits in a window of any length.

    Raises: ShapeMismatch, PrecisionError, ParameterError, before anything is written.
    """
    check_window(axes, slots)
    b, t, d, w = (axes[a] for a in "btdw")
    y = torch.empty_like(x) if out is None else out
    block, warps = tile(d, b)
    block, warps = block_d or block, num_warps or warps
    shortconv_scan_kernel[(triton.cdiv(d, block), b)](
        S, B, C, x, weight, bias, slots, live, None, y,
        *strides(S, 2), *strides(B, 2), *strides(C, 2), *strides(x, 2), *strides(weight, 2), *strides(live, 2), 0, 0,
        *strides(y, 2), t, UNROLL=t if t <= UNROLLED else 0, D=d, W=w, WRITE_STATE=write_state, BLOCK_D=block,
        BLOCK_W=triton.next_power_of_2(w - 1), num_warps=warps, **AS_WRITTEN,
    )  # fmt: skip
    return y


@triton.jit
def shortconv_scan_kernel(
    S, B, C, x, weight, bias, slots, live, places, y,
    stride_S_s, stride_S_d, stride_B_b, stride_B_t, stride_C_b, stride_C_t, stride_x_b, stride_x_t, stride_weight_d,
    stride_weight_w, stride_live_b, stride_live_t, stride_places_b, stride_places_t, stride_y_b, stride_y_t, tokens,
    UNROLL: tl.constexpr, D: tl.constexpr, W: tl.constexpr, WRITE_STATE: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_W: tl.constexpr,
):  # fmt: skip
    """With `places` the state after every token is stored too."""
    b = tl.program_id(1).to(tl.int64)
    slot = b
    if slots is not None:
        slot = tl.load(slots + b).to(tl.int64)
    # The filters do not depend on the slot, and are loaded before it is known.
    d = tl.program_id(0).to(tl.int64) * BLOCK_D + tl.arange(0, BLOCK_D)
    inside = d < D
    taps, shift = load_filters(weight, bias, d, inside, stride_weight_d, stride_weight_w, W)
    if slot >= 0:
        state = S + slot * stride_S_s
        window = load_columns(state, None, None, 0, 0, True, d, inside, stride_S_d, 0, 0, W - 1, 0)
        B_at, C_at, x_at = B + b * stride_B_b + d, C + b * stride_C_b + d, x + b * stride_x_b + d
        y_at = y + b * stride_y_b + d
        live_at = None if live is None else live + b * stride_live_b
        places_at = None if places is None else places + b * stride_places_b
        if UNROLL > 0:
            for t in tl.static_range(UNROLL):
                window = _token(
                    window, t, S, B_at, C_at, x_at, live_at, places_at, y_at, d, inside, taps, shift, stride_S_s, stride_S_d,
                    stride_B_t, stride_C_t, stride_x_t, stride_live_t, stride_places_t, stride_y_t, W, BLOCK_D, BLOCK_W,
                )  # fmt: skip
        else:
            for t in range(tokens):
                window = _token(
                    window, t, S, B_at, C_at, x_at, live_at, places_at, y_at, d, inside, taps, shift, stride_S_s, stride_S_d,
                    stride_B_t, stride_C_t, stride_x_t, stride_live_t, stride_places_t, stride_y_t, W, BLOCK_D, BLOCK_W,
                )  # fmt: skip
        if WRITE_STATE:
            store_columns(state, window, d, inside, stride_S_d, W - 1, BLOCK_D, BLOCK_W)


@triton.jit
def _token(
    window, t, S, B, C, x, live, places, y, d, inside, taps, shift, stride_S_s, stride_S_d, stride_B_t, stride_C_t,
    stride_x_t, stride_live_t, stride_places_t, stride_y_t, W: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """The columns after token t, whose output is stored."""
    t = tl.cast(t, tl.int64)
    real = True
    if live is not None:
        real = tl.load(live + t * stride_live_t) != 0
    y_t, _, window = read_token(
        window, B + t * stride_B_t, C + t * stride_C_t, x + t * stride_x_t, real, inside, taps, shift, W, live is not None
    )  # (1) to (4)
    tl.store(y + t * stride_y_t, y_t.to(y.dtype.element_ty), mask=inside)
    if places is not None:
        place = tl.load(places + t * stride_places_t).to(tl.int64)
        if place >= 0:
            store_columns(S + place * stride_S_s, window, d, inside, stride_S_d, W - 1, BLOCK_D, BLOCK_W)
    return window
