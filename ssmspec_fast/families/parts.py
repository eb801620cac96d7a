"""The layers that several families store under the same names."""

from dataclasses import replace

import torch
from torch import Tensor

from ..config import (
    AttentionConfig,
    ConvSizes,
    DeltaConfig,
    Mamba1Config,
    Mamba2Config,
    MixerConfig,
    MLPConfig,
    ModelConfig,
    NormConfig,
)
from ..layers.attention import Attention
from ..layers.delta import Delta
from ..layers.linear import Linear, joined
from ..layers.mamba1 import Mamba1
from ..layers.mamba2 import Mamba2
from ..layers.mlp import MLP
from ..layers.norm import Norm
from ..layers.rotary import frequencies
from ..model import Block, Mixer, Model
from ..operations import DeltaParams, SelectiveParams, SSDParams, Taps
from .source import Source


def linear(source: Source, name: str, outputs: int, inputs: int, bias: bool = False) -> Linear:
    weight = source.weight(f"{name}.weight", outputs, inputs)
    return Linear(weight, source.weight(f"{name}.bias", outputs) if bias else None)


def norm(source: Source, name: str, channels: int, c: NormConfig) -> Norm:
    """What is stored is the weight less `offset`, and of a centred norm a bias."""
    weight = source.exact(f"{name}.weight", channels)
    bias = source.exact(f"{name}.bias", channels) if c.centred else None
    return Norm(weight + c.offset if c.offset else weight, c.eps, bias)


def taps(source: Source, name: str, sizes: ConvSizes) -> Taps:
    """The filters of a depthwise convolution, stored with an axis of one group."""
    weight = source.exact(f"{name}.weight", sizes.channels, 1, sizes.width).squeeze(1).contiguous()
    return Taps(weight, source.exact(f"{name}.bias", sizes.channels) if sizes.bias else None)


def decay(source: Source, name: str, *shape: int) -> Tensor:
    """A = -exp(A_log)."""
    return -torch.exp(source.exact(name, *shape))


def mamba1(source: Source, prefix: str, width: int, c: Mamba1Config) -> Mamba1:
    """Mamba-1: in_proj packs x | z, x_proj dt | B | C; the bias of dt_proj is that of dt."""
    return Mamba1(
        c,
        linear(source, f"{prefix}.in_proj", 2 * c.inner, width, c.bias),
        taps(source, f"{prefix}.conv1d", c.conv),
        linear(source, f"{prefix}.x_proj", c.rank + 2 * c.state, c.inner),
        linear(source, f"{prefix}.dt_proj", c.inner, c.rank),
        SelectiveParams(
            decay(source, f"{prefix}.A_log", c.inner, c.state),
            source.exact(f"{prefix}.D", c.inner),
            source.exact(f"{prefix}.dt_proj.bias", c.inner),
        ),
        linear(source, f"{prefix}.out_proj", width, c.inner, c.bias),
    )


def mamba2(source: Source, prefix: str, width: int, c: Mamba2Config) -> Mamba2:
    """Mamba-2: in_proj packs z | x B C | dt."""
    D = source.exact(f"{prefix}.D", c.inner if c.skip_by_channel else c.heads)
    params = SSDParams(
        decay(source, f"{prefix}.A_log", c.heads),
        D.view(c.heads, c.channels) if c.skip_by_channel else D,
        source.exact(f"{prefix}.dt_bias", c.heads),
        dt_limit=c.dt_limit,
    )
    return Mamba2(
        c,
        linear(source, f"{prefix}.in_proj", c.inner + c.conv.channels + c.heads, width, c.bias),
        taps(source, f"{prefix}.conv1d", c.conv),
        params,
        linear(source, f"{prefix}.out_proj", width, c.inner, c.out_bias),
        source.exact(f"{prefix}.norm.weight", c.inner) if c.norm else None,
        multipliers(source, c),
    )


def multipliers(source: Source, c: Mamba2Config) -> Tensor | None:
    """The scale of each channel of z | x | B | C | dt (Falcon-H1)."""
    if c.multipliers == (1.0,) * 5:
        return None
    sizes = torch.tensor([c.inner, *c.pieces, c.heads])
    scales = torch.tensor(c.multipliers, dtype=torch.float64).repeat_interleave(sizes)
    return scales.to(device=source.device, dtype=source.dtype)


