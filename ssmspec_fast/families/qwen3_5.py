"""Qwen3.5, dense, text: Gated DeltaNet and gated attention, an MLP in every block; norms stored as weight - 1."""

from ..errors import ConfigRefused
from ..models.config import AttentionConfig, BlockConfig, Branch, DeltaConfig, MixerConfig, MLPConfig, ModelConfig, NormConfig
from ..models.model import Model
from . import parts
from .fields import Fields
from .source import Source

OFFSET = 1.0


def read(f: Fields) -> ModelConfig:
    f.must("attn_output_gate", True)
    f.ignore("mamba_ssm_dtype", "mtp_num_hidden_layers", "mtp_use_dedicated_embeddings")
    return hybrid(f, 4)


def hybrid(f: Fields, usual: int, interleaved: bool = False) -> ModelConfig:
    """A model of both layers, whose attention has `usual` heads of keys unless a field says otherwise."""
    width, eps = f.count("hidden_size"), f.eps("rms_norm_eps", 1e-6)
    f.must("hidden_act", "silu")
    channels = f.count("head_dim", 256)
    bias = f.flag("attention_bias", False)
    keys, values = f.count("linear_num_key_heads", 16), f.count("linear_num_value_heads", 32)
    heads, groups = f.count("num_attention_heads", 16), f.count("num_key_value_heads", usual)
    f.divides("linear_num_key_heads", keys, "linear_num_value_heads", values)
    f.divides("num_key_value_heads", groups, "num_attention_heads", heads)
    mixers: dict[str, MixerConfig] = {
        "linear_attention": DeltaConfig(
            keys,
            values,
            f.count("linear_key_head_dim", 128),
            f.count("linear_value_head_dim", 128),
            f.count("linear_conv_kernel_dim", 4),
            eps,
            interleaved=interleaved,
        ),
        "full_attention": AttentionConfig(
            heads,
            groups,
            channels,
            f.rotary(channels, 0.25),
            bias,
            bias,
            qk_norm=eps,
            gated=True,
        ),
    }
    mlp = MLPConfig(f.count("intermediate_size"))
    blocks = tuple(BlockConfig((Branch(mixers[kind]),), mlp) for kind in _kinds(f))
    return f.model(width, blocks, NormConfig(eps, offset=OFFSET), length=32768)


def _kinds(f: Fields) -> list[str]:
    layers, every = f.layers(), f.count("full_attention_interval", 4)
    usual = ["linear_attention" if (i + 1) % every else "full_attention" for i in range(layers)]
    kinds = f.names("layer_types", usual)
    bad = sorted(set(kinds) - {"linear_attention", "full_attention"})
    if bad or len(kinds) != layers:
        raise ConfigRefused(
            f"{f.family}: field layer_types has {bad or len(kinds)}; it must hold {layers} of 'linear_attention' and "
            "'full_attention'"
        )
    return kinds


def assemble(config: ModelConfig, source: Source) -> Model:
    """The tensors: `model.layers.i` with `linear_attn` or `self_attn`, and `mlp`."""
    return parts.model(source, config, "model.embed_tokens", "model.norm", "lm_head", parts.blocks(source, config))
