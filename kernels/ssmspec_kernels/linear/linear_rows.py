"""A linear layer for few rows: y = f x W^T + b.

    y[r, o] = f[r] sum_k x[r, k] W[o, k] + b[o]           (1)
    f[r] = 1 / sqrt(sum_j squares[r, j] / k + eps), or 1  (2)

The weights are far larger than everything else and are read once for 32 rows. A program owns BLOCK_O outputs and loops over
the inputs in blocks of BLOCK_K. A block is cut into slices of its inputs, each summed by a different warp (3), because the
products of one warp wait for each other; at the end the slices are added pairwise (4). So the order in which a row is summed
does not depend on the number or the contents of the rows, and a row has the same bits alone and in any batch. Sums are fp32.

Rows that an RMS norm has only weighted come with partial sums of their squares (`linear_added`). They are read before the
weights and added in one order, so that the factor (2) does not delay the weights.

If the device supports it (sm_90), the launch overlaps the previous one in the stream: its programs start while that one
ends, and wait for it before they load x (5). With squares or a residual they wait before everything else. A product without
them loads its first weights before the wait, and lets the next launch start at once, so that memory is not idle between two
launches.

Layout: x (m, k), W (o, k), y (m, o); W as checkpoints store it. Rows are padded to the width of a tensor-core tile.
Bound by the bytes of the weights, and by the start and the end of each launch, when fewer loads are in flight.
"""

from typing import Annotated, Any

import torch
import triton
import triton.language as tl
import triton.language.extra.cuda  # griddepcontrol
from torch import Tensor

from ssmspec_ref.errors import ParameterError, PrecisionError, Unsupported

from ..launch import AS_WRITTEN, overlapped, strides
from ..row import FP32, Axes, launcher, moved, reads, writes
from ..shared.tuning import H200

MOST_ROWS = 128
PART = 16
"""Outputs whose squares are summed into one part, for any tile."""


def traffic_bytes(m: int, k: int, o: int, *, io: int = 2, bias: bool = False, parts: int = 0) -> int:
    """Bytes that must cross the memory bus: weights, rows, outputs, bias, and for each row the partial sums of squares.

    Units: bytes; `io` those of an element.
    """
    return moved(linear_rows, {"m": m, "k": k, "o": o, "j": parts}, {"io": io}, without=() if bias else ("bias",))


@launcher
def linear_rows(
    axes: Axes,
    x: Annotated[Tensor, reads("m k", layout="dense")],
    W: Annotated[Tensor, reads("o k", layout="dense")],
    bias: Annotated[Tensor, reads("o")] | None = None,
    *,
    squares: Annotated[Tensor, reads("m j", FP32, layout="dense")] | None = None,
    eps: float = 1e-6,
    out: Annotated[Tensor, writes("m o", layout="dense")] | None = None,
    overlap: bool | None = None,
    block_o: int | None = None,
    block_k: int | None = None,
    num_stages: int | None = None,
) -> Tensor:
    """The outputs (m, o) of up to 128 rows; with `squares` (m, j) those of their RMS norm, with `eps` (2).

    `overlap` (None: if the device supports it) lets the launch start before the previous one in the stream has ended; until
    then it writes nothing and reads, without `squares`, W alone. So neither that launch nor one that it overlaps may write W.
    `block_k`, at least 64, must be the same for all numbers of rows whose bits are compared.

    Raises: ShapeMismatch, PrecisionError (x and W of two types), ParameterError (eps < 0), Unsupported (more rows), before
    anything is written.
    """
    m, o = axes["m"], axes["o"]
    check_product(x, W, m, eps)
    y = torch.empty(m, o, dtype=x.dtype, device=x.device) if out is None else out
    grid, options = tiles(x, W, overlap, block_o, block_k, num_stages, alone=squares is None)
    linear_rows_kernel[grid](
        x, W, bias, y, None, None, None, squares, m, o, eps, x.stride(0), W.stride(0), y.stride(0), 0, 0,
        *strides(squares, 1), PARTS=axes.get("j", 0), **options,
    )  # fmt: skip
    return y


