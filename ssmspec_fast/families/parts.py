"""The layers that several families store under the same names."""

from dataclasses import replace

from torch import Tensor

from ..layers import latent
from ..layers.attention import Attention
from ..layers.linear import joined
from ..layers.mlp import MLP
from ..layers.norm import Norm
from ..layers.rotary import frequencies
from ..models.config import AttentionConfig, LatentConfig, MixerConfig, MLPConfig, ModelConfig, NormConfig
from ..models.model import Block, Mixer, Model
from ..recurrences import RECURRENCES
from .source import Source


def norm(source: Source, name: str, channels: int, c: NormConfig) -> Norm:
    """The stored weight is the factor less `offset`; a centred norm has a bias too."""
    weight = source.exact(f"{name}.weight", channels)
    bias = source.exact(f"{name}.bias", channels) if c.centred else None
    return Norm(weight + c.offset if c.offset else weight, c.eps, bias)


def turning(source: Source, c: AttentionConfig) -> Tensor | None:
    return None if c.rotary is None else frequencies(c.rotary, source.exact_dtype).to(source.device)


def attention(source: Source, prefix: str, width: int, c: AttentionConfig, offset: float = 0.0) -> Attention:
    """Attention with separate projections; with a gate the query projection has twice the rows."""
    queries, keys = c.heads * c.channels, c.groups * c.channels
    q_proj = source.linear(f"{prefix}.q_proj", queries * (2 if c.gated else 1), width, c.bias)
    k_proj, v_proj = (source.linear(f"{prefix}.{name}_proj", keys, width, c.bias) for name in "kv")
    out_proj = source.linear(f"{prefix}.o_proj", width, queries, c.out_bias)
    made = Attention(c, joined(q_proj, k_proj, v_proj), out_proj, turning(source, c))
    if c.qk_norm is None:
        return made
    q_norm, k_norm = (
        norm(source, f"{prefix}.{name}_norm", c.channels, NormConfig(c.qk_norm, offset=offset)) for name in "qk"
    )
    return replace(made, q_norm=q_norm, k_norm=k_norm)


def mixer(source: Source, prefix: str, width: int, c: MixerConfig, offset: float = 0.0) -> Mixer:
    """The mixer of a config; `offset` as in the norms of q and k."""
    if isinstance(c, LatentConfig):
        return latent.stored(source, prefix, width, c)
    if isinstance(c, AttentionConfig):
        return attention(source, prefix, width, c, offset)
    return RECURRENCES.owner("config", c).layer.stored(source, prefix, width, c)


def home(c: MixerConfig) -> str:
    """The name of a mixer in its block."""
    return "self_attn" if isinstance(c, AttentionConfig) else RECURRENCES.owner("config", c).layer.home


def mlp(source: Source, prefix: str, width: int, c: MLPConfig) -> MLP:
    gate = source.linear(f"{prefix}.gate_proj", c.inner, width, c.bias) if c.gated else None
    up = source.linear(f"{prefix}.up_proj", c.inner, width, c.bias)
    return MLP(c, up, source.linear(f"{prefix}.down_proj", width, c.inner, c.bias), gate)


def blocks(
    source: Source, config: ModelConfig, mlp_name: str = "mlp", mlp_norm: str = "post_attention_layernorm"
) -> tuple[Block, ...]:
    """Blocks `model.layers.i` of mixers under their `home` name and an MLP, each after a norm."""
    width, found = config.width, []
    for i, block in enumerate(config.blocks):
        name = f"model.layers.{i}"
        mixers = [
            mixer(source, f"{name}.{home(branch.mixer)}", width, branch.mixer, config.norm.offset)
            for branch in block.branches
        ]
        first = norm(source, f"{name}.input_layernorm", width, config.norm)
        assert block.mlp is not None
        made = mlp(source, f"{name}.{mlp_name}", width, block.mlp)
        found.append(Block(tuple(mixers), first, made, norm(source, f"{name}.{mlp_norm}", width, config.norm)))
    return tuple(found)


def model(source: Source, config: ModelConfig, embedding: str, last: str, head: str, blocks: tuple[Block, ...]) -> Model:
    """The whole model; `last` is the norm before the head, which is tied to the embedding if the config says so."""
    final = norm(source, last, config.width, config.norm)
    table = source.weight(f"{embedding}.weight", config.vocabulary, config.width)
    if config.tied:
        source.ignore(f"{head}.weight")
        return Model(config, table, blocks, final, table)
    return Model(config, table, blocks, final, source.weight(f"{head}.weight", config.vocabulary, config.width))
