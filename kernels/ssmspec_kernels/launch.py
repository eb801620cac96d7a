"""What launchers share: sizes of axes, storage types, slots. A launcher that refuses has written nothing.

The axes are those of `ssmspec_ref.shapes`; `s` is a slot of a pool of states.
"""

from collections.abc import Iterable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ssmspec_ref.errors import ParameterError, PrecisionError, ShapeMismatch

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
INDICES = (torch.int32, torch.int64)

AS_WRITTEN = {"enable_fp_fusion": False}
"""Option of a launch: no product is fused into a sum but where the source says so (`tl.fma`). Otherwise each compiled variant
of a kernel (another number of tokens, other strides) may fuse others, and a token's bits depend on what came with it."""


@cache
def overlaps(device: torch.device) -> bool:
    """Whether the device has programmatic dependent launch, and loads by tensor descriptors (TMA): sm_90 and later."""
    return device.type == "cuda" and torch.version.hip is None and torch.cuda.get_device_capability(device)[0] >= 9


def overlapped(device: torch.device, wanted: bool | None = None) -> dict[str, Any]:
    """Options of a launch that is placed while the one before it in the stream ends, where the device can (sm_90).

    The kernel waits for that one (`gdc_wait`) before it writes anything, or reads what that one, or one that it overlaps, may
    write; from where it allows the next launch to be placed (`gdc_launch_dependents`) is its own affair.
    """
    on = overlaps(device) if wanted is None else wanted
    return {"OVERLAP": on, **({"launch_pdl": True} if on else {})}


Argument = tuple[str, Tensor | None, str, tuple[torch.dtype, ...]]
"""Name, tensor, axes, storage types that are allowed."""


def sizes(arguments: Iterable[Argument]) -> dict[str, int]:
    """The size of every axis letter over all tensors.

    Raises: ShapeMismatch (an axis with two sizes, another number of axes, an empty axis, a last axis with gaps),
    PrecisionError (a type or a device that is not allowed).
    """
    found: dict[str, tuple[int, str]] = {}
    device = None
    for name, tensor, axes, dtypes in arguments:
        if tensor is None:
            continue
        if tensor.dtype not in dtypes:
            allowed = " or ".join(str(d).removeprefix("torch.") for d in dtypes)
            raise PrecisionError(f"{name} came as {tensor.dtype}, but the kernel takes {allowed}; convert it first")
        device = tensor.device if device is None else device
        if tensor.device != device:
            raise PrecisionError(f"{name} lies on {tensor.device}, the arguments before it on {device}; move it there")
        letters = axes.split()
        if tensor.dim() != len(letters):
            raise ShapeMismatch(f"{name} came with shape {tuple(tensor.shape)}, but its axes are ({axes})")
        for axis, size in zip(letters, tensor.shape, strict=True):
            first, owner = found.setdefault(axis, (size, name))
            if first != size:
                raise ShapeMismatch(
                    f"{name} came with shape {tuple(tensor.shape)} for the axes ({axes}), "
                    f"but axis {axis} has size {first} in {owner}; give both the same {axis}"
                )
            if size == 0:
                raise ShapeMismatch(f"{name} came with shape {tuple(tensor.shape)}: axis {axis} is empty")
        dense = tensor.dim() == 1 or (tensor.dim() > 2 and tensor.dtype in FLOATS)
        if dense:
            check_dense(**{name: tensor})
    return {axis: size for axis, (size, _) in found.items()}


def check_dense(**tensors: Tensor | None) -> None:
    """Raises: ShapeMismatch for a last axis with gaps. `sizes` asks it of 1 axis, and of floats on 3 and more; of 2 axes, as
    kernels read masks and parameters by both strides, the launcher asks it where its kernel does not."""
    for name, tensor in tensors.items():
        if tensor is not None and tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
            raise ShapeMismatch(f"{name} has stride {tensor.stride(-1)} on its last axis; the kernel reads it with stride 1")


def divides(groups: int, heads: int) -> None:
    """Raises: ParameterError unless the groups divide the heads."""
    if heads % groups:
        raise ParameterError(f"{groups} groups do not divide {heads} heads; the heads of a group must be equally many")


def check_pool(pool: int, rows: int, slots: Tensor | None) -> None:
    """Raises: ParameterError for rows without slots in a pool that has fewer states than rows."""
    if slots is None and pool < rows:
        raise ParameterError(f"the pool holds {pool} states for {rows} rows; give slots, or a state for each row")


def strides(tensor: Tensor | None, axes: int) -> tuple[int, ...]:
    """The strides of the first `axes` axes, in elements; zeros for an absent tensor."""
    return (0,) * axes if tensor is None else tensor.stride()[:axes]


def d_strides(D: Tensor | None) -> tuple[int, int]:
    """The strides of D over heads and channels; D per head has stride 0 over channels."""
    if D is None:
        return (0, 0)
    return (D.stride(0), 0) if D.dim() == 1 else (D.stride(0), D.stride(1))
