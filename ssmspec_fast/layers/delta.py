"""Gated DeltaNet from residual stream to residual stream, without its convolution and its recurrence.

    q | k | v = conv(qkv_proj u);  z = z_proj u, a = a_proj u, b = b_proj u      (1)
    g = A softplus(a + dt_bias),  beta = sigmoid(b)           in the recurrence  (2)
    out = out_proj (rms(y) silu(z))                           for each head      (3)

Source: arXiv:2412.06464, section 3.4.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, Self

import torch
from torch import Tensor

from ..models.config import DeltaConfig
from ..operations import DeltaInputs, DeltaParams, KDAParams, Operations, Rows, Taps
from .linear import Linear, LowRank, Product
from .recurrent import Recurrent

if TYPE_CHECKING:
    from ..families.source import Source


class Gates(NamedTuple):
    """What bypasses the convolution: the raw decay and beta, and the gate z."""

    g: Tensor
    beta: Tensor
    z: Tensor


@dataclass(frozen=True)
class Delta(Recurrent):
    config: DeltaConfig
    qkv_proj: Linear
    z_proj: Linear | LowRank
    a_proj: Linear | LowRank
    b_proj: Linear
    taps: Taps
    params: DeltaParams | KDAParams
    norm: Tensor
    out_proj: Linear
    kind: ClassVar[str] = "delta"
    home: ClassVar[str] = "linear_attn"
    activation: ClassVar[Literal["silu", "sigmoid"]] = "silu"
    """Of the output gate."""

    @classmethod
    def stored(cls, source: "Source", prefix: str, width: int, c: DeltaConfig) -> Self:
        """Gated DeltaNet as Qwen3.5 stores it, with a projection each for q | k | v, z, a and b, or as Qwen3-Next does."""
        values = c.value_heads * c.value_channels
        return cls(
            c,
            *(_interleaved if c.interleaved else _apart)(source, prefix, width, c),
            source.taps(f"{prefix}.conv1d", c.conv),
            DeltaParams(source.decay(f"{prefix}.A_log", c.value_heads), source.exact(f"{prefix}.dt_bias", c.value_heads)),
            source.exact(f"{prefix}.norm.weight", c.value_channels),
            source.linear(f"{prefix}.out_proj", width, values),
        )

    @property
    def projection(self) -> Linear:
        return self.qkv_proj

    @property
    def reads(self) -> slice:
        return slice(0, self.config.conv.channels)

    def inputs(self, u: Rows, operations: Operations, room: Tensor | None = None) -> tuple[Tensor, Gates]:
        """The input of the convolution, and what bypasses it (1); the former is written into `room` if given."""
        pre = self.qkv_proj(u, operations, room)
        g, beta, z = (projection(u, operations) for projection in (self.a_proj, self.b_proj, self.z_proj))
        return pre, Gates(g, beta, z)

    def project(self, c: Tensor, gates: Gates, operations: Operations) -> DeltaInputs:
        """The inputs of the recurrence."""
        s, lead = self.config, c.shape[:-1]
        q, k, v = torch.split(c, list(s.pieces), dim=-1)
        keys, values = (*lead, s.key_heads, s.key_channels), (*lead, s.value_heads, s.value_channels)
        return DeltaInputs(q.reshape(keys), k.reshape(keys), v.reshape(values), gates.g, gates.beta)

    def beside(self, inputs: DeltaInputs) -> tuple[Tensor, ...]:
        """The gates, which have projections beside that of q, k and v."""
        return inputs.g, inputs.beta

    def moving(self, projected: Tensor, c: Tensor, *beside: Tensor) -> DeltaInputs:
        """The inputs that advance the state, from the convolution's outputs and the gates; q is not read."""
        s, lead, (g, beta) = self.config, c.shape[:-1], beside
        _, k, v = torch.split(c, list(s.pieces), dim=-1)
        k = k.view(*lead, s.key_heads, s.key_channels)
        return DeltaInputs(k, k, v.view(*lead, s.value_heads, s.value_channels), g, beta)

    def room(self, new: Callable[..., Tensor]) -> DeltaInputs:
        c = self.config
        keys, h = (c.key_heads, c.key_channels), c.value_heads
        return DeltaInputs(new(*keys), new(*keys), new(h, c.value_channels), new(h), new(h))

    def output(self, y: Tensor, gates: Gates, operations: Operations) -> Product:
        """(3)."""
        z = gates.z.reshape(y.shape)
        y = operations.gated_norm(y, z, self.norm, eps=self.config.eps, norm_first=True, gate=self.activation)
        return Product(self.out_proj, y.flatten(-2))


def _apart(source: "Source", prefix: str, width: int, c: DeltaConfig) -> tuple[Linear, Linear, Linear, Linear]:
    """The projections to q | k | v, z, a and b, each a matrix."""
    rows = {"qkv": c.conv.channels, "z": c.value_heads * c.value_channels, "a": c.value_heads, "b": c.value_heads}
    qkv, z, a, b = (source.linear(f"{prefix}.in_proj_{name}", count, width) for name, count in rows.items())
    return qkv, z, a, b


def _interleaved(source: "Source", prefix: str, width: int, c: DeltaConfig) -> tuple[Linear, Linear, Linear, Linear]:
    """The same from two matrices, whose rows lie key head by key head: its q, k, values and z; its b and a."""
    each, values = c.value_heads // c.key_heads, c.value_heads * c.value_channels
    both = source.weight(f"{prefix}.in_proj_qkvz.weight", c.conv.channels + values, width)
    rates = source.weight(f"{prefix}.in_proj_ba.weight", 2 * c.value_heads, width)
    q, k, v, z = _pieces(both, c.key_heads, c.key_channels, c.key_channels, each * c.value_channels, each * c.value_channels)
    b, a = _pieces(rates, c.key_heads, each, each)
    return Linear(torch.cat([q, k, v])), Linear(z), Linear(a), Linear(b)


def _pieces(weight: Tensor, heads: int, *rows: int) -> list[Tensor]:
    """The rows of each piece, of all heads, where each head has all pieces one after the other."""
    split = torch.split(weight.view(heads, sum(rows), -1), list(rows), dim=1)
    return [piece.reshape(-1, weight.shape[1]) for piece in split]
