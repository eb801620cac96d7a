"""The MLP of a block: down(act(gate x) up x), or down(act(up x))."""

from dataclasses import dataclass

from ..models.config import MLPConfig
from ..operations import Operations, Rows
from .linear import Linear, Product, scaled


@dataclass(frozen=True)
class MLP:
    """Source: arXiv:2002.05202 (gated); the multipliers are Falcon-H1's."""

    config: MLPConfig
    up: Linear
    down: Linear
    gate: Linear | None = None

    def __call__(self, x: Rows, operations: Operations) -> Product:
        up = self.up(x, operations)
        if self.gate is None:
            return Product(self.down, operations.act(up, self.config.activation))
        gate = scaled(self.gate(x, operations), self.config.gate_multiplier)
        return Product(self.down, operations.act(gate, self.config.activation) * up, self.config.down_multiplier)
