"""What a model is made of, as its config says: sizes and constants, no tensors.

A model is an embedding, blocks, a norm and a head. A block adds to the residual stream what its mixers make of one norm of
it, each scaled, and then what its MLP makes of another; with `parallel` both read the stream as it came (GPT-NeoX). A block
without mixers is an MLP alone, one without an MLP a mixer alone (Nemotron-H).
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

Activation: TypeAlias = Literal["silu", "relu2", "gelu"]


@dataclass(frozen=True)
class ConvSizes:
    """The causal convolution in front of a recurrence."""

    channels: int
    width: int
    bias: bool


@dataclass(frozen=True)
class Mamba1Config:
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


@dataclass(frozen=True)
class GatedNormConfig:
    """The norm at the end of a recurrent layer."""

    groups: int
    eps: float
    norm_first: bool = False


@dataclass(frozen=True)
class Mamba2Config:
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


@dataclass(frozen=True)
class DeltaConfig:
    """Gated DeltaNet, one norm for all heads."""

    key_heads: int
    value_heads: int
    key_channels: int
    value_channels: int
    width: int
    eps: float

    @property
    def pieces(self) -> tuple[int, int, int]:
        """Channels of q, k and v in the convolution."""
        keys = self.key_heads * self.key_channels
        return keys, keys, self.value_heads * self.value_channels

    @property
    def conv(self) -> ConvSizes:
        return ConvSizes(sum(self.pieces), self.width, False)


@dataclass(frozen=True)
class Rotary:
    """Which channels turn, and how fast: `scaling` is that of the frequencies.

    factors: (factor, low, high, original length) of Llama 3, (factor,) of the linear scaling.
    """

    channels: int
    theta: float
    scaling: Literal["default", "linear", "llama3"] = "default"
    factors: tuple[float, ...] = ()


@dataclass(frozen=True)
class AttentionConfig:
    """Grouped-query attention. `gated` multiplies its output by the sigmoid of a gate beside the query (Qwen3.5)."""

    heads: int
    groups: int
    channels: int
    rotary: Rotary | None = None
    bias: bool = False
    out_bias: bool = False
    qk_norm: float | None = None  # its eps
    gated: bool = False
    key_multiplier: float = 1.0


@dataclass(frozen=True)
class MLPConfig:
    """down(act(gate x) up x), or down(act(up x)) without a gate."""

    inner: int
    activation: Activation = "silu"
    gated: bool = True
    bias: bool = False
    gate_multiplier: float = 1.0
    down_multiplier: float = 1.0


RecurrentConfig: TypeAlias = Mamba1Config | Mamba2Config | DeltaConfig
MixerConfig: TypeAlias = RecurrentConfig | AttentionConfig


@dataclass(frozen=True)
class Branch:
    """A mixer of a block, with the scales of what it reads and of what it adds."""

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
    """A language model. `length` is the longest sequence that it was made for, None where nothing bounds it."""

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
        """All mixers, in order: a mixer's place in it is its `layer` in pools and methods."""
        return tuple(branch.mixer for block in self.blocks for branch in block.branches)
