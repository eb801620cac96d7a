"""What launchers share: options of launches, strides, checks of slots and groups. A launcher that raises has written nothing.

Which tensors a launcher takes is checked by its row (`row`).
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor

from ssmspec_ref.errors import ParameterError, ShapeMismatch

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
INDICES = (torch.int32, torch.int64)

AS_WRITTEN = {"enable_fp_fusion": False}
"""Launch option: the compiler fuses no product into a sum unless the source says so (`tl.fma`). Otherwise different compiled
variants of a kernel (other numbers of tokens, other strides) may fuse differently, and a token's bits would depend on the
number of tokens in its window."""


@cache
def overlaps(device: torch.device) -> bool:
    """Whether the device has programmatic dependent launch, and loads by tensor descriptors (TMA): sm_90 and later."""
    return device.type == "cuda" and torch.version.hip is None and torch.cuda.get_device_capability(device)[0] >= 9


def overlapped(device: torch.device, wanted: bool | None = None) -> dict[str, Any]:
    """Options of a launch whose programs start while the previous launch in the stream ends, if the device supports it
    (sm_90).

    The kernel waits for the previous launch (`gdc_wait`) before it writes anything, or reads what that launch, or one that it
    overlaps, may write. Each kernel decides when to allow the next launch to start (`gdc_launch_dependents`).
    """
    on = overlaps(device) if wanted is None else wanted
    return {"OVERLAP": on, **({"launch_pdl": True} if on else {})}


def check_dense(**tensors: Tensor | None) -> None:
    """Raises: ShapeMismatch for a last axis that is not contiguous."""
    for name, tensor in tensors.items():
        if tensor is not None and tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
            raise ShapeMismatch(f"{name} has stride {tensor.stride(-1)} on its last axis; the kernel reads it with stride 1")


def check_whole(**tensors: Tensor | None) -> None:
    """Raises: ShapeMismatch for a tensor with gaps, which the kernels read without strides."""
    for name, tensor in tensors.items():
        if tensor is not None and not tensor.is_contiguous():
            raise ShapeMismatch(f"{name} has strides {tensor.stride()}; give it without gaps: call contiguous()")


def divides(groups: int, heads: int) -> None:
    """Raises: ParameterError unless the groups divide the heads."""
    if heads % groups:
        raise ParameterError(f"{groups} groups do not divide {heads} heads; the heads of a group must be equally many")


def check_pool(pool: int, rows: int, slots: Tensor | None) -> None:
    """Raises: ParameterError if no slots are given and the pool has fewer states than rows."""
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
