"""The short convolution over a window, with the state after every token: the baseline for all other methods.

    S_0 = S[slots],  S_t and y_t as in `shortconv_scan`        S[places_t] = S_t

A rejected token costs nothing afterwards: the next window starts from the place of the last accepted token. The kernel is
that of `shortconv_scan`, with a store after each token.

Layout: S (s, d, w - 1), one pool for the states before and after; places (b, t). Nothing is stored for a negative place.
Bound by the bytes of the inputs and states: w - 1 columns for each token.
"""

from typing import Annotated

import torch
import triton
from torch import Tensor

from ..conv.conv_taps import tile
from ..launch import AS_WRITTEN, strides
from ..row import Axes, Live, Slots, launcher, points
from . import shortconv_columns as short
from .shortconv_columns import check_window
from .shortconv_scan import UNROLLED, shortconv_scan_kernel
from .shortconv_scan import traffic_bytes as scan_bytes


def traffic_bytes(b: int, t: int, d: int, w: int, *, state: int = 4, io: int = 2) -> int:
    """Bytes that must cross the memory bus for b live rows that keep every state.

    Units: bytes; `state` and `io` are the bytes of an element.
    """
    return scan_bytes(b, t, d, w, state=state, io=io, write_state=False) + b * t * d * (w - 1) * state


@launcher
def shortconv_snapshots(
    axes: Axes,
    S: short.State,
    B: short.Inners,
    C: short.Inners,
    x: short.Inners,
    weight: short.Taps,
    places: Annotated[Tensor, points("b t")],
    *,
    bias: short.Bias | None = None,
    slots: Slots | None = None,
    live: Live | None = None,
    out: short.Outputs | None = None,
    block_d: int | None = None,
    num_warps: int | None = None,
) -> Tensor:
    """Scans a window from S[slots], stores the state after token t in S[places[b, t]], returns the outputs (b, t, d).

    The other arguments are those of `shortconv_scan`. No place may be the slot or a place of another row; a row may overwrite
    its own slot. A padding row stores nothing. The bits are those of a scan.

    Raises: ShapeMismatch, PrecisionError, ParameterError, before anything is written.
    """
    check_window(axes, slots)
    b, t, d, w = (axes[a] for a in "btdw")
    y = torch.empty_like(x) if out is None else out
    block, warps = tile(d, b)
    block, warps = block_d or block, num_warps or warps
    shortconv_scan_kernel[(triton.cdiv(d, block), b)](
        S, B, C, x, weight, bias, slots, live, places, y,
        *strides(S, 2), *strides(B, 2), *strides(C, 2), *strides(x, 2), *strides(weight, 2), *strides(live, 2),
        *strides(places, 2), *strides(y, 2), t, UNROLL=t if t <= UNROLLED else 0, D=d, W=w, WRITE_STATE=False,
        BLOCK_D=block, BLOCK_W=triton.next_power_of_2(w - 1), num_warps=warps, **AS_WRITTEN,
    )  # fmt: skip
    return y
