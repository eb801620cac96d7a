"""RMS norm of the residual stream, with the addition before it.

    r' = r + x                              rounded to the storage type of r                           (1)
    y  = weight r' / sqrt(mean r'^2 + eps)  of r' as stored; of x without a residual                   (2)

A program owns whole tokens. The norm reads the rounded (1), so that y follows from the stored residual alone. Everything
else is computed in fp32.
Layout: x, r, y (b, t, u) or (t, u). Bound by the bytes of the inputs: x and r are read once, r' and y written once.
"""

from typing import Annotated

import torch
import triton
import triton.language as tl
from torch import Tensor

from ssmspec_ref.errors import ParameterError, Unsupported

from ..launch import AS_WRITTEN, strides
from ..row import Axes, launcher, moved, reads, updates, weighs, writes
from ..shared.tuning import H200

WIDEST = 65536


def traffic_bytes(tokens: int, u: int, *, io: int = 2, residual: int = 0) -> int:
    """Bytes that must cross the memory bus; `residual` is the bytes of an element of the residual, 0 where there is none.

    Units: bytes; `io` is the bytes of an element of x and y. The weight is left out.
    """
    return moved(norm, {"t": tokens, "u": u}, {"io": io, "residual": residual}, form=1)


@launcher
def norm(
    axes: Axes,
    x: Annotated[Tensor, reads("b t u | t u")],
    weight: Annotated[Tensor, weighs("u")],
    *,
    residual: Annotated[Tensor, updates("b t u | t u", size="residual")] | None = None,
    eps: float = 1e-6,
    out: Annotated[Tensor, writes("b t u | t u")] | None = None,
    num_warps: int | None = None,
) -> Tensor:
    """y in the shape of x; `residual` is updated in place: equations (1) and (2).

    Raises: ShapeMismatch, PrecisionError, ParameterError (eps < 0), Unsupported (more than 65536 channels), before anything
    is written.
    """
    if not eps >= 0:
        raise ParameterError(f"eps is {eps}; give eps >= 0")
    u, t = axes["u"], axes["t"]
    if u > WIDEST:
        raise Unsupported(f"x has {u} channels, and a program of this kernel holds at most {WIDEST}")
    y = torch.empty_like(x) if out is None else out
    block = triton.next_power_of_2(u)
    _norm_kernel[(axes.get("b", 1) * t,)](
        x, residual, weight, y, *_strides(x), *_strides(residual), *_strides(y), t, eps,
        U=u, BLOCK_U=block, num_warps=num_warps or _warps(block), **AS_WRITTEN,
    )  # fmt: skip
    return y


def _strides(tensor: Tensor | None) -> tuple[int, ...]:
    """The strides of b, t and u."""
    return strides(tensor, 3) if tensor is None or tensor.dim() == 3 else (0, *strides(tensor, 2))


def _warps(block: int) -> int:
    """Warps of a program: up to 16 channels a thread."""
    row = H200["norm"]
    return max(1, min(row["most_warps"], block // row["channels_a_warp"]))


@triton.jit
def _norm_kernel(
    x, residual, weight, y, stride_x_b, stride_x_t, stride_x_u, stride_residual_b, stride_residual_t, stride_residual_u,
    stride_y_b, stride_y_t, stride_y_u, tokens, eps, U: tl.constexpr, BLOCK_U: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    b, t = row // tokens, row % tokens
    u = tl.arange(0, BLOCK_U).to(tl.int64)
    inside = u < U
    # All loads are issued before the sum waits for any of them.
    scale = tl.load(weight + u, mask=inside, other=0.0).to(tl.float32)
    value = tl.load(x + b * stride_x_b + t * stride_x_t + u * stride_x_u, mask=inside, other=0.0).to(tl.float32)
    if residual is not None:
        at = residual + b * stride_residual_b + t * stride_residual_t + u * stride_residual_u
        kept = (tl.load(at, mask=inside, other=0.0).to(tl.float32) + value).to(residual.dtype.element_ty)  # (1)
        tl.store(at, kept, mask=inside)
        value = kept.to(tl.float32)
    mean = tl.sum(value * value, axis=0) / U
    normed = scale * (value * tl.rsqrt(mean + eps))  # (2)
    tl.store(y + b * stride_y_b + t * stride_y_t + u * stride_y_u, normed.to(y.dtype.element_ty), mask=inside)
