"""Gated DeltaNet and Kimi Delta Attention with the suite's values: gates after the functions of the engine's layers."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from torch import Tensor

from ssmspec_ref.errors import Unsupported

from ...layers.delta import Delta, Gates
from ...layers.kda import KDA
from ...layers.linear import Linear, LowRank
from ...models.config import DeltaConfig, KDAConfig
from ...operations import DeltaInputs, DeltaParams, KDAParams, Taps
from ...operations.arithmetic import exact as exact_type
from ...operations.torch_recurrences import Delta as Rule
from ...operations.torch_recurrences import DeltaTokens
from .kind import Given, Reader, Tensors, translated
from .tokens import Handing, Tokens


class Gated(Rule):
    """The delta rule with gates as the contract defines them, by head or by key channel."""

    def prepare(self, inputs: DeltaInputs, params: DeltaParams) -> DeltaTokens:
        return super().prepare(inputs, params)._replace(beta=inputs.beta.to(exact_type(inputs.v)))

    def log_decay(self, g: Tensor, params: DeltaParams) -> Tensor:
        return g if g.dim() == 4 else g[..., None]


def inputs(given: Tensors, exact: Tensors, window: Any, params: Any) -> tuple[DeltaInputs, DeltaParams]:
    """Gates are exact."""
    unread = torch.zeros(window.v.shape[2], device=exact(window.g).device)
    made = translated(DeltaInputs, window, given)._replace(g=exact(window.g), beta=exact(window.beta))
    return made, DeltaParams(unread, unread, params.l2_norm, params.scale, params.eps)


def no_gate(g: Any, beta: Any) -> Gates:
    """The gate after the norm is not read."""
    return Gates(g, beta, g)


@dataclass(frozen=True)
class Between(Handing, Delta):
    """Gated DeltaNet between its projections."""

    tokens: Any = None
    gated: ClassVar[Any] = staticmethod(no_gate)


@dataclass(frozen=True)
class BetweenByChannel(Handing, KDA):
    """Kimi Delta Attention between its projections; with gates as the contract defines them, it is the same rule."""

    tokens: Any = None
    gated: ClassVar[Any] = staticmethod(no_gate)
    kind: ClassVar[str] = Delta.kind


def sizes(mixer: Any, eps: float) -> tuple[int, int, int, int, int, float]:
    """The fields that both configs have."""
    taps = mixer.conv.weight.shape[1]
    return mixer.key_heads, mixer.value_heads, mixer.key_channels, mixer.value_channels, taps, eps


def handing(mixer: Any, tokens: Tokens, exact: Tensors, gates: Any) -> Delta:
    none, conv, p = Linear(torch.empty(0)), mixer.conv, mixer.params
    taps = translated(Taps, conv, exact)
    unread = torch.zeros(mixer.value_heads, device=tokens.device)
    maps, rule, both = (none,) * 4, (unread, unread, p.l2_norm, p.scale, p.eps), sizes(mixer, p.eps)
    if gates.g.ndim == 4:
        return BetweenByChannel(KDAConfig(*both), *maps, taps, KDAParams(*rule), unread, none, tokens)
    return Between(DeltaConfig(*both), *maps, taps, DeltaParams(*rule), unread, none, tokens)


def layer(read: Reader, record: Any) -> Delta:
    m, p, by_channel = record.mixer, record.mixer.params, record.dt_bias.ndim == 2
    if record.beta_scale != 1.0 or record.norm.gate != ("sigmoid" if by_channel else "silu"):
        raise Unsupported("the engine's delta rule has beta below 1, and gates with SiLU, or by channel with a sigmoid")
    if record.lower_bound is not None and not by_channel:
        raise Unsupported("the engine's delta rule bounds its log decay only if it decays by channel")
    rule, bounded = (read.tensor(record.A), read.tensor(record.dt_bias), p.l2_norm, p.scale, p.eps), record.lower_bound
    first, last = read.linear(record.qkv_proj), read.linear(record.out_proj)
    z, a, b = (projection(read, x) for x in (record.z_proj, record.a_proj, record.b_proj))
    norm, taps, both = read.tensor(record.norm.weight), read.taps(m.conv), sizes(m, record.norm.eps)
    if by_channel:
        rank, gate_rank = (None if x.down is None else len(x.down) for x in (record.a_proj, record.z_proj))
        c = KDAConfig(*both, rank, gate_rank, bounded)
        return KDA(c, first, z, a, b, taps, KDAParams(*rule, bounded), norm, last)
    return Delta(DeltaConfig(*both), first, z, a, b, taps, DeltaParams(*rule), norm, last)


def projection(read: Reader, x: Any) -> Any:
    """A projection of one factor or of two."""
    whole = Linear(read.tensor(x.weight), read.tensor(x.bias))
    return whole if x.down is None else LowRank(Linear(read.tensor(x.down)), whole)


def bare(window: Any, params: Any) -> tuple[Any, tuple[str, ...]]:
    keys, values = window.k.shape[2:], window.v.shape[2:]
    sizes = {"key_heads": keys[0], "key_channels": keys[1], "value_heads": values[0], "value_channels": values[1]}
    return SimpleNamespace(kind="delta", params=params, **sizes), ("q", "k", "v")


KIND = Given("delta", ("delta", "kda"), inputs, lambda gates: (gates.g, gates.beta), handing, layer, bare, raw=Gated)
