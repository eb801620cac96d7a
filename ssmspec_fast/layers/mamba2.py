"""Mamba-2 from residual stream to residual stream, without its convolution and its recurrence.

    z | x B C | dt = in_proj u;  x | B | C = conv(x B C)     (1)
    x, B widened to all heads and groups                     (2)
    out = out_proj norm(y, z), or out_proj (y silu(z))       (3)

Source: arXiv:2405.21060, section 7; MambaInLlama for (2); Falcon-H1 for the multipliers of (1).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from ..models.config import Mamba2Config
from ..operations import Gate, Operations, Rows, SSDInputs, SSDParams, Taps, Weighted
from .linear import Linear, Product, scaled
from .recurrent import Recurrent

if TYPE_CHECKING:
    from ..families.source import Source


class Gates(NamedTuple):
    """What bypasses the convolution: raw dt and the gate z."""

    dt: Tensor
    z: Tensor


@dataclass(frozen=True)
class Mamba2(Recurrent):
    config: Mamba2Config
    in_proj: Linear
    taps: Taps
    params: SSDParams
    out_proj: Linear
    norm: Tensor | None = None
    multipliers: Tensor | None = None  # of each channel of the projection
    kind: ClassVar[str] = "ssd"
    home: ClassVar[str] = "mamba"

    @classmethod
    def stored(cls, source: "Source", prefix: str, width: int, c: Mamba2Config) -> Self:
        """Mamba-2: in_proj packs z | x B C | dt."""
        D = source.exact(f"{prefix}.D", c.inner if c.skip_by_channel else c.heads)
        params = SSDParams(
            source.decay(f"{prefix}.A_log", c.heads),
            D.view(c.heads, c.channels) if c.skip_by_channel else D,
            source.exact(f"{prefix}.dt_bias", c.heads),
            dt_limit=c.dt_limit,
        )
        return cls(
            c,
            source.linear(f"{prefix}.in_proj", c.inner + c.conv.channels + c.heads, width, c.bias),
            source.taps(f"{prefix}.conv1d", c.conv),
            params,
            source.linear(f"{prefix}.out_proj", width, c.inner, c.out_bias),
            source.exact(f"{prefix}.norm.weight", c.inner) if c.norm else None,
            multipliers(source, c),
        )

    @property
    def projection(self) -> Linear:
        return self.in_proj

    @property
    def reads(self) -> slice:
        return slice(self.config.inner, self.config.inner + self.config.conv.channels)

    def inputs(self, u: Rows, operations: Operations, room: Tensor | None = None) -> tuple[Tensor, Gates]:
        """The input of the convolution, and what bypasses it (1); the projection is written into `room` if given."""
        c = self.config
        projected = self.in_proj(scaled(u, c.input_multiplier), operations, room)
        if self.multipliers is not None:
            projected = torch.mul(projected, self.multipliers, out=room)
        z, pre, dt = torch.split(projected, [c.inner, c.conv.channels, c.heads], dim=-1)
        return pre, Gates(dt, z)

    def project(self, c: Tensor, gates: Gates, operations: Operations) -> SSDInputs:
        """The inputs of the recurrence (2); it gates y itself if no norm follows."""
        s, lead = self.config, c.shape[:-1]
        x, B, C = torch.split(c, list(s.pieces), dim=-1)
        x = widened(x.reshape(*lead, -1, s.channels), s.heads)
        B = widened(B.reshape(*lead, -1, s.state), s.groups)
        z = gates.z.reshape(x.shape) if self.norm is None else None
        return SSDInputs(x, gates.dt, B, C.reshape(*lead, s.groups, s.state), z)

    def moving(self, projected: Tensor, c: Tensor, *beside: Tensor) -> SSDInputs:
        """The inputs that advance the state, from the projection and the convolution's outputs, not widened; C is not
        read."""
        s, lead = self.config, c.shape[:-1]
        x, B, _ = torch.split(c, list(s.pieces), dim=-1)
        B = B.view(*lead, -1, s.state)
        return SSDInputs(x.view(*lead, -1, s.channels), projected[..., projected.shape[-1] - s.heads :], B, B)

    def room(self, new: Callable[..., Tensor]) -> SSDInputs:
        c = self.config
        return SSDInputs(new(c.heads, c.channels), new(c.heads), new(c.groups, c.state), new(c.groups, c.state))

    def gate(self, gates: Gates) -> Gate | None:
        """What the norm of (3) reads in addition to y, if it is one norm over all heads that are gated first."""
        n = self.config.norm
        return None if self.norm is None or n is None or n.groups > 1 or n.norm_first else Gate(gates.z, self.norm, n.eps)

    def output(self, y: Rows, gates: Gates, operations: Operations) -> Product:
        """(3); y may already be gated and normed."""
        if isinstance(y, Weighted):
            return Product(self.out_proj, y)
        y = y.flatten(-2)
        if self.norm is not None and self.config.norm is not None:
            n = self.config.norm
            y = operations.gated_norm(y, gates.z, self.norm, groups=n.groups, eps=n.eps, norm_first=n.norm_first)
        return Product(self.out_proj, y)


def widened(x: Tensor, heads: int) -> Tensor:
    """Every head repeated as grouped attention reads it."""
    return x if x.shape[-2] == heads else x.repeat_interleave(heads // x.shape[-2], dim=-2)


def multipliers(source: "Source", c: Mamba2Config) -> Tensor | None:
    """The scale of each channel of z | x | B | C | dt (Falcon-H1)."""
    if c.multipliers == (1.0,) * 5:
        return None
    if source.device.type == "meta":
        return torch.empty(c.inner + sum(c.pieces) + c.heads, device="meta")
    sizes = torch.tensor([c.inner, *c.pieces, c.heads])
    scales = torch.tensor(c.multipliers, dtype=torch.float64).repeat_interleave(sizes)
    return scales.to(device=source.device, dtype=source.dtype)
