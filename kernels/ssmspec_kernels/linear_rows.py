"""A linear layer for few rows: y = x W^T + b.

    y[r, o] = sum_k x[r, k] W[o, k] + b[o]   (1)

The weights are far larger than everything else and are read once for 32 rows. A program owns BLOCK_O outputs and walks the
inputs in blocks of BLOCK_K. A block is cut into slices of its inputs, each summed by a warp of its own (2), for the products
of one warp wait for each other; at the end the slices are added by halves (3). So the order in which a row is summed depends
neither on how many rows there are nor on what they hold, and a row has the same bits alone and in any batch. Sums are fp32.

Where the device can (sm_90), the launch overlaps the one before it in the stream: its programs are placed while that one's
end, and wait for x (4).

Layout: x (m, k), W (o, k), y (m, o); W as the checkpoints store it. Rows are padded to the width of a tensor-core tile.
Bound by the bytes of the weights, and by the start and the end of each launch, in which fewer bytes are under way.
"""

from functools import cache

import torch
import triton
import triton.language as tl
import triton.language.extra.cuda  # griddepcontrol
from torch import Tensor

from ssmspec_ref.errors import PrecisionError, Unsupported

from .launch import FLOATS, sizes

MOST_ROWS = 128


def traffic_bytes(m: int, k: int, o: int, *, io: int = 2, bias: bool = False) -> int:
    """Bytes that must cross the memory bus: weights, rows, outputs, bias. Units: bytes; `io` those of an element."""
    return io * (o * k + m * k + m * o + (o if bias else 0))


def linear_rows(
    x: Tensor,
    W: Tensor,
    bias: Tensor | None = None,
    *,
    out: Tensor | None = None,
    overlap: bool | None = None,
    block_o: int | None = None,
    block_k: int | None = None,
    num_stages: int | None = None,
) -> Tensor:
    """The outputs (m, o) of up to 128 rows.

    `overlap` (None: where the device can) lets the launch start before the one ahead of it in the stream has ended; it reads
    and writes nothing until then. `block_k` must be the same for all numbers of rows whose bits are compared.

    Raises: ShapeMismatch, PrecisionError (x and W of two types), Unsupported (more rows), before anything is written.
    """
    axes = sizes([("x", x, "m k", FLOATS), ("W", W, "o k", FLOATS), ("bias", bias, "o", FLOATS), ("out", out, "m o", FLOATS)])
    m, k, o = (axes[a] for a in "mko")
    if x.dtype != W.dtype:
        raise PrecisionError(f"x came as {x.dtype} and W as {W.dtype}; a matrix product takes one type")
    if m > MOST_ROWS:
        raise Unsupported(f"x came with {m} rows, but the kernel takes at most {MOST_ROWS}; use a matrix product for more")
    y = torch.empty(m, o, dtype=x.dtype, device=x.device) if out is None else out
    overlap = _overlaps(x.device) if overlap is None else overlap
    outputs, inputs, stages = _tile(o, m)
    block_o, block_k, stages = block_o or outputs, block_k or inputs, num_stages or stages
    block_m = 16 if m <= 16 else 32
    _linear_rows_kernel[(triton.cdiv(m, block_m), triton.cdiv(o, block_o))](
        x, W, bias, y, m, o, x.stride(0), W.stride(0), y.stride(0),
        K=k, BLOCK_M=block_m, BLOCK_O=block_o, BLOCK_K=block_k, STAGES=stages, OVERLAP=overlap, num_warps=4,
        **({"launch_pdl": True} if overlap else {}),
    )  # fmt: skip
    return y


@cache
def _overlaps(device: torch.device) -> bool:
    """Whether the device has programmatic dependent launch."""
    return device.type == "cuda" and torch.version.hip is None and torch.cuda.get_device_capability(device)[0] >= 9


def _tile(o: int, m: int) -> tuple[int, int, int]:
    """Outputs and inputs of a block, and the blocks under way: few programs need more. The inputs, which are the order in
    which a row is summed, do not depend on the number of rows; of more than 16 rows fewer programs read them.

    Among the fastest of 900 on one H200 for the projections of Mamba2-2.7B (10576 x 2560 and 2560 x 5120) in turn, and there
    the least slower for 16 rows than for one. Weights that pass through registers, the first read before the wait, were 5 %
    faster on the first projection alone and slower in turn: what waits takes the place of what works.
    """
    if o >= 8192:
        return 32, 256, 3
    return (16, 256, 4) if m <= 16 else (32, 256, 4)


@triton.jit
def _block(start, at, k0, inside, k, K: tl.constexpr, BLOCK_K: tl.constexpr):
    """A block of rows or weights at inputs k0 + k; zeros where there are none."""
    there = inside if K % BLOCK_K == 0 else inside & (k0 + k < K)
    return tl.load(start + at + k0 + k, mask=there, other=0.0)


@triton.jit
def _halved(acc, S: tl.constexpr, O: tl.constexpr, M: tl.constexpr):
    """Slices s and s + S / 2 added, for all s below S / 2."""
    low, high = tl.split(tl.permute(tl.reshape(acc, (2, S // 2, O, M)), (1, 2, 3, 0)))
    return low + high


@triton.jit(do_not_specialize=["m"])
def _linear_rows_kernel(
    x, W, bias, y, m, o, stride_x, stride_W, stride_y,
    K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    SLICE: tl.constexpr = BLOCK_K // 4
    row = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    out = (tl.program_id(1) * BLOCK_O + tl.arange(0, BLOCK_O)).to(tl.int64)
    slices = SLICE * tl.arange(0, 4)[:, None, None]
    k_W, k_x = slices + tl.arange(0, SLICE)[None, None, :], slices + tl.arange(0, SLICE)[None, :, None]
    at_W, in_W = out[None, :, None] * stride_W, (out < o)[None, :, None]
    at_x, in_x = row[None, None, :] * stride_x, (row < m)[None, None, :]
    acc = tl.zeros((4, BLOCK_O, BLOCK_M), tl.float32)
    if OVERLAP:
        tl.extra.cuda.gdc_wait()  # (4)
    for k0 in tl.range(0, K, BLOCK_K, num_stages=STAGES):
        w, v = _block(W, at_W, k0, in_W, k_W, K, BLOCK_K), _block(x, at_x, k0, in_x, k_x, K, BLOCK_K)
        acc = tl.dot(w, v, acc=acc, input_precision="ieee", out_dtype=tl.float32)  # (1) (2)
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
    acc = tl.reshape(_halved(_halved(acc, 4, BLOCK_O, BLOCK_M), 2, BLOCK_O, BLOCK_M), (BLOCK_O, BLOCK_M))  # (3)
    if bias is not None:
        acc += tl.load(bias + out, mask=out < o, other=0.0).to(tl.float32)[:, None]
    at = y + row[None, :] * stride_y + out[:, None]
    tl.store(at, acc.to(y.dtype.element_ty), mask=(row < m)[None, :] & (out < o)[:, None])
