"""Retention in the engine, in PyTorch."""

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from ssmspec_fast.adapters.given.kind import Given, Reader, Tensors
from ssmspec_fast.adapters.given.tokens import Handing, Tokens
from ssmspec_fast.layers.linear import Linear, Product
from ssmspec_fast.layers.recurrent import Recurrent
from ssmspec_fast.models.config import ConvSizes, RecurrentConfig
from ssmspec_fast.operations import Operations, Rows, Taps
from ssmspec_fast.operations.arithmetic import exact
from ssmspec_fast.operations.torch_recurrences import Sequential
from ssmspec_fast.recurrences import Recurrence

if TYPE_CHECKING:
    from ssmspec_fast.families.source import Source


@dataclass(frozen=True)
class RetentionConfig(RecurrentConfig):
    heads: int
    key_channels: int
    value_channels: int
    width: int

    @property
    def conv(self) -> ConvSizes:
        return ConvSizes(self.heads * (2 * self.key_channels + self.value_channels), self.width, True)

    @property
    def state_shape(self) -> tuple[int, ...]:
        return self.heads, self.key_channels, self.value_channels

    @property
    def output_shape(self) -> tuple[int, ...]:
        return self.heads, self.value_channels

    @property
    def ring_sizes(self) -> tuple[int, int]:
        return self.heads * (self.key_channels + self.value_channels), 0


class RetentionInputs(NamedTuple):
    q: Tensor
    k: Tensor
    v: Tensor

    @property
    def outputs(self) -> dict[str, str | None]:
        return {"q": "k"}


class RetentionParams(NamedTuple):
    A: Tensor


class RetentionTokens(NamedTuple):
    a: Tensor
    q: Tensor
    k: Tensor
    v: Tensor


class Retention(Sequential):
    """S' = exp(A) S + k v^T, o = S'^T q."""

    def prepare(self, inputs: RetentionInputs, params: RetentionParams) -> RetentionTokens:
        q, k, v = (x.to(exact(inputs.v)) for x in inputs)
        return RetentionTokens(self.arithmetic.exp(params.A.to(v)).expand(v.shape[:3]), q, k, v)

    def step(self, S: Tensor, token: RetentionTokens) -> tuple[Tensor, Tensor]:
        after = token.a[..., None, None] * S + token.k[..., None] * token.v[:, :, None]
        return self.arithmetic.sum(after * token.q[..., None], dim=-2), after

    def finish(self, y: Tensor, inputs: RetentionInputs, params: RetentionParams) -> Tensor:
        return y.to(inputs.v.dtype)


@dataclass(frozen=True)
class RetentionLayer(Recurrent):
    config: RetentionConfig
    qkv_proj: Linear
    z_proj: Linear
    taps: Taps
    params: RetentionParams
    out_proj: Linear
    kind: ClassVar[str] = "retention"

    @classmethod
    def stored(cls, source: "Source", prefix: str, width: int, c: RetentionConfig) -> Self:
        inner = c.heads * c.value_channels
        return cls(
            c,
            source.linear(f"{prefix}.qkv_proj", c.conv.channels, width),
            source.linear(f"{prefix}.z_proj", inner, width),
            source.taps(f"{prefix}.conv1d", c.conv),
            RetentionParams(source.decay(f"{prefix}.A_log", c.heads)),
            source.linear(f"{prefix}.out_proj", width, inner),
        )

    @property
    def projection(self) -> Linear:
        return self.qkv_proj

    @property
    def reads(self) -> slice:
        return slice(0, self.config.conv.channels)

    def inputs(self, u: Rows, operations: Operations, room: Tensor | None = None) -> tuple[Tensor, Any]:
        return self.qkv_proj(u, operations, room), self.z_proj(u, operations)

    def project(self, c: Tensor, gates: Any, operations: Operations) -> RetentionInputs:
        h, k, v = self.config.state_shape
        q, keys, values = torch.split(c, [h * k, h * k, h * v], dim=-1)
        lead = c.shape[:-1]
        return RetentionInputs(q.reshape(*lead, h, k), keys.reshape(*lead, h, k), values.reshape(*lead, h, v))

    def room(self, new: Callable[..., Tensor]) -> RetentionInputs:
        h, k, v = self.config.state_shape
        return RetentionInputs(new(h, k), new(h, k), new(h, v))

    def output(self, y: Tensor, gates: Any, operations: Operations) -> Product:
        return Product(self.out_proj, y.flatten(-2) * operations.act(gates, "silu"))


KIND = Recurrence("retention", RetentionConfig, RetentionLayer, lambda arithmetic, windows: Retention(arithmetic))


@dataclass(frozen=True)
class Between(Handing, RetentionLayer):
    """The layer between its projections."""

    tokens: Any = None
    gated: ClassVar[Any] = staticmethod(lambda: None)


def config(mixer: Any) -> RetentionConfig:
    return RetentionConfig(len(mixer.params.A), mixer.key_channels, mixer.value_channels, mixer.conv.weight.shape[1])


def given(make: Tensors, exact: Tensors, window: Any, params: Any) -> tuple[RetentionInputs, RetentionParams]:
    return RetentionInputs(*map(make, (window.q, window.k, window.v))), RetentionParams(exact(params.A))


def handing(mixer: Any, tokens: Tokens, exact: Tensors, gates: Any) -> Between:
    none, conv = Linear(torch.empty(0)), mixer.conv
    taps = Taps(exact(conv.weight), exact(conv.bias), conv.activation)
    return Between(config(mixer), none, none, taps, RetentionParams(exact(mixer.params.A)), none, tokens)


def layer(read: Reader, record: Any) -> RetentionLayer:
    m = record.mixer
    qkv, z, out = map(read.linear, (record.qkv_proj, record.z_proj, record.out_proj))
    return RetentionLayer(config(m), qkv, z, read.taps(m.conv), RetentionParams(read.tensor(m.params.A)), out)


def bare(window: Any, params: Any) -> tuple[Any, tuple[str, ...]]:
    sizes = {"key_channels": window.k.shape[3], "value_channels": window.v.shape[3]}
    return SimpleNamespace(kind="retention", params=params, **sizes), ("q", "k", "v")


GIVEN = Given("retention", ("retention",), given, lambda gates: (), handing, layer, bare)
