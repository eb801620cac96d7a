"""SSD (Mamba-2), one or a few tokens, with the first half of the gated norm after it.

    S' and y as in `ssd_scan`                                                               (1)
    g = y silu(z)                                                                           (2)
    v = weight g                                  rounded to the type of x                  (3)
    squares[b, t, j] = sum g^2 over the channels of tile j, the tiles of all heads in turn  (4)

v and squares are the RMS norm of g over all heads, gate first, up to a factor for each token, which the next projection
applies to its sums (`linear_rows`, equation 2): this needs no launch in between, and no program waits for all heads. y is
not rounded before it is gated, one rounding less than in `gated_norm`. fp16 is refused, because v could overflow.

The kernel is that of `ssd_scan`; its tiles are larger, so that there are fewer parts of (4).
Layout: as in `ssd_scan`, squares (b, t, j). Bound by the bytes of the state.
"""

from typing import Annotated

import torch
import triton
from torch import Tensor

from ssmspec_ref.errors import PrecisionError, ShapeMismatch

from ..launch import overlapped, strides
from ..row import FP32, Axes, Slots, launcher, moved, weighs, writes
from ..shared.strides import StateStrides, TokenStrides
from ..shared.tuning import H200
from . import ssd_inputs as ssd
from .ssd_inputs import Inputs, skip_strides, window_strides
from .ssd_scan import ssd_scan_kernel

CHANNELS, WARPS = H200["ssd_gated"]["block_p"], H200["ssd_gated"]["warps"]
"""Channels of a program."""
NormWeight = Annotated[Tensor, weighs("h p", layout="whole")]
Squares = Annotated[Tensor, writes("b t parts", FP32)]


def traffic_bytes(b: int, t: int, h: int, p: int, n: int, g: int, *, state: int = 4, io: int = 2) -> int:
    """Bytes that must cross the memory bus for b live rows; the norm's weight is left out, as parameters are.

    Units: bytes; `state` and `io` are the bytes of an element.
    """
    axes = {"s": b, "b": b, "t": t, "h": h, "p": p, "n": n, "g": g, "parts": parts(h, p)}
    return moved(ssd_gated, axes, {"state": state, "io": io})


def parts(h: int, p: int) -> int:
    """How many partial sums of squares a token has."""
    return h * triton.cdiv(p, _channels(p))


def _channels(p: int) -> int:
    return min(triton.next_power_of_2(p), CHANNELS)


@launcher
def ssd_gated(
    axes: Axes,
    S: ssd.State,
    x: ssd.Heads,
    dt: ssd.PerHeads,
    A: ssd.Decay,
    B: ssd.Projs,
    C: ssd.Projs,
    *,
    z: ssd.Heads,
    weight: NormWeight,
    D: ssd.Skip | None = None,
    dt_bias: ssd.PerHead | None = None,
    dt_softplus: bool = True,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    slots: Slots | None = None,
    out: ssd.Outputs | None = None,
    squares: Squares | None = None,
) -> tuple[Tensor, Tensor]:
    """Advances the states S[slots] by a window of tokens, in place; v (b, t, h, p) and squares (b, t, j), (1) to (4).

    `weight` (h, p) is the norm's. Rows and slots as in `ssd_scan`; nothing is written for a padding row.

    Raises: ShapeMismatch, PrecisionError (v in fp16 too), ParameterError, before anything is written.
    """
    given = Inputs(axes, S, x, dt, A, B, C, D, z, dt_bias, dt_softplus, dt_limit, slots)
    b, t, h, p, n, _ = given.sizes
    block = _channels(p)
    v, sums = outputs(given.axes, parts(h, p), x, out, squares, "ssd_scan")
    ssd_scan_kernel[(triton.cdiv(p, block), h, b)](
        *given.tensors, None, None, None, v, weight, sums, window_strides(given, v), TokenStrides(0, 0), TokenStrides(0, 0),
        StateStrides(0, 0, 0), TokenStrides(*strides(sums, 2)), skip_strides(given), *given.dt_limit, T=t, P=p, N=n,
        **given.constants,
        WRITE_STATE=True, BLOCK_T=triton.next_power_of_2(t), BLOCK_P=block, BLOCK_N=triton.next_power_of_2(n),
        RUN=min(32, triton.next_power_of_2(n)), num_warps=WARPS, enable_fp_fusion=False, **overlapped(S.device),
    )  # fmt: skip
    return v, sums


def outputs(
    axes: dict[str, int], j: int, x: Tensor, out: Tensor | None, squares: Tensor | None, plain: str
) -> tuple[Tensor, Tensor]:
    """v and j squares per token, as given or new; `plain` is the kernel to use where a gated one refuses.

    Raises: ShapeMismatch (another number of squares), PrecisionError (v in fp16).
    """
    if axes.get("parts", j) != j:
        raise ShapeMismatch(f"squares has {axes['parts']} parts, but a token has {j}; give (b, t, {j})")
    if torch.float16 in (x.dtype, x.dtype if out is None else out.dtype):
        raise PrecisionError(f"x or out is torch.float16, in which a row that is not normed may overflow; use {plain}")
    v = torch.empty_like(x) if out is None else out
    sums = torch.empty(axes["b"], axes["t"], j, dtype=torch.float32, device=x.device) if squares is None else squares
    return v, sums
