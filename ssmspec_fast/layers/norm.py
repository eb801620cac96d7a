"""The norms of the residual stream."""

from dataclasses import dataclass

from torch import Tensor

from ..operations import Operations


@dataclass(frozen=True)
class Norm:
    """An RMS norm; with a bias, a centred one (GPT-NeoX). `weight` is the factor itself, however it is stored on disk."""

    weight: Tensor
    eps: float
    bias: Tensor | None = None

    def __call__(self, x: Tensor, operations: Operations, residual: Tensor | None = None) -> Tensor:
        """The norm of x, or of residual + x, which is then stored in `residual`."""
        if self.bias is None:
            return operations.norm(x, self.weight, residual=residual, eps=self.eps)
        return operations.layer_norm(x, self.weight, self.bias, residual=residual, eps=self.eps)
