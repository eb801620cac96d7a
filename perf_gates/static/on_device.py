"""Launchers and measurements without a device: tensors without data that report a chosen architecture.

Launchers choose tiles, registers and overlap by the device's properties, which are simulated here.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

HOST = (Tensor.item, Tensor.tolist, Tensor.__int__, Tensor.__float__, Tensor.__index__)


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
        kwargs.pop("pin_memory", None)
        if func is Tensor.to:
            args = tuple("meta" if on_gpu(arg) else arg for arg in args)
        if func is Tensor.pin_memory:
            return args[0]
        if func == Tensor.device.__get__:
            return self.device
        if func == Tensor.is_cuda.__get__:  # type: ignore[attr-defined]
            return True
        if func is Tensor.cuda:
            return args[0].to("meta")
        if func is Tensor.cpu:
            return torch.zeros(args[0].shape, dtype=args[0].dtype) if args[0].is_meta else args[0]
        if func in HOST and args[0].is_meta:
            return func(torch.zeros(args[0].shape, dtype=args[0].dtype))
        if func in (Tensor.__bool__, torch.equal) and args[0].is_meta:
            return True
        return func(*args, **kwargs)


def on_gpu(value: object) -> bool:
    """Whether a value names a device of CUDA."""
    return isinstance(value, torch.device | str) and str(value).partition(":")[0] == "cuda"


class OfHost(torch.Generator):
    """A generator of the device is one of the host: nothing is drawn."""

    def __new__(cls, device: object = None) -> "OfHost":
        return super().__new__(cls)


@contextmanager
def on_device(capability: int) -> Iterator[None]:
    """In the block tensors are those of a GPU of an architecture (80, 90, 100), without data."""
    with ExitStack() as stack:
        for of, name, value in (
            (torch.cuda, "get_device_capability", lambda device=None: divmod(capability, 10)),
            (torch.cuda, "reset_peak_memory_stats", lambda device=None: None),
            (torch._C, "_cuda_clearCublasWorkspaces", lambda: None),
            (torch, "Generator", OfHost),
        ):
            stack.enter_context(mock.patch.object(of, name, value, create=True))
        stack.enter_context(OnMeta(capability))
        yield
