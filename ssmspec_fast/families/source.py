"""The sources of a family's tensors."""

from dataclasses import dataclass, field
from math import prod

import torch
from torch import Tensor

from ..errors import ConfigRefused
from ..layers.linear import Linear
from ..models.config import ConvSizes
from ..operations import Taps

MOST = 2**40
"""Most numbers in a tensor."""


class Source:
    """Tensors by name. `dtype` is that of the weights; parameters of recurrences, norms and filters stay `exact`."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.exact_dtype = torch.float64 if dtype == torch.float64 else torch.float32
        self.device = torch.device("cpu")

    def read(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        raise NotImplementedError

    def ignore(self, *suffixes: str) -> None:
        """Ignores tensors whose names end in one of these."""

    def weight(self, name: str, *shape: int) -> Tensor:
        """A matrix or an embedding, in the type of the weights."""
        return self.read(name, shape, self.dtype)

    def exact(self, name: str, *shape: int) -> Tensor:
        """A parameter that is not rounded below fp32."""
        return self.read(name, shape, self.exact_dtype)

    def linear(self, name: str, outputs: int, inputs: int, bias: bool = False) -> Linear:
        return Linear(self.weight(f"{name}.weight", outputs, inputs), self.weight(f"{name}.bias", outputs) if bias else None)

    def taps(self, name: str, sizes: ConvSizes) -> Taps:
        """The filters of a depthwise convolution, stored with an axis of one group."""
        weight = self.exact(f"{name}.weight", sizes.channels, 1, sizes.width).squeeze(1).contiguous()
        return Taps(weight, self.exact(f"{name}.bias", sizes.channels) if sizes.bias else None)

    def decay(self, name: str, *shape: int) -> Tensor:
        """A = -exp(A_log)."""
        return -torch.exp(self.exact(name, *shape))


@dataclass
class Plan(Source):
    """Records what is requested, and returns tensors without memory."""

    dtype: torch.dtype
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    suffixes: tuple[str, ...] = ()
    bytes: int = 0

    def __post_init__(self) -> None:
        super().__init__(self.dtype)
        self.device = torch.device("meta")

    def read(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        if name in self.shapes:
            raise ValueError(f"tensor {name} is used twice")
        if prod(shape) > MOST:
            raise ConfigRefused(f"the config implies tensor {name} of shape {shape}; no model is that large")
        self.shapes[name] = shape
        made = torch.empty(shape, dtype=dtype, device="meta")
        self.bytes += made.numel() * dtype.itemsize
        return made

    def ignore(self, *suffixes: str) -> None:
        self.suffixes += suffixes

    def ignores(self, name: str) -> bool:
        return name.endswith(self.suffixes)
