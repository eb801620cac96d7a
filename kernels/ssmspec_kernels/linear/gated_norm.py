"""Gated RMS norm at the end of a recurrent layer.

    rms(x) = weight x / sqrt(mean x^2 + eps)    over each group of channels, or over each head     (1)
    gate first:  rms(y act(z))                                                                     (2)
    norm first:  rms(y) act(z)                                                                     (3)

act is SiLU or the sigmoid. A program owns whole groups, or heads, of one token. The groups of (b, t, c) have their own
weights; the heads of (b, t, h, v), the delta rule's, share one. Everything is computed in fp32.
Layout: y, z, out with stride 1 on the last axis. Bound by the bytes of the inputs: two reads and one write.
"""

from typing import Annotated

import torch
import triton
import triton.language as tl
import triton.language.extra.cuda  # griddepcontrol
from torch import Tensor

from ssmspec_ref.errors import ParameterError, Unsupported

from ..launch import AS_WRITTEN, divides, overlapped, strides
from ..row import Axes, launcher, moved, reads, weighs, writes
from ..shared.functions import sigmoid, silu
from ..shared.tuning import H200

WIDEST = 65536


def traffic_bytes(tokens: int, c: int, *, io: int = 2, z: int = 2, out: int = 2) -> int:
    """Bytes that must cross the memory bus for tokens of c channels, all heads counted; the weight is left out.

    Units: bytes; `io`, `z` and `out` are the bytes of an element of y, of its gate, of the result.
    """
    return moved(gated_norm, {"b": 1, "t": tokens, "c": c}, {"io": io, "z": z, "out": out}, form=1)


@launcher
def gated_norm(
    axes: Axes,
    y: Annotated[Tensor, reads("b t h v | b t c")],
    z: Annotated[Tensor, reads("b t h v | b t c", size="z")],
    weight: Annotated[Tensor, weighs("v | c")],
    *,
    groups: int = 1,
    eps: float = 1e-6,
    norm_first: bool = False,
    gate: str = "silu",
    out: Annotated[Tensor, writes("b t h v | b t c", size="out")] | None = None,
    block_h: int | None = None,
    num_warps: int | None = None,
) -> Tensor:
    """y, normed and gated by z, in the shape of y: equations (2) or (3).

    y (b, t, c) is normed over each of `groups` equal parts of c, weight (c). y (b, t, h, v) is normed over v, weight (v).

    Raises: ShapeMismatch, PrecisionError, ParameterError (eps, groups, gate), Unsupported (a group of more than 65536
    channels), before anything is written.
    """
    heads = y.dim() == 4
    if not eps >= 0:
        raise ParameterError(f"eps is {eps}; give eps >= 0")
    if gate not in ("silu", "sigmoid"):
        raise ParameterError(f"gate is {gate!r}; give 'silu' or 'sigmoid'")
    if groups < 1 or (heads and groups > 1):
        raise ParameterError(f"groups is {groups}; give at least 1, and 1 where heads are normed one by one")
    if not heads:
        divides(groups, axes["c"])
    h, v = (axes["h"], axes["v"]) if heads else (groups, axes["c"] // groups)
    if v > WIDEST:
        raise Unsupported(f"a group has {v} channels, and a program of this kernel holds at most {WIDEST}")
    result = torch.empty_like(y) if out is None else out
    block_v = triton.next_power_of_2(v)
    row = H200["gated_norm"]
    block = block_h or max(1, min(triton.next_power_of_2(h), row["channels"] // block_v))
    _gated_norm_kernel[(axes["b"] * axes["t"], triton.cdiv(h, block))](
        y, z, weight, result, *_strides(y, v), *_strides(z, v), *_strides(result, v), axes["t"], 0 if heads else v, eps,
        H=h, V=v, NORM_FIRST=norm_first, SILU=gate == "silu", BLOCK_H=block, BLOCK_V=block_v,
        num_warps=num_warps or max(1, min(row["most_warps"], block * block_v // row["channels_a_warp"])),
        **AS_WRITTEN, **overlapped(y.device),
    )  # fmt: skip
    return result


def _strides(tensor: Tensor, v: int) -> tuple[int, ...]:
    """The strides of b, t, and of a head or group."""
    return strides(tensor, 3) if tensor.dim() == 4 else (*strides(tensor, 2), v)


@triton.jit
def _gated_norm_kernel(
    y, z, weight, out, stride_y_b, stride_y_t, stride_y_h, stride_z_b, stride_z_t, stride_z_h,
    stride_out_b, stride_out_t, stride_out_h, tokens, stride_weight_h, eps,
    H: tl.constexpr, V: tl.constexpr, NORM_FIRST: tl.constexpr, SILU: tl.constexpr, BLOCK_H: tl.constexpr,
    BLOCK_V: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    if OVERLAP:  # the next launch may start once the last of these programs runs
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    b, t = row // tokens, row % tokens
    h = (tl.program_id(1).to(tl.int64) * BLOCK_H + tl.arange(0, BLOCK_H))[:, None]
    v = tl.arange(0, BLOCK_V)[None, :]
    inside = (h < H) & (v < V)
    # All loads are issued before the sum waits for any of them.
    scale = tl.load(weight + h * stride_weight_h + v, mask=inside, other=0.0).to(tl.float32)
    value = tl.load(y + b * stride_y_b + t * stride_y_t + h * stride_y_h + v, mask=inside, other=0.0).to(tl.float32)
    act = tl.load(z + b * stride_z_b + t * stride_z_t + h * stride_z_h + v, mask=inside, other=0.0).to(tl.float32)
    act = silu(act) if SILU else sigmoid(act)
    if not NORM_FIRST:
        value *= act
    mean = tl.sum(value * value, axis=1) / V
    normed = scale * (value * tl.rsqrt(mean + eps)[:, None])  # (1)
    if NORM_FIRST:
        normed *= act
    tl.store(out + b * stride_out_b + t * stride_out_t + h * stride_out_h + v, normed.to(out.dtype.element_ty), mask=inside)
