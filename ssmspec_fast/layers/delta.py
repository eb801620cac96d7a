"""Gated DeltaNet from residual stream to residual stream, but for its convolution and its recurrence.

    q | k | v = conv(qkv_proj u);  z = z_proj u, a = a_proj u, b = b_proj u      (1)
    g = A softplus(a + dt_bias),  beta = sigmoid(b)           the recurrence's   (2)
    out = out_proj (rms(y) silu(z))                           head by head       (3)

Source: arXiv:2412.06464, section 3.4.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from ..config import DeltaConfig
from ..operations import DeltaInputs, DeltaParams, Operations, Rows, Taps
from .linear import Linear, Product


class Gates(NamedTuple):
    """What passes the convolution by: the raw decay and beta, and the gate z."""

    g: Tensor
    beta: Tensor
    z: Tensor


@dataclass(frozen=True)
class Delta:
    config: DeltaConfig
    qkv_proj: Linear
    z_proj: Linear
    a_proj: Linear
    b_proj: Linear
    taps: Taps
    params: DeltaParams
    norm: Tensor
    out_proj: Linear
    kind: ClassVar[str] = "delta"

    @property
    def projection(self) -> Linear:
        """The one that makes what the convolution reads, in its channels `reads`."""
        return self.qkv_proj

    @property
    def reads(self) -> slice:
        return slice(0, self.config.conv.channels)

    def inputs(self, u: Rows, operations: Operations, room: Tensor | None = None) -> tuple[Tensor, Gates]:
        """What the convolution reads, and what passes it by (1); the former into `room` where it is given."""
        pre = self.qkv_proj(u, operations, room)
        g, beta, z = (projection(u, operations) for projection in (self.a_proj, self.b_proj, self.z_proj))
        return pre, Gates(g, beta, z)

    def project(self, c: Tensor, gates: Gates, operations: Operations) -> DeltaInputs:
        """What the recurrence reads."""
        s, lead = self.config, c.shape[:-1]
        q, k, v = torch.split(c, list(s.pieces), dim=-1)
        keys, values = (*lead, s.key_heads, s.key_channels), (*lead, s.value_heads, s.value_channels)
        return DeltaInputs(q.reshape(keys), k.reshape(keys), v.reshape(values), gates.g, gates.beta)

    def room(self, new: Callable[..., Tensor]) -> DeltaInputs:
        """Tensors for what the recurrence reads, `new` of the axes behind rows and tokens."""
        c = self.config
        keys, h = (c.key_heads, c.key_channels), c.value_heads
        return DeltaInputs(new(*keys), new(*keys), new(h, c.value_channels), new(h), new(h))

    def output(self, y: Tensor, gates: Gates, operations: Operations) -> Product:
        """(3)."""
        z = gates.z.reshape(y.shape)
        y = operations.gated_norm(y, z, self.norm, eps=self.config.eps, norm_first=True)
        return Product(self.out_proj, y.flatten(-2))
