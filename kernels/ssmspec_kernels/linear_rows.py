"""A linear layer for few rows: y = x W^T + b.

    y[r, o] = sum_k x[r, k] W[o, k] + b[o]   (1)

The weights are far larger than everything else and are read once, whatever the number of rows. A program owns BLOCK_O outputs
and walks the inputs in blocks of BLOCK_K, in one fixed order (2): the order in which a row is summed depends neither on how
many rows there are nor on what they hold, so that a row has the same bits alone and in any batch. Sums are fp32.

Layout: x (m, k), W (o, k), y (m, o); W as the checkpoints store it. Rows are padded to the width of a tensor-core tile.
Bound by the bytes of the weights.
"""

import torch
import triton
import triton.language as tl
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
    block_o: int | None = None,
    block_k: int | None = None,
    num_warps: int = 4,
    num_stages: int | None = None,
) -> Tensor:
    """The outputs (m, o) of up to 128 rows.

    Raises: ShapeMismatch, PrecisionError (x and W of two types), Unsupported (more rows), before anything is written.
    """
    axes = sizes([("x", x, "m k", FLOATS), ("W", W, "o k", FLOATS), ("bias", bias, "o", FLOATS), ("out", out, "m o", FLOATS)])
    m, k, o = (axes[a] for a in "mko")
    if x.dtype != W.dtype:
        raise PrecisionError(f"x came as {x.dtype} and W as {W.dtype}; a matrix product takes one type")
    if m > MOST_ROWS:
        raise Unsupported(f"x came with {m} rows, but the kernel takes at most {MOST_ROWS}; use a matrix product for more")
    y = torch.empty(m, o, dtype=x.dtype, device=x.device) if out is None else out
    outputs, inputs = _tile(o)
    block_o, block_k = block_o or outputs, block_k or inputs
    stages = num_stages or (4 if m <= 16 or block_k <= 128 else 2)  # what the shared memory holds
    _linear_rows_kernel[(triton.cdiv(o, block_o),)](
        x, W, bias, y, m, o, x.stride(0), W.stride(0), y.stride(0),
        K=k, BLOCK_M=max(16, triton.next_power_of_2(m)), BLOCK_O=block_o, BLOCK_K=block_k,
        num_warps=num_warps, num_stages=stages,
    )  # fmt: skip
    return y


def _tile(o: int) -> tuple[int, int]:
    """Outputs and inputs of a block: few programs need long blocks to keep enough bytes in flight.

    The tile must not depend on the number of rows, or a row would be summed in another order in another batch. Fastest of 40
    on one H200 for the projections of Mamba2-2.7B (10576 x 2560 and 2560 x 5120), 1 to 32 rows.
    """
    return (64, 128) if o >= 8192 else (32, 512)


@triton.jit
def _linear_rows_kernel(
    x, W, bias, y, m, o, stride_x, stride_W, stride_y,
    K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    rows = tl.arange(0, BLOCK_M).to(tl.int64)
    outs = (tl.program_id(0) * BLOCK_O + tl.arange(0, BLOCK_O)).to(tl.int64)
    acc = tl.zeros((BLOCK_O, BLOCK_M), tl.float32)
    for k0 in range(0, K, BLOCK_K):  # (2)
        ks = k0 + tl.arange(0, BLOCK_K)
        w = tl.load(W + outs[:, None] * stride_W + ks[None, :], mask=(outs < o)[:, None] & (ks < K)[None, :], other=0.0)
        v = tl.load(x + rows[None, :] * stride_x + ks[:, None], mask=(rows < m)[None, :] & (ks < K)[:, None], other=0.0)
        acc = tl.dot(w, v, acc=acc, input_precision="ieee", out_dtype=tl.float32)  # (1)
    if bias is not None:
        acc += tl.load(bias + outs, mask=outs < o, other=0.0).to(tl.float32)[:, None]
    at = y + rows[None, :] * stride_y + outs[:, None]
    tl.store(at, acc.to(y.dtype.element_ty), mask=(rows < m)[None, :] & (outs < o)[:, None])
