"""A linear layer added to the residual stream, with the first half of the norm after it.

    y  = x W^T + b                                rounded to the type of x                               (1)
    r' = r + y                                    rounded to the type that r is kept in                  (2)
    v  = weight r'                                rounded to the type of x                               (3)
    sums[r, j] = sum r'^2 over the 16 outputs from 16 j on, of r' as kept                                (4)

v and sums are the RMS norm of r' up to a factor for each row, which the next layer applies to its sums (`linear_rows`,
equation 2): this needs no launch in between, and no program waits for a whole row. The norm is rounded as often as by
`norm`, once for each element; x itself may consist of such rows. fp16 is refused, because v could overflow; bf16 and fp32
have the range for r'.

(4) is a pairwise sum, in the same order for every tile, so that a row has the same bits alone and in any batch. The kernel is
that of `linear_rows`: r is loaded before the weights. Bound by the bytes of the weights.
Layout: x (m, k), W (o, k), r and v (m, o), sums (m, ceil(o / 16)) in fp32.
"""

from typing import Annotated

import torch
from torch import Tensor

from ssmspec_ref.errors import ShapeMismatch

from ..launch import strides
from ..row import FP32, Axes, launcher, reads, updates, weighs, writes
from .linear_rows import PART, check_product, linear_rows_kernel, tiles
from .linear_rows import traffic_bytes as linear_bytes

WIDE = (torch.float32, torch.bfloat16)


def traffic_bytes(m: int, k: int, o: int, *, io: int = 2, residual: int = 4, bias: bool = False, parts: int = 0) -> int:
    """Bytes that must cross the memory bus: those of the product, r read and written, sums; the norm's weight is left out.

    Units: bytes; `io` and `residual` are the bytes of an element of x and of r.
    """
    return linear_bytes(m, k, o, io=io, bias=bias, parts=parts) + m * (2 * o * residual + 4 * parts_of(o))


def parts_of(o: int) -> int:
    """How many parts the squares of o outputs have."""
    return -(-o // PART)


@launcher
def linear_added(
    axes: Axes,
    x: Annotated[Tensor, reads("m k", WIDE, "io", "dense")],
    W: Annotated[Tensor, reads("o k", WIDE, "io", "dense")],
    bias: Annotated[Tensor, reads("o")] | None = None,
    *,
    residual: Annotated[Tensor, updates("m o", size="residual", layout="dense")],
    weight: Annotated[Tensor, weighs("o")],
    squares: Annotated[Tensor, reads("m i", FP32, layout="dense")] | None = None,
    eps: float = 1e-6,
    out: Annotated[Tensor, writes("m o", WIDE, "io", "dense")] | None = None,
    sums: Annotated[Tensor, writes("m j", FP32, layout="dense")] | None = None,
    overlap: bool | None = None,
    block_o: int | None = None,
    block_k: int | None = None,
    num_stages: int | None = None,
) -> tuple[Tensor, Tensor]:
    """v (m, o) and sums of up to 128 rows; `residual` is updated in place: equations (1) to (4).

    `squares` and `eps` as in `linear_rows`, where the product is that of the norm of x; also `overlap` and the tile;
    `block_o` is a multiple of 16.

    Raises: ShapeMismatch, PrecisionError (x and W of two types, or fp16), ParameterError (eps < 0), Unsupported (more rows),
    before anything is written.
    """
    m, o = axes["m"], axes["o"]
    check_product(x, W, m, eps)
    parts = parts_of(o)
    if axes.get("j", parts) != parts:
        raise ShapeMismatch(f"sums has {axes['j']} parts, but {o} outputs have {parts}; give (m, {parts})")
    v = torch.empty(m, o, dtype=x.dtype, device=x.device) if out is None else out
    found = torch.empty(m, parts, dtype=torch.float32, device=x.device) if sums is None else sums
    grid, options = tiles(x, W, overlap, block_o, block_k, num_stages)
    linear_rows_kernel[grid](
        x, W, bias, v, residual, weight, found, squares, m, o, eps, x.stride(0), W.stride(0), v.stride(0),
        residual.stride(0), found.stride(0), *strides(squares, 1), PARTS=axes.get("i", 0), **options,
    )  # fmt: skip
    return v, found
