"""The structure of a model, as its config gives it: sizes and constants, no tensors.

A model is an embedding, blocks, a norm and a head. A block adds to the residual stream the outputs of its mixers on one norm
of the stream, each scaled, and then the output of its MLP on another norm; with `parallel` both read the same stream
(GPT-NeoX). A block without mixers is an MLP alone, one without an MLP a mixer alone (Nemotron-H).
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Activation: TypeAlias = Literal["silu", "relu2", "gelu"]


@dataclass(frozen=True)
class ConvSizes:
    """The causal convolution in front of a recurrence."""

    channels: int
    width: int
    bias: bool


class RecurrentConfig(ABC):
    """The sizes of a recurrent layer."""

    @property
    @abstractmethod
    def conv(self) -> ConvSizes: ...

    @property
    @abstractmethod
    def state_shape(self) -> tuple[int, ...]:
        """The state of one sequence in one layer."""

    @property
    @abstractmethod
    def output_shape(self) -> tuple[int, ...]:
        """The shape of the recurrence's output for one token."""

    @property
    @abstractmethod
    def ring_sizes(self) -> tuple[int, int]:
        """How many numbers a ring stores for one token: in the type of the activations, and in fp32."""

    @property
    def formed(self) -> int:
        """How many state-sized numbers are computed for each token of a run before the first step."""
        return 0


@dataclass(frozen=True)
class Mamba1Config(RecurrentConfig):
    """Mamba-1: `inner` channels, each with `state` states; dt through a rank."""

    inner: int
    state: int
    rank: int
    width: int
    conv_bias: bool = True
    bias: bool = False

    @property
    def conv(self) -> ConvSizes:
        return ConvSizes(self.inner, self.width, self.conv_bias)

    @property
    def state_shape(self) -> tuple[int, ...]:
        return self.inner, self.state

    @property
    def output_shape(self) -> tuple[int, ...]:
        return (self.inner,)

    @property
    def ring_sizes(self) -> tuple[int, int]:
        return 2 * self.inner + self.state, 0

    @property
    def formed(self) -> int:
        return self.inner * self.state


@dataclass(frozen=True)
class GatedNormConfig:
    """The norm at the end of a recurrent layer."""

    groups: int
    eps: float
    norm_first: bool = False


@dataclass(frozen=True)
class Mamba2Config(RecurrentConfig):
    """Mamba-2. `x_groups` and `B_groups` are MambaInLlama's: x and B leave the convolution with fewer heads.

    `multipliers` scale z, x, B, C, dt of the projection (Falcon-H1).
    """

    heads: int
    channels: int
    state: int
    groups: int
    width: int
    x_groups: int | None = None
    B_groups: int | None = None
    conv_bias: bool = True
    bias: bool = False
    out_bias: bool = False
    skip_by_channel: bool = False
    dt_limit: tuple[float, float] = (0.0, float("inf"))
    norm: GatedNormConfig | None = None
    input_multiplier: float = 1.0
    multipliers: tuple[float, float, float, float, float] = (1.0, 1.0, 1.0, 1.0, 1.0)

    @property
    def inner(self) -> int:
        return self.heads * self.channels

    @property
    def pieces(self) -> tuple[int, int, int]:
        """Channels of x, B and C in the convolution."""
        x, B = self.x_groups or self.heads, self.B_groups or self.groups
        return x * self.channels, B * self.state, self.groups * self.state

    @property
    def conv(self) -> ConvSizes:
        return ConvSizes(sum(self.pieces), self.width, self.conv_bias)

    @property
    def state_shape(self) -> tuple[int, ...]:
        return self.heads, self.channels, self.state

    @property
    def output_shape(self) -> tuple[int, ...]:
        return self.heads, self.channels

    @property
    def ring_sizes(self) -> tuple[int, int]:
        return self.heads * self.channels + self.groups * self.state, self.heads


