"""The MLP of a block: down(act(gate x) up x), or down(act(up x))."""

from dataclasses import dataclass

from torch import Tensor

from ..config import MLPConfig
from ..operations import Operations
from .linear import Linear


@dataclass(frozen=True)
class MLP:
    """Source: arXiv:2002.05202 (gated); the multipliers are Falcon-H1's."""

    config: MLPConfig
    up: Linear
    down: Linear
    gate: Linear | None = None

    def __call__(self, x: Tensor, operations: Operations) -> Tensor:
        up = self.up(x, operations)
        if self.gate is None:
            return self.down(operations.act(up, self.config.activation), operations)
        gate = scaled(self.gate(x, operations), self.config.gate_multiplier)
        return scaled(self.down(operations.act(gate, self.config.activation) * up, operations), self.config.down_multiplier)


def scaled(x: Tensor, factor: float) -> Tensor:
    """factor x; x itself for a factor of 1."""
    return x if factor == 1.0 else x * factor
