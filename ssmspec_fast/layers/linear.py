"""A product with weights, and one that is computed together with the norm after it."""

from dataclasses import dataclass
from typing import overload

import torch
from torch import Tensor

from ..operations import Operations, Rows
from .norm import Norm


@dataclass(frozen=True)
class Linear:
    """y = weight x + bias, written into `out` if given."""

    weight: Tensor
    bias: Tensor | None = None

    def __call__(self, x: Rows, operations: Operations, out: Tensor | None = None) -> Tensor:
        return operations.linear(x, self.weight, self.bias, out=out)


@dataclass(frozen=True)
class LowRank:
    """y = up (down x), a projection of two factors."""

    down: Linear
    up: Linear

    def __call__(self, x: Rows, operations: Operations, out: Tensor | None = None) -> Tensor:
        return self.up(self.down(x, operations), operations, out)


def joined(*parts: Linear) -> Linear:
    """One layer for several that read the same input, with their outputs concatenated; all have a bias, or none."""
    biases = [part.bias for part in parts if part.bias is not None]
    return Linear(torch.cat([part.weight for part in parts]), torch.cat(biases) if biases else None)


@dataclass(frozen=True)
class Product:
    """factor layer(x), not yet computed: what a layer adds to the residual stream. Without a layer, x itself."""

    layer: Linear | None
    x: Rows
    factor: float = 1.0

    def taken(self, operations: Operations) -> Tensor:
        if self.layer is None:
            assert isinstance(self.x, Tensor)
            return scaled(self.x, self.factor)
        return scaled(self.layer(self.x, operations), self.factor)

    def normed(self, norm: Norm, residual: Tensor, operations: Operations) -> Rows:
        """The norm of residual + factor layer(x), which is stored in `residual`; for projections only."""
        if self.layer is None or self.factor != 1.0 or norm.bias is not None:
            return norm(self.taken(operations), operations, residual)
        W, bias = self.layer.weight, self.layer.bias
        return operations.linear_normed(self.x, W, bias, residual=residual, weight=norm.weight, eps=norm.eps)


@overload
def scaled(x: Tensor, factor: float) -> Tensor: ...
@overload
def scaled(x: Rows, factor: float) -> Rows: ...
def scaled(x: Rows, factor: float) -> Rows:
    """factor x; x itself for a factor of 1."""
    if factor == 1.0:
        return x
    return x * factor if isinstance(x, Tensor) else x._replace(x=x.x * factor)
