"""Mamba-1 from residual stream to residual stream, but for its convolution and its recurrence.

    x | z  = in_proj u;  c = conv(x)                         (1)
    r | B | C = x_proj c,  dt = dt_proj r                    (2)
    out = out_proj (y silu(z)),  y the recurrence's          (3)

Source: arXiv:2312.00752, sections 3.4 and 3.6.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..config import Mamba1Config
from ..operations import Operations, Rows, SelectiveInputs, SelectiveParams, Taps
from .linear import Linear, Product


@dataclass(frozen=True)
class Mamba1:
    config: Mamba1Config
    in_proj: Linear
    taps: Taps
    x_proj: Linear
    dt_proj: Linear
    params: SelectiveParams
    out_proj: Linear
    kind: ClassVar[str] = "selective"

    @property
    def projection(self) -> Linear:
        """The one that makes what the convolution reads, in its channels `reads`."""
        return self.in_proj

    @property
    def reads(self) -> slice:
        return slice(0, self.config.inner)

    def inputs(self, u: Rows, operations: Operations, room: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """What the convolution reads, and the gate (1); the projection into `room` where it is given."""
        x, z = torch.split(self.in_proj(u, operations, room), self.config.inner, dim=-1)
        return x, z

    def project(self, c: Tensor, gates: Tensor, operations: Operations) -> SelectiveInputs:
        """What the recurrence reads (2)."""
        n = self.config.state
        r, B, C = torch.split(self.x_proj(c, operations), [self.config.rank, n, n], dim=-1)
        return SelectiveInputs(c, self.dt_proj(r, operations), B, C, gates)

    def room(self, new: Callable[..., Tensor]) -> SelectiveInputs:
        """Tensors for what the recurrence reads, `new` of the axes behind rows and tokens."""
        d, n = self.config.inner, self.config.state
        return SelectiveInputs(new(d), new(d), new(n), new(n))

    def output(self, y: Tensor, gates: Tensor, operations: Operations) -> Product:
        """(3); y comes gated."""
        return Product(self.out_proj, y)
