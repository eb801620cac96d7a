"""SSD (Mamba-2), a window or a packed tree that only reads the state, with the first half of the gated norm after it.

    y as in `ssd_window` (4), a chain or, with `ancestors`, a tree                          (1)
    g = y silu(z)                                                                           (2)
    v = weight g                                  rounded to the type of x                  (3)
    squares[b, t, j] = sum g^2 over the channels of tile j, the tiles of all heads in turn  (4)

v and squares are the RMS norm of g over all heads, gate first, up to a factor for each token, which the next projection
applies to its sums (`linear_rows`), as after `ssd_gated`, which is for single tokens. The kernel is that of `ssd_window`.
"""

import torch
import triton
from torch import Tensor

from ssmspec_ref.errors import ShapeMismatch

from ..row import Ancestors, Axes, Slots, launcher, moved
from . import ssd_inputs as ssd
from .ssd_gated import NormWeight, Squares, outputs
from .ssd_inputs import Inputs
from .ssd_window import launch, window_tiles


def traffic_bytes(
    b: int, t: int, h: int, p: int, n: int, g: int, *, parts: int, state: int = 4, io: int = 2, tree: bool = False
) -> int:
    """Bytes that must cross the memory bus for b live rows, `parts` squares per token; the norm's weight is left out.

    Units: bytes; `state` and `io` are the bytes of an element.
    """
    axes = {"s": b, "b": b, "t": t, "j": t, "h": h, "p": p, "n": n, "g": g, "parts": parts}
    return moved(ssd_gated_window, axes, {"state": state, "io": io}, without=() if tree else ("ancestors",))


@launcher
def ssd_gated_window(
    axes: Axes,
    S: ssd.Start,
    x: ssd.Heads,
    dt: ssd.PerHeads,
    A: ssd.Decay,
    B: ssd.Projs,
    C: ssd.Projs,
    *,
    z: ssd.Heads,
    weight: NormWeight,
    ancestors: Ancestors | None = None,
    D: ssd.Skip | None = None,
    dt_bias: ssd.PerHead | None = None,
    dt_softplus: bool = True,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    slots: Slots | None = None,
    out: ssd.Outputs | None = None,
    squares: Squares | None = None,
    block_p: int | None = None,
) -> tuple[Tensor, Tensor]:
    """v (b, t, h, p) and squares (b, t, j) of a window over the states S[slots], (1) to (4).

    `weight` (h, p) is the norm's; j follows from the tile. Nothing is written for a padding row; v and squares of padding
    nodes of a tree are 0.

    Raises: ShapeMismatch, PrecisionError (v in fp16 too), ParameterError, Unsupported, before anything is written.
    """
    given = Inputs(axes, S, x, dt, A, B, C, D, z, dt_bias, dt_softplus, dt_limit, slots)
    b, t, h, p, n, g = given.sizes
    if given.axes.get("j", t) != t:
        raise ShapeMismatch(f"ancestors has {given.axes['j']} columns for {t} nodes; give one for each node")
    block, program, *rest = window_tiles(b * h, t, h // g, p, x.dtype == torch.bfloat16 and n <= 128)
    block, program = (block, program) if block_p is None else (block_p, block_p)
    v, sums = outputs(given.axes, h * triton.cdiv(p, block), x, out, squares, "ssd_window")
    launch(given, None, ancestors, False, v, (block, program, *rest), (weight, sums))
    return v, sums
