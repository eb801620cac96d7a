"""Kimi Delta Attention from residual stream to residual stream, without its convolution and its recurrence.

    q | k | v = conv(qkv_proj u);  z = z_proj u, a = a_proj u, b = b_proj u          (1)
    g = A softplus(a + dt_bias), or lower_bound sigmoid(-A (a + dt_bias)),
    beta = sigmoid(b)                                          in the recurrence     (2)
    out = out_proj (rms(y) sigmoid(z))                         for each head         (3)

It differs from Gated DeltaNet in (2), where a and dt_bias have a value for each key channel, in the sigmoid of (3), and in
that the projections to a and z may have two factors.
Source: arXiv:2510.26692, section 4; modeling_kimi_linear.py of transformers 5.23; fla/ops/kda/gate.py of
flash-linear-attention for the bounded gate.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, Self

import torch
from torch import Tensor

from ..models.config import ConvSizes, KDAConfig
from ..operations import DeltaInputs, KDAParams, Operations, Taps
from .delta import Delta, Gates
from .linear import Linear, LowRank, joined

if TYPE_CHECKING:
    from ..families.source import Source


@dataclass(frozen=True)
class KDA(Delta):
    config: KDAConfig
    params: KDAParams
    kind: ClassVar[str] = "kda"
    home: ClassVar[str] = "self_attn"
    activation: ClassVar[Literal["silu", "sigmoid"]] = "sigmoid"

    @classmethod
    def stored(cls, source: "Source", prefix: str, width: int, c: KDAConfig) -> Self:  # type: ignore[override]
        """As Kimi Linear stores it: q, k and v with a projection and a filter each, f for the decay, g for the gate."""
        pieces = dict(zip("qkv", c.pieces, strict=True))
        decays, values = c.value_heads * c.key_channels, c.value_heads * c.value_channels
        filters = (source.taps(f"{prefix}.{x}_conv1d", ConvSizes(n, c.width, False)) for x, n in pieces.items())
        rate = source.decay(f"{prefix}.A_log", 1, 1, c.value_heads, 1).flatten()
        bias = source.exact(f"{prefix}.dt_bias", decays).view(c.value_heads, c.key_channels)
        return cls(
            c,
            joined(*(source.linear(f"{prefix}.{x}_proj", n, width) for x, n in pieces.items())),
            factored(source, f"{prefix}.g", values, width, c.gate_rank),
            factored(source, f"{prefix}.f", decays, width, c.rank),
            source.linear(f"{prefix}.b_proj", c.value_heads, width),
            Taps(torch.cat([taps.weight for taps in filters])),
            KDAParams(rate, bias, lower_bound=c.lower_bound),
            source.exact(f"{prefix}.o_norm.weight", c.value_channels),
            source.linear(f"{prefix}.o_proj", width, values),
        )

    def project(self, c: Tensor, gates: Gates, operations: Operations) -> DeltaInputs:
        """The inputs of the recurrence, g by head and key channel."""
        inputs = super().project(c, gates, operations)
        return inputs._replace(g=gates.g.reshape(*c.shape[:-1], self.config.value_heads, self.config.key_channels))

    def room(self, new: Callable[..., Tensor]) -> DeltaInputs:
        return super().room(new)._replace(g=new(self.config.value_heads, self.config.key_channels))


def factored(source: "Source", name: str, outputs: int, inputs: int, rank: int | None) -> Linear | LowRank:
    """The projections `name`_a_proj and `name`_b_proj through a rank, or `name`_proj alone."""
    if rank is None:
        return source.linear(f"{name}_proj", outputs, inputs)
    return LowRank(source.linear(f"{name}_a_proj", rank, inputs), source.linear(f"{name}_b_proj", outputs, rank))
