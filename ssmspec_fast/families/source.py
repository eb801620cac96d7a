"""Where a family takes its tensors from."""

from dataclasses import dataclass, field

import torch
from torch import Tensor


class Source:
    """Tensors by name. `dtype` is that of the weights; parameters of recurrences, norms and filters are kept `exact`."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.exact_dtype = torch.float64 if dtype == torch.float64 else torch.float32
        self.device = torch.device("cpu")

    def read(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        raise NotImplementedError

    def ignore(self, *suffixes: str) -> None:
        """Tensors whose names end so are neither needed nor read."""

    def weight(self, name: str, *shape: int) -> Tensor:
        """A matrix or an embedding, in the type of the weights."""
        return self.read(name, shape, self.dtype)

    def exact(self, name: str, *shape: int) -> Tensor:
        """A parameter that is not rounded below fp32."""
        return self.read(name, shape, self.exact_dtype)


@dataclass
class Plan(Source):
    """Writes down what is asked for, and gives tensors without memory."""

    dtype: torch.dtype
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    suffixes: tuple[str, ...] = ()
    bytes: int = 0

    def __post_init__(self) -> None:
        super().__init__(self.dtype)
        self.device = torch.device("meta")

    def read(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        if name in self.shapes:
            raise ValueError(f"tensor {name} is taken twice")
        self.shapes[name] = shape
        made = torch.empty(shape, dtype=dtype, device="meta")
        self.bytes += made.numel() * dtype.itemsize
        return made

    def ignore(self, *suffixes: str) -> None:
        self.suffixes += suffixes

    def ignores(self, name: str) -> bool:
        return name.endswith(self.suffixes)
