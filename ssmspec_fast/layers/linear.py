"""A product with weights."""

from dataclasses import dataclass

from torch import Tensor

from ..operations import Operations


@dataclass(frozen=True)
class Linear:
    """y = weight x + bias."""

    weight: Tensor
    bias: Tensor | None = None

    def __call__(self, x: Tensor, operations: Operations) -> Tensor:
        return operations.linear(x, self.weight, self.bias)
