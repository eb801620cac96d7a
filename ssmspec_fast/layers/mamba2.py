"""Mamba-2 from residual stream to residual stream, but for its convolution and its recurrence.

    z | x B C | dt = in_proj u;  x | B | C = conv(x B C)     (1)
    x, B widened to all heads and groups                     (2)
    out = out_proj norm(y, z), or out_proj (y silu(z))       (3)

Source: arXiv:2405.21060, section 7; MambaInLlama for (2); Falcon-H1 for the multipliers of (1).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from ..config import Mamba2Config
from ..operations import Gate, Operations, Rows, SSDInputs, SSDParams, Taps, Weighted
from .linear import Linear, Product, scaled


class Gates(NamedTuple):
    """What passes the convolution by: raw dt and the gate z."""

    dt: Tensor
    z: Tensor


@dataclass(frozen=True)
class Mamba2:
    config: Mamba2Config
    in_proj: Linear
    taps: Taps
    params: SSDParams
    out_proj: Linear
    norm: Tensor | None = None
    multipliers: Tensor | None = None  # of each channel of the projection
    kind: ClassVar[str] = "ssd"

    @property
    def projection(self) -> Linear:
        """The one that makes what the convolution reads, in its channels `reads`."""
        return self.in_proj

    @property
    def reads(self) -> slice:
        return slice(self.config.inner, self.config.inner + self.config.conv.channels)

    def inputs(self, u: Rows, operations: Operations, room: Tensor | None = None) -> tuple[Tensor, Gates]:
        """What the convolution reads, and what passes it by (1); the projection into `room` where it is given."""
        c = self.config
        projected = self.in_proj(scaled(u, c.input_multiplier), operations, room)
        if self.multipliers is not None:
            projected = torch.mul(projected, self.multipliers, out=room)
        z, pre, dt = torch.split(projected, [c.inner, c.conv.channels, c.heads], dim=-1)
        return pre, Gates(dt, z)

    def project(self, c: Tensor, gates: Gates, operations: Operations) -> SSDInputs:
        """What the recurrence reads (2); it gates y itself where no norm follows."""
        s, lead = self.config, c.shape[:-1]
        x, B, C = torch.split(c, list(s.pieces), dim=-1)
        x = widened(x.reshape(*lead, -1, s.channels), s.heads)
        B = widened(B.reshape(*lead, -1, s.state), s.groups)
        z = gates.z.reshape(x.shape) if self.norm is None else None
        return SSDInputs(x, gates.dt, B, C.reshape(*lead, s.groups, s.state), z)

    def moving(self, projected: Tensor, c: Tensor) -> SSDInputs:
        """What of the projection and of the convolution's outputs moves the state on, as narrow as it came; C is not read."""
        s, lead = self.config, c.shape[:-1]
        x, B, _ = torch.split(c, list(s.pieces), dim=-1)
        B = B.view(*lead, -1, s.state)
        return SSDInputs(x.view(*lead, -1, s.channels), projected[..., projected.shape[-1] - s.heads :], B, B)

    def room(self, new: Callable[..., Tensor]) -> SSDInputs:
        """Tensors for what the recurrence reads, `new` of the axes behind rows and tokens."""
        c = self.config
        return SSDInputs(new(c.heads, c.channels), new(c.heads), new(c.groups, c.state), new(c.groups, c.state))

    def gate(self, gates: Gates) -> Gate | None:
        """What the norm of (3) takes beside y, where it is one norm of all heads that are gated first."""
        n = self.config.norm
        return None if self.norm is None or n is None or n.groups > 1 or n.norm_first else Gate(gates.z, self.norm, n.eps)

    def output(self, y: Rows, gates: Gates, operations: Operations) -> Product:
        """(3); y may come gated and normed."""
        if isinstance(y, Weighted):
            return Product(self.out_proj, y)
        y = y.flatten(-2)
        if self.norm is not None and self.config.norm is not None:
            n = self.config.norm
            y = operations.gated_norm(y, gates.z, self.norm, groups=n.groups, eps=n.eps, norm_first=n.norm_first)
        return Product(self.out_proj, y)


def widened(x: Tensor, heads: int) -> Tensor:
    """Every head as often as grouped attention would read it."""
    return x if x.shape[-2] == heads else x.repeat_interleave(heads // x.shape[-2], dim=-2)
