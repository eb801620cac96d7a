"""A product with weights."""

from dataclasses import dataclass

from torch import Tensor

from ..operations import Operations


@dataclass(frozen=True)
class Linear:
    """y = weight x + bias, into `out` where it is given."""

    weight: Tensor
    bias: Tensor | None = None

    def __call__(self, x: Tensor, operations: Operations, out: Tensor | None = None) -> Tensor:
        return operations.linear(x, self.weight, self.bias, out=out)
