"""Checks that a device exists."""

import torch

from ssmspec_ref.errors import Unsupported


def check_device(device: str) -> None:
    """Raises: Unsupported for a name that is no device's, and for a GPU that torch does not see."""
    try:
        named = torch.device(device)
    except RuntimeError:
        raise Unsupported(f"device is {device!r}; give cpu, cuda, or cuda:N for the GPU N") from None
    if named.type not in ("cpu", "cuda") or (named.type == "cpu" and named.index):
        raise Unsupported(f"device is {device!r}; give cpu, cuda, or cuda:N for the GPU N")
    if named.type == "cuda" and not torch.cuda.is_available():
        raise Unsupported(f"device is {device!r}, but torch sees no GPU; use cpu")
    if named.type == "cuda" and (named.index or 0) >= torch.cuda.device_count():
        raise Unsupported(f"device is {device!r}, but torch sees {torch.cuda.device_count()} GPUs, counted from 0")
