"""Launchers and measurements without a device: tensors without data that report a chosen architecture.

Launchers choose tiles, registers and overlap by the device's properties, which are simulated here.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class OnMeta(TorchFunctionMode):
    """Tensors of the device have no data; read on the host they are zeros, and as a condition they are true.

    The device's number is its architecture's, so that results cached for one device are not used for another.
    """

    def __init__(self, capability: int) -> None:
        super().__init__()
        self.device = torch.device("cuda", capability)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if kwargs.get("device") is not None and torch.device(kwargs["device"]).type == "cuda":
            kwargs |= {"device": "meta"} | ({"generator": None} if "generator" in kwargs else {})
        if func == Tensor.device.__get__:
            return self.device
        if func == Tensor.is_cuda.__get__:  # type: ignore[attr-defined]
            return True
        if func is Tensor.cuda:
            return args[0].to("meta")
        if func is Tensor.cpu:
            return torch.zeros(args[0].shape, dtype=args[0].dtype) if args[0].is_meta else args[0]
        if func in (Tensor.__bool__, torch.equal) and args[0].is_meta:
            return True
        return func(*args, **kwargs)


@contextmanager
def on_device(capability: int) -> Iterator[None]:
    """In the block tensors are those of a GPU of an architecture (80, 90, 100), without data."""
    asked, torch.cuda.get_device_capability = torch.cuda.get_device_capability, lambda device=None: divmod(capability, 10)
    try:
        with OnMeta(capability):
            yield
    finally:
        torch.cuda.get_device_capability = asked