@dataclass(frozen=True)
class DeltaConfig(RecurrentConfig):
    """Gated DeltaNet, one norm for all heads. `interleaved`: a checkpoint stores q, k, v and z in one matrix, key head by key
    head, and b and a in another (Qwen3-Next)."""

    key_heads: int
    value_heads: int
    key_channels: int
    value_channels: int
    width: int
    eps: float
    interleaved: bool = field(default=False, kw_only=True)

    @property
    def pieces(self) -> tuple[int, int, int]:
        """Channels of q, k and v in the convolution."""
        keys = self.key_heads * self.key_channels
        return keys, keys, self.value_heads * self.value_channels

    @property
    def conv(self) -> ConvSizes:
        return ConvSizes(sum(self.pieces), self.width, False)

    @property
    def state_shape(self) -> tuple[int, ...]:
        return self.value_heads, self.key_channels, self.value_channels

    @property
    def output_shape(self) -> tuple[int, ...]:
        return self.value_heads, self.value_channels

    @property
    def ring_sizes(self) -> tuple[int, int]:
        return self.key_heads * self.key_channels, self.value_heads * (1 + self.value_channels)


@dataclass(frozen=True)
class KDAConfig(DeltaConfig):
    """Kimi Delta Attention: Gated DeltaNet that decays by key channel.

    `rank` and `gate_rank` are those of the projections to the decay and to the output gate, None for a single matrix;
    `lower_bound` < 0 bounds the log decay.
    """

    rank: int | None = None
    gate_rank: int | None = None
    lower_bound: float | None = None

    @property
    def ring_sizes(self) -> tuple[int, int]:
        return self.key_heads * self.key_channels, self.value_heads * (self.key_channels + self.value_channels)


@dataclass(frozen=True)
class Rotary:
    """Which channels are rotated, and how fast; `scaling` applies to the frequencies.

    factors: (factor, low, high, original length) of Llama 3, (factor,) of the linear scaling.
    """

    channels: int
    theta: float
    scaling: Literal["default", "linear", "llama3"] = "default"
    factors: tuple[float, ...] = ()


@dataclass(frozen=True)
class AttentionConfig:
    """Grouped-query attention. `gated` multiplies its output by the sigmoid of a gate projected with the query (Qwen3.5)."""

    heads: int
    groups: int
    channels: int
    rotary: Rotary | None = None
    bias: bool = False
    out_bias: bool = False
    qk_norm: float | None = None  # the eps of the norms
    gated: bool = False
    key_multiplier: float = 1.0


@dataclass(frozen=True)
class LatentConfig(AttentionConfig):
    """Multi-head latent attention; `groups` and `channels` are those of its cache: one group of `rank` + `shared`.

    A query has `own` channels for its head's key and `shared` ones for the key of all heads; `values` are a head's.
    """

    rank: int = 0
    own: int = 0
    shared: int = 0
    values: int = 0
    eps: float = 1e-6


@dataclass(frozen=True)
class MLPConfig:
    """down(act(gate x) up x), or down(act(up x)) without a gate."""

    inner: int
    activation: Activation = "silu"
    gated: bool = True
    bias: bool = False
    gate_multiplier: float = 1.0
    down_multiplier: float = 1.0


MixerConfig: TypeAlias = RecurrentConfig | AttentionConfig


@dataclass(frozen=True)
class Branch:
    """A mixer of a block, with the scales of its input and of its output."""

    mixer: MixerConfig
    scale_in: float = 1.0
    scale_out: float = 1.0


@dataclass(frozen=True)
class BlockConfig:
    branches: tuple[Branch, ...]
    mlp: MLPConfig | None = None
    parallel: bool = False


@dataclass(frozen=True)
class NormConfig:
    """The norms of the residual stream. `centred` is LayerNorm with a bias; `offset` is added to the stored weight."""

    eps: float
    centred: bool = False
    offset: float = 0.0


@dataclass(frozen=True)
class ModelConfig:
    """A language model. `length` is the longest sequence that it was made for, None if unbounded."""

    family: str
    vocabulary: int
    width: int
    blocks: tuple[BlockConfig, ...]
    norm: NormConfig
    tied: bool = False
    embedding_multiplier: float = 1.0
    head_multiplier: float = 1.0
    residual_fp32: bool = False
    length: int | None = None
    eos: tuple[int, ...] = ()
    storage: str | None = None  # of the weights, as the config says

    @property
    def mixers(self) -> tuple[MixerConfig, ...]:
        """All mixers, in order; a mixer's index is its `layer` in pools and methods."""
        return tuple(branch.mixer for block in self.blocks for branch in block.branches)