def delta(source: Source, prefix: str, width: int, c: DeltaConfig) -> Delta:
    """Gated DeltaNet as Qwen3.5 stores it: one projection each for q | k | v, z, b, a."""
    values = c.value_heads * c.value_channels
    return Delta(
        c,
        linear(source, f"{prefix}.in_proj_qkv", c.conv.channels, width),
        linear(source, f"{prefix}.in_proj_z", values, width),
        linear(source, f"{prefix}.in_proj_a", c.value_heads, width),
        linear(source, f"{prefix}.in_proj_b", c.value_heads, width),
        taps(source, f"{prefix}.conv1d", c.conv),
        DeltaParams(decay(source, f"{prefix}.A_log", c.value_heads), source.exact(f"{prefix}.dt_bias", c.value_heads)),
        source.exact(f"{prefix}.norm.weight", c.value_channels),
        linear(source, f"{prefix}.out_proj", width, values),
    )


def turning(source: Source, c: AttentionConfig) -> Tensor | None:
    return None if c.rotary is None else frequencies(c.rotary, source.exact_dtype).to(source.device)


def attention(source: Source, prefix: str, width: int, c: AttentionConfig, offset: float = 0.0) -> Attention:
    """Attention with separate projections; the query's are doubled where a gate stands beside it."""
    queries, keys = c.heads * c.channels, c.groups * c.channels
    q_proj = linear(source, f"{prefix}.q_proj", queries * (2 if c.gated else 1), width, c.bias)
    k_proj, v_proj = (linear(source, f"{prefix}.{name}_proj", keys, width, c.bias) for name in "kv")
    out_proj = linear(source, f"{prefix}.o_proj", width, queries, c.out_bias)
    made = Attention(c, joined(q_proj, k_proj, v_proj), out_proj, turning(source, c))
    if c.qk_norm is None:
        return made
    q_norm, k_norm = (
        norm(source, f"{prefix}.{name}_norm", c.channels, NormConfig(c.qk_norm, offset=offset)) for name in "qk"
    )
    return replace(made, q_norm=q_norm, k_norm=k_norm)


def mixer(source: Source, prefix: str, width: int, c: MixerConfig, offset: float = 0.0) -> Mixer:
    """The mixer of a config; `offset` as in the norms of q and k."""
    match c:
        case Mamba1Config():
            return mamba1(source, prefix, width, c)
        case Mamba2Config():
            return mamba2(source, prefix, width, c)
        case DeltaConfig():
            return delta(source, prefix, width, c)
        case AttentionConfig():
            return attention(source, prefix, width, c, offset)


def mlp(source: Source, prefix: str, width: int, c: MLPConfig) -> MLP:
    gate = linear(source, f"{prefix}.gate_proj", c.inner, width, c.bias) if c.gated else None
    up = linear(source, f"{prefix}.up_proj", c.inner, width, c.bias)
    return MLP(c, up, linear(source, f"{prefix}.down_proj", width, c.inner, c.bias), gate)


HOMES: dict[type, str] = {Mamba2Config: "mamba", DeltaConfig: "linear_attn", AttentionConfig: "self_attn"}


def blocks(
    source: Source, config: ModelConfig, mlp_name: str = "mlp", mlp_norm: str = "post_attention_layernorm"
) -> tuple[Block, ...]:
    """Blocks `model.layers.i` of mixers by their `HOMES` and an MLP, each behind a norm."""
    width, found = config.width, []
    for i, block in enumerate(config.blocks):
        name = f"model.layers.{i}"
        mixers = [
            mixer(source, f"{name}.{HOMES[type(branch.mixer)]}", width, branch.mixer, config.norm.offset)
            for branch in block.branches
        ]
        first = norm(source, f"{name}.input_layernorm", width, config.norm)
        assert block.mlp is not None
        made = mlp(source, f"{name}.{mlp_name}", width, block.mlp)
        found.append(Block(tuple(mixers), first, made, norm(source, f"{name}.{mlp_norm}", width, config.norm)))
    return tuple(found)


def model(source: Source, config: ModelConfig, embedding: str, last: str, head: str, blocks: tuple[Block, ...]) -> Model:
    """The whole, `last` the norm before the head, which is tied to the embedding where the config says so."""
    final = norm(source, last, config.width, config.norm)
    table = source.weight(f"{embedding}.weight", config.vocabulary, config.width)
    if config.tied:
        source.ignore(f"{head}.weight")
        return Model(config, table, blocks, final, table)
    return Model(config, table, blocks, final, source.weight(f"{head}.weight", config.vocabulary, config.width))
