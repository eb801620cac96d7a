"""Gated DeltaNet with the suite's values: its gates after the functions that the engine's layer applies."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar

import torch

from ssmspec_ref.contract import Limits
from ssmspec_ref.errors import Unsupported

from ...layers.delta import Delta, Gates
from ...layers.linear import Linear
from ...models.config import DeltaConfig
from ...operations import DeltaInputs, DeltaParams, Taps
from ...operations.torch_recurrences import Delta as Rule
from ...operations.torch_recurrences import DeltaTokens
from .kind import Given, Reader, Tensors
from .tokens import Handing, Tokens

BY_HEAD = Limits(
    options={"gate": ("head",)}, reason="Gated DeltaNet decays by head; Kimi Delta Attention is not in the engine"
)


class Gated(Rule):
    """The delta rule with gates as the contract defines them."""

    def prepare(self, inputs: DeltaInputs, params: DeltaParams) -> DeltaTokens:
        tokens = super().prepare(inputs, params)
        return tokens._replace(a=self.arithmetic.exp(inputs.g.to(tokens.q)), beta=inputs.beta.to(tokens.q))


def inputs(given: Tensors, exact: Tensors, window: Any, params: Any) -> tuple[DeltaInputs, DeltaParams]:
    q, k, v = map(given, (window.q, window.k, window.v))
    unread = torch.zeros(window.v.shape[2], device=v.device)
    made = DeltaInputs(q, k, v, exact(window.g), exact(window.beta))
    return made, DeltaParams(unread, unread, params.l2_norm, params.scale, params.eps)


@dataclass(frozen=True)
class Between(Handing, Delta):
    """Gated DeltaNet between its projections; the gate after its norm is not read."""

    tokens: Any = None
    gated: ClassVar[Any] = staticmethod(lambda g, beta: Gates(g, beta, g))


def config(mixer: Any, eps: float) -> DeltaConfig:
    sizes = mixer.key_heads, mixer.value_heads, mixer.key_channels, mixer.value_channels
    return DeltaConfig(*sizes, mixer.conv.weight.shape[1], eps)


def handing(mixer: Any, tokens: Tokens, exact: Tensors, gated: bool) -> Between:
    none, conv, p = Linear(torch.empty(0)), mixer.conv, mixer.params
    taps = Taps(exact(conv.weight), exact(conv.bias), conv.activation)
    unread = torch.zeros(mixer.value_heads, device=tokens.device)
    rule = DeltaParams(unread, unread, p.l2_norm, p.scale, p.eps)
    return Between(config(mixer, p.eps), none, none, none, none, taps, rule, unread, none, tokens)


def layer(read: Reader, record: Any) -> Delta:
    m, p = record.mixer, record.mixer.params
    plain = record.dt_bias.ndim == 1 and record.beta_scale == 1.0 and record.lower_bound is None
    if not (plain and record.norm.gate == "silu"):
        raise Unsupported("the engine's delta rule decays by head, with beta below 1 and a SiLU gate")
    params = DeltaParams(read.tensor(record.A), read.tensor(record.dt_bias), p.l2_norm, p.scale, p.eps)
    qkv, z, a, b = map(read.linear, (record.qkv_proj, record.z_proj, record.a_proj, record.b_proj))
    norm, out = read.tensor(record.norm.weight), read.linear(record.out_proj)
    return Delta(config(m, record.norm.eps), qkv, z, a, b, read.taps(m.conv), params, norm, out)


def bare(window: Any, params: Any) -> tuple[Any, tuple[str, ...]]:
    keys, values = window.k.shape[2:], window.v.shape[2:]
    sizes = {"key_heads": keys[0], "key_channels": keys[1], "value_heads": values[0], "value_channels": values[1]}
    return SimpleNamespace(kind="delta", params=params, **sizes), ("q", "k", "v")


KIND = Given(
    "delta", ("delta",), inputs, lambda gates: (gates.g, gates.beta), handing, layer, bare, raw=Gated, limits=BY_HEAD
)
