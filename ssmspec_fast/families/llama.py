"""Llama and Mistral, and MambaInLlama, which replaces some of Llama's attention layers by Mamba-2.

MambaInLlama keeps Llama's config.json and adds mamba_config.json. Its Mamba-2 has a head for each query head, with as many
states as a head has channels; x and B have the heads of Llama's values and keys and are widened after the convolution.
The norm before the head is Llama's, as in training; the published inference code of March 2025 omits it.
Source: jxiw/MambaInLlama, mamba2/hybrid_mamba_layer.py and mamba2/hybrid_mamba_config.py.
"""

from dataclasses import replace
from typing import Any

from ..errors import ConfigRefused
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


def read(f: Fields) -> ModelConfig:
    width, eps = f.count("hidden_size"), f.eps("rms_norm_eps", 1e-6)
    heads = f.count("num_attention_heads", 32)
    groups, channels = f.count("num_key_value_heads", heads), f.count("head_dim", width // heads)
    f.divides("num_key_value_heads", groups, "num_attention_heads", heads)
    bias = f.flag("attention_bias", False)
    f.must("hidden_act", "silu")
    f.must("sliding_window", None)
    attention = AttentionConfig(heads, groups, channels, f.rotary(channels), bias, bias)
    mlp = MLPConfig(f.count("intermediate_size"), bias=f.flag("mlp_bias", False))
    blocks = (BlockConfig((Branch(attention),), mlp),) * f.layers()
    return f.model(width, blocks, NormConfig(eps), length=2048)


def read_mamba_in_llama(f: Fields, extra: dict[str, Any]) -> ModelConfig:
    """Llama's config, with Mamba-2 in the layers that mamba_config.json does not list as attention."""
    base = read(f)
    g = f.beside("mamba_in_llama", extra)
    g.must("hidden_act", "silu")
    g.must("d_model", base.width)
    g.must("n_layer", len(base.blocks))
    g.must("vocab_size", base.vocabulary)
    mlp = base.blocks[0].mlp
    g.must("intermediate_size", mlp.inner if mlp else None)
    g.must("rms_norm_eps", base.norm.eps)
    mamba = _mamba2(g, base.width)
    attended = g.places("attn_layers", len(base.blocks))
    g.finish()
    blocks = tuple(
        block if i in attended else replace(block, branches=(Branch(mamba),)) for i, block in enumerate(base.blocks)
    )
    return replace(base, family="mamba_in_llama", blocks=blocks)


def _mamba2(g: Fields, width: int) -> Mamba2Config:
    g.get("ssm_cfg")
    s = g.inside("ssm_cfg", "mamba_in_llama, ssm_cfg")
    inner, shared = g.count("d_inner", width), g.count("d_xb")
    heads, state = s.count("ngroups"), s.count("d_state", 128)
    if heads * state != inner or shared % state or inner % shared:
        raise ConfigRefused(
            f"{g.family}: d_inner {inner}, d_xb {shared}, ngroups {heads} and d_state {state} do not fit together; it needs "
            "d_inner = ngroups d_state, and d_xb whole heads of d_state that divide the others"
        )
    s.must("repeat_kv_before_conv", False)
    s.must("d_ssm", inner)
    s.ignore("expand", "headdim", "A_init_range", "dt_min", "dt_max", "dt_init_floor", "conv_init", "use_mem_eff_path")
    bias = s.flag("bias", False)
    norm = GatedNormConfig(heads, 1e-5, s.flag("norm_before_gate", False)) if s.flag("rmsnorm", True) else None
    made = Mamba2Config(
        heads,
        state,
        state,
        heads,
        s.count("d_conv", 4),
        x_groups=shared // state,
        B_groups=shared // state,
        conv_bias=s.flag("conv_bias", True),
        bias=bias,
        out_bias=bias,
        skip_by_channel=s.flag("D_has_hdim", False),
        dt_limit=s.limits("dt_limit"),
        norm=norm,
    )
    s.finish()
    return made


def assemble(config: ModelConfig, source: Source) -> Model:
    """The tensors: `model.layers.i` with `self_attn` or `mamba`, and `mlp`."""
    source.ignore("rotary_emb.inv_freq")
    return parts.model(source, config, "model.embed_tokens", "model.norm", "lm_head", parts.blocks(source, config))
