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

from .ssd_gated import gate_arguments, outputs
from .ssd_inputs import check_inputs
from .ssd_scan import traffic_bytes as scan_bytes
from .ssd_window import launch, window_tiles


def traffic_bytes(
    b: int, t: int, h: int, p: int, n: int, g: int, *, parts: int, state: int = 4, io: int = 2, tree: bool = False
) -> int:
    """Bytes that must cross the memory bus for b live rows, `parts` squares per token; the norm's weight is left out.

    Units: bytes; `state` and `io` are the bytes of an element.
    """
    scan = scan_bytes(b, t, h, p, n, g, state=state, io=io, write_state=False, z=True)
    return scan + 4 * b * t * parts + (b * t * t if tree else 0)


def ssd_gated_window(
    S: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    *,
    z: Tensor,
    weight: Tensor,
    ancestors: Tensor | None = None,
    D: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = True,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    slots: Tensor | None = None,
    out: Tensor | None = None,
    squares: Tensor | None = None,
    block_p: int | None = None,
) -> tuple[Tensor, Tensor]:
    """v (b, t, h, p) and squares (b, t, j) of a window over the states S[slots], (1) to (4).

    `weight` (h, p) is the norm's; j follows from the tile. Nothing is written for a padding row; v and squares of padding
    nodes of a tree are 0.

    Raises: ShapeMismatch, PrecisionError (v in fp16 too), ParameterError, Unsupported, before anything is written.
    """
    more = [*gate_arguments(weight, squares), ("ancestors", ancestors, "b t k", (torch.bool,))]
    given = check_inputs(S, x, dt, A, B, C, D, z, dt_bias, dt_softplus, dt_limit, slots, out, *more)
    b, t, h, p, n, g = given.sizes
    if given.axes.get("k", t) != t:
        raise ShapeMismatch(f"ancestors has {given.axes['k']} columns for {t} nodes; give one for each node")
    block, program, *rest = window_tiles(b * h, t, h // g, p, x.dtype == torch.bfloat16 and n <= 128)
    block, program = (block, program) if block_p is None else (block_p, block_p)
    v, sums = outputs(given.axes, h * triton.cdiv(p, block), x, weight, out, squares, "ssd_window")
    launch(given, None, ancestors, False, v, (block, program, *rest), (weight, sums))
    return v, sums
