"""Rotary position embedding of the queries and keys of a window.

    (x_i, x_{i+f}) -> (x_i cos_i - x_{i+f} sin_i, x_{i+f} cos_i + x_i sin_i)    i < f           (1)
    channels from 2 f on stay as they are

cos and sin are given for each token: they are the same in all layers. A program owns some heads of one token, of q or of k.
Each product and their sum are rounded in fp32, the result once to the storage type, so that the bits are those of any other
computation of (1) with these roundings.
Layout: q (b, t, h, e), k (b, t, g, e) with stride 1 on the last axis, cos and sin (b, t, f). Bound by the bytes of q and k.
"""

from typing import Annotated

import torch
import triton
import triton.language as tl
from torch import Tensor

from ssmspec_ref.errors import ParameterError

from ..launch import AS_WRITTEN, strides
from ..row import FP32, Axes, launcher, moved, reads, writes
from ..shared.tuning import H200


def traffic_bytes(tokens: int, h: int, g: int, e: int, f: int, *, io: int = 2) -> int:
    """Bytes that must cross the memory bus: q and k read and written, cos and sin read.

    Units: bytes; `io` is the bytes of an element of q and k.
    """
    return moved(rotary, {"b": 1, "t": tokens, "h": h, "g": g, "e": e, "f": f}, {"io": io})


@launcher
def rotary(
    axes: Axes,
    q: Annotated[Tensor, reads("b t h e")],
    k: Annotated[Tensor, reads("b t g e")],
    cos: Annotated[Tensor, reads("b t f", FP32)],
    sin: Annotated[Tensor, reads("b t f", FP32)],
    *,
    out: tuple[Annotated[Tensor, writes("b t h e")], Annotated[Tensor, writes("b t g e")]] | None = None,
    block_h: int | None = None,
    num_warps: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Rotated q and k (1), as new tensors.

    Raises: ShapeMismatch, PrecisionError, ParameterError (more frequencies than pairs of channels), before anything is
    written.
    """
    made_q, made_k = out or (None, None)
    b, t, h, g, e, f = (axes[name] for name in "bthgef")
    if 2 * f > e:
        raise ParameterError(f"{f} frequencies turn {2 * f} channels, but a head has {e}; give at most {e // 2}")
    made_q = torch.empty(q.shape, dtype=q.dtype, device=q.device) if made_q is None else made_q
    made_k = torch.empty(k.shape, dtype=k.dtype, device=k.device) if made_k is None else made_k
    block_f = triton.next_power_of_2(f)
    block = block_h or max(1, min(triton.next_power_of_2(max(h, g)), H200["rotary"]["frequencies"] // block_f))
    parts = triton.cdiv(h, block)
    _rotary_kernel[(b * t, parts + triton.cdiv(g, block))](
        q, k, cos, sin, made_q, made_k, t, parts,
        *strides(q, 3), *strides(k, 3), *strides(cos, 2), *strides(sin, 2), *strides(made_q, 3), *strides(made_k, 3),
        H=h, G=g, E=e, F=f, BLOCK_H=block, BLOCK_F=block_f, BLOCK_REST=triton.next_power_of_2(max(1, e - 2 * f)),
        num_warps=num_warps or H200["rotary"]["warps"], **AS_WRITTEN,
    )  # fmt: skip
    return made_q, made_k


@triton.jit
def _rotary_kernel(
    q, k, cos, sin, out_q, out_k, tokens, parts,
    stride_q_b, stride_q_t, stride_q_h, stride_k_b, stride_k_t, stride_k_h, stride_cos_b, stride_cos_t,
    stride_sin_b, stride_sin_t, stride_out_q_b, stride_out_q_t, stride_out_q_h,
    stride_out_k_b, stride_out_k_t, stride_out_k_h,
    H: tl.constexpr, G: tl.constexpr, E: tl.constexpr, F: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_F: tl.constexpr,
    BLOCK_REST: tl.constexpr,
):  # fmt: skip
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    b, t = row // tokens, row % tokens
    i = tl.arange(0, BLOCK_F)
    c = tl.load(cos + b * stride_cos_b + t * stride_cos_t + i, mask=i < F, other=0.0)[None, :]
    s = tl.load(sin + b * stride_sin_b + t * stride_sin_t + i, mask=i < F, other=0.0)[None, :]
    if part < parts:
        at_q, to_q = q + b * stride_q_b + t * stride_q_t, out_q + b * stride_out_q_b + t * stride_out_q_t
        _rotate_heads(at_q, to_q, part, c, s, stride_q_h, stride_out_q_h, H, E, F, BLOCK_H, BLOCK_F, BLOCK_REST)
    else:
        at_k, to_k = k + b * stride_k_b + t * stride_k_t, out_k + b * stride_out_k_b + t * stride_out_k_t
        _rotate_heads(at_k, to_k, part - parts, c, s, stride_k_h, stride_out_k_h, G, E, F, BLOCK_H, BLOCK_F, BLOCK_REST)


@triton.jit
def _rotate_heads(
    x, y, part, cos, sin, stride_x_h, stride_y_h, HEADS: tl.constexpr, E: tl.constexpr, F: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_F: tl.constexpr, BLOCK_REST: tl.constexpr,
):  # fmt: skip
    """Some heads of one token."""
    h, i = (part * BLOCK_H + tl.arange(0, BLOCK_H)).to(tl.int64)[:, None], tl.arange(0, BLOCK_F)[None, :]
    inside = (h < HEADS) & (i < F)
    first = tl.load(x + h * stride_x_h + i, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(x + h * stride_x_h + F + i, mask=inside, other=0.0).to(tl.float32)
    if E > 2 * F:
        r = 2 * F + tl.arange(0, BLOCK_REST)[None, :]
        beside = (h < HEADS) & (r < E)
        rest = tl.load(x + h * stride_x_h + r, mask=beside, other=0.0)
        tl.store(y + h * stride_y_h + r, rest.to(y.dtype.element_ty), mask=beside)
    tl.store(y + h * stride_y_h + i, (first * cos - second * sin).to(y.dtype.element_ty), mask=inside)  # (1)
    tl.store(y + h * stride_y_h + F + i, (second * cos + first * sin).to(y.dtype.element_ty), mask=inside)
