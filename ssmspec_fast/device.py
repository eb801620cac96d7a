"""Whether a device is there."""

import torch

from ssmspec_ref.errors import Unsupported


def check_device(device: str) -> None:
    """Raises: Unsupported for a GPU that torch does not see."""
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise Unsupported(f"device {device!r} was asked for, but torch sees no GPU here; use cpu")
