"""LFM2, dense: short convolutions and grouped-query attention with norms of q and k, an MLP in every block.

Its config has older names for some fields: `block_ff_dim` for the MLP's width before it is adjusted, `full_attn_idxs` for the
layers of attention, `tie_embedding`.
Source: configuration_lfm2.py and modeling_lfm2.py of transformers 5.23.0.
"""

from ..errors import ConfigRefused
from ..layers.attention import Attention
from ..layers.linear import joined
from ..layers.mlp import MLP
from ..layers.shortconv import ShortConvConfig
from ..models.config import AttentionConfig, BlockConfig, Branch, MixerConfig, MLPConfig, ModelConfig, NormConfig, Rotary
from ..models.model import Block, Mixer, Model
from ..recurrences import RECURRENCES
from . import parts
from .fields import Fields
from .source import Source

INITIAL = ("block_mlp_init_scale", "block_out_init_scale", "block_use_xavier_init", "conv_use_xavier_init")
"""How weights were drawn before training."""
WIDTHS = ("block_dim", "conv_dim", "conv_dim_out")
"""Other names of the width, which transformers does not read."""


def read(f: Fields) -> ModelConfig:
    width, eps, heads = f.count("hidden_size"), f.eps("norm_eps", 1e-5), f.count("num_attention_heads")
    groups = f.count("num_key_value_heads", 8)
    for name in WIDTHS:
        f.must(name, width)
    f.must("num_heads", heads)
    f.must("block_norm_eps", eps)
    f.must("block_use_swiglu", True)
    f.must("use_pos_enc", True)
    f.ignore(*INITIAL)
    f.divides("num_attention_heads", heads, "hidden_size", width)
    f.divides("num_key_value_heads", groups, "num_attention_heads", heads)
    mixers: dict[str, MixerConfig] = {
        "conv": ShortConvConfig(width, f.count("conv_L_cache", 3, least=2), f.flag("conv_bias", False)),
        "full_attention": AttentionConfig(heads, groups, width // heads, _rotary(f, width // heads), qk_norm=eps),
    }
    mlp = MLPConfig(_inner(f))
    blocks = tuple(BlockConfig((Branch(mixers[kind]),), mlp) for kind in _kinds(f))
    return f.model(width, blocks, NormConfig(eps), tied=_tied(f), length=128000)


def _rotary(f: Fields, channels: int) -> Rotary:
    """Raises: ConfigRefused without a base, for which this family has another default than others."""
    if f.data.get("rope_theta") is None and f.record("rope_parameters").get("rope_theta") is None:
        raise ConfigRefused(f"{f.family}: field rope_theta is missing from config.json; it is needed")
    return f.rotary(channels)


def _inner(f: Fields) -> int:
    """The width of the MLP: two thirds of the field, times a factor, rounded up to a multiple."""
    given = f.count("block_ff_dim", f.count("intermediate_size", 12288))
    adjusted, factor = f.flag("block_auto_adjust_ff_dim", True), f.number("block_ffn_dim_multiplier", 1.0, 0.0)
    multiple = f.count("block_multiple_of", 256)
    if not adjusted:
        return given
    if "block_ffn_dim_multiplier" in f.data and f.data["block_ffn_dim_multiplier"] is None:
        return max(1, int(2 * given / 3))  # null: neither a factor nor a multiple
    inner = int(factor * int(2 * given / 3))
    if inner < 1:
        raise f.refuse("block_ffn_dim_multiplier", factor, "large enough for an MLP of at least one channel")
    return -(-inner // multiple) * multiple


def _kinds(f: Fields) -> list[str]:
    """Raises: ConfigRefused for two lists that do not agree."""
    layers = f.layers()
    attended = f.places("full_attn_idxs", layers) if f.get("full_attn_idxs", None) is not None else None
    listed = ["full_attention" if attended is None or i in attended else "conv" for i in range(layers)]
    kinds = f.names("layer_types", listed)
    if set(kinds) - {"conv", "full_attention"} or len(kinds) != layers:
        raise f.refuse("layer_types", kinds, f"{layers} of 'conv' and 'full_attention'")
    if attended is not None and kinds != listed:
        raise f.refuse("full_attn_idxs", sorted(attended), "the layers that layer_types calls 'full_attention'")
    return kinds


def _tied(f: Fields) -> bool:
    """Raises: ConfigRefused for two names of the field that do not agree."""
    tied = f.flag("tie_embedding", f.flag("tie_word_embeddings", True))
    if tied != f.flag("tie_word_embeddings", tied):
        raise f.refuse("tie_embedding", tied, "as tie_word_embeddings")
    return tied


def assemble(config: ModelConfig, source: Source) -> Model:
    """The tensors: `model.layers.i` with `conv` or `self_attn`, and `feed_forward`; the last norm is `embedding_norm`."""
    blocks = tuple(_block(source, f"model.layers.{i}", config, block) for i, block in enumerate(config.blocks))
    return parts.model(source, config, "model.embed_tokens", "model.embedding_norm", "lm_head", blocks)


def _block(source: Source, name: str, config: ModelConfig, block: BlockConfig) -> Block:
    width, (branch,), c = config.width, block.branches, block.mlp
    assert c is not None
    w1, w3 = (source.linear(f"{name}.feed_forward.{x}", c.inner, width) for x in ("w1", "w3"))
    mlp = MLP(c, w3, source.linear(f"{name}.feed_forward.w2", width, c.inner), w1)
    first, second = (parts.norm(source, f"{name}.{x}_norm", width, config.norm) for x in ("operator", "ffn"))
    return Block((_mixer(source, name, width, branch.mixer),), first, mlp, second)


def _mixer(source: Source, name: str, width: int, c: MixerConfig) -> Mixer:
    if not isinstance(c, AttentionConfig):
        layer = RECURRENCES.owner("config", c).layer
        return layer.stored(source, f"{name}.{layer.home}", width, c)
    p, queries, keys, eps = f"{name}.self_attn", c.heads * c.channels, c.groups * c.channels, c.qk_norm
    assert eps is not None
    q, k, v = (source.linear(f"{p}.{x}_proj", n, width) for x, n in (("q", queries), ("k", keys), ("v", keys)))
    q_norm, k_norm = (parts.norm(source, f"{p}.{x}_layernorm", c.channels, NormConfig(eps)) for x in "qk")
    out_proj = source.linear(f"{p}.out_proj", width, queries)
    return Attention(c, joined(q, k, v), out_proj, parts.turning(source, c), q_norm, k_norm)
