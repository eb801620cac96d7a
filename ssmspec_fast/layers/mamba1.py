"""Mamba-1 from residual stream to residual stream, without its convolution and its recurrence.

    x | z  = in_proj u;  c = conv(x)                         (1)
    r | B | C = x_proj c,  dt = dt_proj r                    (2)
    out = out_proj (y silu(z)),  y from the recurrence        (3)

Source: arXiv:2312.00752, sections 3.4 and 3.6.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

import torch
from torch import Tensor

from ..models.config import Mamba1Config
from ..operations import Operations, Rows, SelectiveInputs, SelectiveParams, Taps
from .linear import Linear, Product
from .recurrent import Recurrent

if TYPE_CHECKING:
    from ..families.source import Source


@dataclass(frozen=True)
class Mamba1(Recurrent):
    config: Mamba1Config
    in_proj: Linear
    taps: Taps
    x_proj: Linear
    dt_proj: Linear
    params: SelectiveParams
    out_proj: Linear
    kind: ClassVar[str] = "selective"

    @classmethod
    def stored(cls, source: "Source", prefix: str, width: int, c: Mamba1Config) -> Self:
        """Mamba-1: in_proj packs x | z, x_proj dt | B | C; the bias of dt_proj is that of dt."""
        return cls(
            c,
            source.linear(f"{prefix}.in_proj", 2 * c.inner, width, c.bias),
            source.taps(f"{prefix}.conv1d", c.conv),
            source.linear(f"{prefix}.x_proj", c.rank + 2 * c.state, c.inner),
            source.linear(f"{prefix}.dt_proj", c.inner, c.rank),
            SelectiveParams(
                source.decay(f"{prefix}.A_log", c.inner, c.state),
                source.exact(f"{prefix}.D", c.inner),
                source.exact(f"{prefix}.dt_proj.bias", c.inner),
            ),
            source.linear(f"{prefix}.out_proj", width, c.inner, c.bias),
        )

    @property
    def projection(self) -> Linear:
        return self.in_proj

    @property
    def reads(self) -> slice:
        return slice(0, self.config.inner)

    def inputs(self, u: Rows, operations: Operations, room: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The input of the convolution, and the gate (1); the projection is written into `room` if given."""
        x, z = torch.split(self.in_proj(u, operations, room), self.config.inner, dim=-1)
        return x, z

    def project(self, c: Tensor, gates: Tensor, operations: Operations) -> SelectiveInputs:
        """The inputs of the recurrence (2)."""
        n = self.config.state
        r, B, C = torch.split(self.x_proj(c, operations), [self.config.rank, n, n], dim=-1)
        return SelectiveInputs(c, self.dt_proj(r, operations), B, C, gates)

    def room(self, new: Callable[..., Tensor]) -> SelectiveInputs:
        d, n = self.config.inner, self.config.state
        return SelectiveInputs(new(d), new(d), new(n), new(n))

    def output(self, y: Tensor, gates: Tensor, operations: Operations) -> Product:
        """(3); y is already gated."""
        return Product(self.out_proj, y)