def check_product(x: Tensor, W: Tensor, m: int, eps: float) -> None:
    """Raises: PrecisionError (x and W of two types), Unsupported (too many rows), ParameterError (eps < 0)."""
    if x.dtype != W.dtype:
        raise PrecisionError(f"x is {x.dtype} and W is {W.dtype}; a matrix product takes one type")
    if m > MOST_ROWS:
        raise Unsupported(f"x has {m} rows, but the kernel takes at most {MOST_ROWS}; use a matrix product for more")
    if not eps >= 0:
        raise ParameterError(f"eps is {eps}; give eps >= 0")


def tiles(
    x: Tensor,
    W: Tensor,
    overlap: bool | None,
    block_o: int | None,
    block_k: int | None,
    num_stages: int | None,
    *,
    alone: bool = False,
) -> tuple[tuple[int, int], dict[str, Any]]:
    """The grid of the kernel, and its options; a product without squares and residual may start early."""
    m, (o, k), on = len(x), W.shape, overlapped(x.device, overlap)
    early = alone and on["OVERLAP"]
    outputs, inputs, stages, slices = _tile(o, m, x.element_size(), early)
    outputs, inputs, block_m = block_o or outputs, block_k or inputs, 16 if m <= 16 else 32
    slices = min(slices, inputs // 16)  # a product takes 16 inputs
    options: dict[str, Any] = {"K": k, "PART": PART, "BLOCK_M": block_m, "BLOCK_O": outputs, "BLOCK_K": inputs}
    options |= {"STAGES": num_stages or stages, "SLICES": slices, "num_warps": slices, "EARLY": early}
    return (triton.cdiv(m, block_m), triton.cdiv(o, outputs)), options | AS_WRITTEN | on


def _tile(o: int, m: int, size: int, early: bool) -> tuple[int, int, int, int]:
    """Outputs and inputs of a block, the blocks in flight, and the slices of a block: with few programs, more in flight. The
    inputs and their slices, which are the order in which a row is summed, depend neither on the number of rows nor on
    `early`.

    Programs that start early must fit next to those of the previous launch, and as many on every multiprocessor, or
    some have more work than others: 80 KB of the first projection of Mamba2-2.7B fit next to 144 KB of the second. Above 16
    rows four blocks leave no such room. The measurements are in docs/explanation/tuning.md.
    """
    row = H200["linear_rows"]
    outputs, wide = row["block_o"], o >= row["wide_outputs"]
    if size > 2:  # twice the bytes: fewer inputs fit
        narrow = m <= 16 and not wide
        stages = row["stages" if wide else "fp32_stages"]
        return row["fp32_block_o"] if narrow else outputs, row["block_k"], stages, row["slices"]
    if wide:  # above this number of rows the programs read more of the rows than of the weights
        outputs = row["block_o_early"] if early or m > row["many_rows"] else outputs
        return outputs, row["block_k"], row["stages"], row["slices"]
    ahead = early and m <= 16 and o <= row["early_outputs"]
    return outputs, row["narrow_block_k"], row["early_stages" if ahead else "stages"], row["narrow_slices"]


@triton.jit
def _block(start, at, k0, inside, k, K: tl.constexpr, BLOCK_K: tl.constexpr):
    """A block of rows or weights at inputs k0 + k; zeros outside."""
    there = inside if K % BLOCK_K == 0 else inside & (k0 + k < K)
    return tl.load(start + at + k0 + k, mask=there, other=0.0)


@triton.jit
def _awaited(k0, BLOCK_K: tl.constexpr):
    """k0, a multiple of BLOCK_K, once the previous launch has ended: loads at it are not issued earlier."""
    wait: tl.constexpr = "griddepcontrol.wait; mov.b32 $0, $1;"
    step = tl.inline_asm_elementwise(wait, "=r,r", [k0 // BLOCK_K], dtype=tl.int32, is_pure=True, pack=1)
    return step * BLOCK_K


@triton.jit
def _halved(acc, G: tl.constexpr, S: tl.constexpr, O: tl.constexpr, M: tl.constexpr):
    """Of (G, S, O, M) the slices s and s + S / 2 added, for all s below S / 2."""
    low, high = tl.split(tl.permute(tl.reshape(acc, (G, 2, S // 2, O, M)), (0, 2, 3, 4, 1)))
    return low + high


@triton.jit
def _sum_of_16(parts, G: tl.constexpr, M: tl.constexpr):
    """Of (G, 16, 1, M) the pairwise sum of 16: an order that no layout changes."""
    parts = _halved(_halved(parts, G, 16, 1, M), G, 8, 1, M)
    return tl.reshape(_halved(_halved(parts, G, 4, 1, M), G, 2, 1, M), (G, M))


@triton.jit(do_not_specialize=["m"])
def linear_rows_kernel(
    x, W, bias, y, residual, weight, sums, squares, m, o, eps, stride_x, stride_W, stride_y, stride_residual, stride_sums,
    stride_squares,
    K: tl.constexpr, PARTS: tl.constexpr, PART: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_O: tl.constexpr,
    BLOCK_K: tl.constexpr, STAGES: tl.constexpr, SLICES: tl.constexpr, EARLY: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    SLICE: tl.constexpr = BLOCK_K // SLICES
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    row = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    out = (tl.program_id(1) * BLOCK_O + tl.arange(0, BLOCK_O)).to(tl.int64)
    slices = SLICE * tl.arange(0, SLICES)[:, None, None]
    k_W, k_x = slices + tl.arange(0, SLICE)[None, None, :], slices + tl.arange(0, SLICE)[None, :, None]
    at_W, in_W = out[None, :, None] * stride_W, (out < o)[None, :, None]
    at_x, in_x = row[None, None, :] * stride_x, (row < m)[None, None, :]
    inside = (row < m)[None, :] & (out < o)[:, None]
    acc = tl.zeros((SLICES, BLOCK_O, BLOCK_M), tl.float32)
    if OVERLAP and not EARLY:
        tl.extra.cuda.gdc_wait()  # (5)
    # Inputs of what follows the loop are loaded before it.
    if residual is not None:
        at_residual = residual + row[None, :] * stride_residual + out[:, None]
        held = tl.load(at_residual, mask=inside, other=0.0).to(tl.float32)
        scale = tl.load(weight + out, mask=out < o, other=0.0).to(tl.float32)
    if squares is not None:
        square = tl.zeros((16, BLOCK_M), tl.float32)
        for first in tl.static_range(0, PARTS, 16):
            j = first + tl.arange(0, 16)
            at_squares = squares + row[None, :] * stride_squares + j[:, None]
            square += tl.load(at_squares, mask=(row < m)[None, :] & (j < PARTS)[:, None], other=0.0)
    for k0 in tl.range(0, K, BLOCK_K, num_stages=STAGES):
        w = _block(W, at_W, k0, in_W, k_W, K, BLOCK_K)
        now = _awaited(k0, BLOCK_K) if EARLY else k0  # (5)
        v = _block(x, at_x, now, in_x, k_x, K, BLOCK_K)
        acc = tl.dot(w, v, acc=acc, input_precision="ieee", out_dtype=tl.float32)  # (1) (3)
    if OVERLAP and not EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    if SLICES == 8:
        acc = _halved(acc, 1, 8, BLOCK_O, BLOCK_M)
    acc = _halved(_halved(acc, 1, 4, BLOCK_O, BLOCK_M), 1, 2, BLOCK_O, BLOCK_M)
    acc = tl.reshape(acc, (BLOCK_O, BLOCK_M))  # (4)
    if squares is not None:
        acc *= tl.rsqrt(_sum_of_16(square, 1, BLOCK_M) / K + eps)  # (2)
    if bias is not None:
        acc += tl.load(bias + out, mask=out < o, other=0.0).to(tl.float32)[:, None]
    made = acc.to(y.dtype.element_ty)
    if residual is not None:
        kept = (held + made.to(tl.float32)).to(residual.dtype.element_ty)
        tl.store(at_residual, kept, mask=inside)
        value = kept.to(tl.float32)
        made = (scale[:, None] * value).to(y.dtype.element_ty)
        GROUPS: tl.constexpr = BLOCK_O // PART
        parts = tl.reshape(value * value, (GROUPS, PART, BLOCK_M))
        j = tl.program_id(1).to(tl.int64) * GROUPS + tl.arange(0, GROUPS)
        at_sums = sums + row[None, :] * stride_sums + j[:, None]
        tl.store(at_sums, _sum_of_16(parts, GROUPS, BLOCK_M), mask=(row < m)[None, :] & (j * PART < o)[:, None])
    tl.store(y + row[None, :] * stride_y + out[:, None], made, mask=inside)
