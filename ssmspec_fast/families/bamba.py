"""Bamba and Falcon-H1: Mamba-2 and attention, one or the other in a block (Bamba), or both in each (Falcon-H1)."""

from dataclasses import replace

from ..models.config import (
    AttentionConfig,
    BlockConfig,
    Branch,
    GatedNormConfig,
    Mamba2Config,
    MLPConfig,
    ModelConfig,
    NormConfig,
)
from ..models.model import Model
from . import parts
from .fields import Fields
from .source import Source


def mamba2(f: Fields, inner: int, eps: float) -> Mamba2Config:
    """Mamba-2 by the fields `mamba_*`, with `inner` channels."""
    heads, groups = f.count("mamba_n_heads", 128), f.count("mamba_n_groups", 1)
    f.divides("mamba_n_heads", heads, "channels", inner)
    f.divides("mamba_n_groups", groups, "mamba_n_heads", heads)
    f.must("mamba_d_head", "auto", inner // heads)
    f.must("hidden_act", "silu")
    f.count("mamba_expand", 2)
    return Mamba2Config(
        heads,
        inner // heads,
        f.count("mamba_d_state", 256),
        groups,
        f.count("mamba_d_conv", 4),
        conv_bias=f.flag("mamba_conv_bias", True),
        bias=f.flag("mamba_proj_bias", False),
        out_bias=f.flag("mamba_proj_bias", False),
        dt_limit=f.limits("time_step_limit"),
        norm=GatedNormConfig(groups, eps),
    )


def _attention(f: Fields, width: int, part: float) -> AttentionConfig:
    heads, groups = f.count("num_attention_heads", 32), f.count("num_key_value_heads", 8)
    f.divides("num_key_value_heads", groups, "num_attention_heads", heads)
    channels = f.count("head_dim", width // heads)
    bias = f.flag("attention_bias", False)
    return AttentionConfig(
        heads,
        groups,
        channels,
        f.rotary(channels, part),
        bias,
        bias,
        key_multiplier=f.number("key_multiplier", 1.0),
    )


def _model(f: Fields, width: int, blocks: tuple[BlockConfig, ...], eps: float) -> ModelConfig:
    return f.model(
        width,
        blocks,
        NormConfig(eps),
        length=262144,
        embedding_multiplier=f.number("embedding_multiplier", 1.0),
        head_multiplier=f.number("lm_head_multiplier", 1.0),
    )


def read_bamba(f: Fields) -> ModelConfig:
    width, eps = f.count("hidden_size"), f.eps("rms_norm_eps", 1e-5)
    mamba = mamba2(f, f.count("mamba_expand", 2) * width, eps)
    attention = _attention(f, width, 0.5)
    mlp = MLPConfig(f.count("intermediate_size"), bias=f.flag("mlp_bias", False))
    layers = range(f.layers())
    attended = f.places("attn_layer_indices", len(layers))
    f.ignore("layers_block_type", "layer_types", "attn_rotary_emb")
    mixers = (attention if i in attended else mamba for i in layers)
    return _model(f, width, tuple(BlockConfig((Branch(mixer),), mlp) for mixer in mixers), eps)


def _five(f: Fields) -> tuple[float, float, float, float, float]:
    z, x, B, C, dt = f.numbers("ssm_multipliers", (1.0,) * 5)
    return z, x, B, C, dt


def read_falcon_h1(f: Fields) -> ModelConfig:
    width, eps = f.count("hidden_size"), f.eps("rms_norm_eps", 1e-5)
    inner = f.count("mamba_d_ssm", f.count("mamba_expand", 2) * width)
    plain = mamba2(f, inner, eps)
    first = f.flag("mamba_norm_before_gate", True)
    mamba = replace(
        plain,
        out_bias=f.flag("projectors_bias", False),
        norm=replace(plain.norm, norm_first=first) if f.flag("mamba_rms_norm", False) and plain.norm else None,
        input_multiplier=f.number("ssm_in_multiplier", 1.0),
        multipliers=_five(f),
    )
    gate, down = f.numbers("mlp_multipliers", (1.0, 1.0))
    mlp = MLPConfig(
        f.count("intermediate_size"),
        bias=f.flag("mlp_bias", False),
        gate_multiplier=gate,
        down_multiplier=down,
    )
    f.ignore("layers_block_type", "layer_types", "mamba_use_mlp", "attn_layer_indices", "mlp_expansion_factor")
    branches = (
        Branch(mamba, scale_out=f.number("ssm_out_multiplier", 1.0)),
        Branch(
            _attention(f, width, 1.0),
            f.number("attention_in_multiplier", 1.0),
            f.number("attention_out_multiplier", 1.0),
        ),
    )
    return _model(f, width, (BlockConfig(branches, mlp),) * f.layers(), eps)


def assemble(config: ModelConfig, source: Source) -> Model:
    """The tensors of both: `model.layers.i` with `mamba`, `self_attn` and `feed_forward`."""
    blocks = parts.blocks(source, config, "feed_forward", "pre_ff_layernorm")
    return parts.model(source, config, "model.embed_tokens", "model.final_layernorm", "lm_head", blocks)
