"""Grouped-query attention between its projections."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..models.config import AttentionConfig
from ..operations import Operations, Rows
from .linear import Linear, Product, scaled
from .norm import Norm
from .rotary import Positions


@dataclass(frozen=True)
class Attention:
    """Projections to queries, keys and values, and out; some layers have norms of q and k, and a gate (Qwen3.5)."""

    config: AttentionConfig
    qkv_proj: Linear
    out_proj: Linear
    frequencies: Tensor | None = None
    q_norm: Norm | None = None
    k_norm: Norm | None = None

    @property
    def scale(self) -> float:
        return self.config.channels**-0.5

    def inputs(self, u: Rows, positions: Positions, operations: Operations) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Queries (b, t, h, e), keys and values (b, t, g, e), rotated to their positions, and the gate."""
        c, lead = self.config, u.shape[:-1]
        keys = c.groups * c.channels
        q, k, v = torch.split(self.qkv_proj(u, operations), [c.heads * c.channels * (1 + c.gated), keys, keys], dim=-1)
        q, gate = q.view(*lead, c.heads, -1), None
        if c.gated:
            q, gate = torch.split(q, c.channels, dim=-1)
        k, v = scaled(k, c.key_multiplier).view(*lead, c.groups, c.channels), v.view(*lead, c.groups, c.channels)
        q = q if self.q_norm is None else self.q_norm(q, operations)
        k = k if self.k_norm is None else self.k_norm(k, operations)
        if self.frequencies is not None:
            q, k = operations.rotate(q, k, positions.turn(c.rotary, self.frequencies, operations))
        return q, k, v, gate

    def output(self, y: Tensor, gate: Tensor | None, operations: Operations) -> Product:
        if gate is not None:
            y = y * operations.act(gate, "sigmoid")
        return Product(self.out_proj, y.flatten(-2))
