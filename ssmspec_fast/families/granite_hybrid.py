"""Granite 4 hybrid, dense: Mamba-2 or attention in a block, and a shared MLP in each, whose gate and up are one matrix.

Every summand of the residual stream has one factor (`residual_multiplier`), scores are scaled by `attention_multiplier`
instead of 1 / sqrt(channels), and logits are divided by `logits_scaling`. Rotary positions only if `position_embedding_type`
is "rope". Experts are refused.
Source: configuration_granitemoehybrid.py and modeling_granitemoehybrid.py of transformers 5.23.0.
"""

from ..layers.linear import Linear
from ..layers.mlp import MLP
from ..models.config import AttentionConfig, BlockConfig, Branch, MixerConfig, MLPConfig, ModelConfig, NormConfig
from ..models.model import Block, Model
from . import parts
from .bamba import mamba2
from .fields import Fields
from .source import Source

ROUTING = ("num_experts_per_tok", "output_router_logits", "router_aux_loss_coef", "intermediate_size")
"""Of experts alone."""
INITIAL = ("init_method",)
"""How weights were drawn before training."""
KINDS = {"mamba": "mamba", "linear_attention": "mamba", "attention": "attention", "full_attention": "attention"}
"""The older name of a kind of layer, and the newer one."""


def read(f: Fields) -> ModelConfig:
    width, eps = f.count("hidden_size"), f.eps("rms_norm_eps", 1e-6)
    if f.get("num_local_experts", 8) != 0:
        raise f.refuse("num_local_experts", f.get("num_local_experts", 8), "0: experts are not supported, dense models are")
    f.must("normalization_function", "rmsnorm")
    f.ignore(*ROUTING, *INITIAL)
    mixers: dict[str, MixerConfig] = {
        "mamba": mamba2(f, f.count("mamba_expand", 2) * width, eps),
        "attention": _attention(f, width),
    }
    each = f.number("residual_multiplier", 1.0)
    mlp = MLPConfig(f.count("shared_intermediate_size", 1024), down_multiplier=each)
    blocks = tuple(BlockConfig((Branch(mixers[kind], scale_out=each),), mlp) for kind in _kinds(f))
    divisor = f.number("logits_scaling", 1.0)
    if not divisor > 0:
        raise f.refuse("logits_scaling", divisor, "a number above 0, by which logits are divided")
    return f.model(
        width,
        blocks,
        NormConfig(eps),
        length=2048,
        embedding_multiplier=f.number("embedding_multiplier", 1.0),
        head_multiplier=1.0 / divisor,
    )


def _attention(f: Fields, width: int) -> AttentionConfig:
    """The scale of scores becomes one of keys, which attention multiplies by 1 / sqrt(channels)."""
    heads = f.count("num_attention_heads", 32)
    groups, channels = f.count("num_key_value_heads", heads), f.count("head_dim", width // heads)
    f.divides("num_key_value_heads", groups, "num_attention_heads", heads)
    turned = f.must("position_embedding_type", None, "nope", "rope") == "rope"
    f.ignore("rope_parameters", "rope_scaling", "rope_theta")
    bias, scale = f.flag("attention_bias", False), f.number("attention_multiplier", 1.0)
    rotary = f.rotary(channels) if turned else None
    return AttentionConfig(heads, groups, channels, rotary, bias, bias, key_multiplier=scale * channels**0.5)


def _kinds(f: Fields) -> list[str]:
    layers = f.layers()
    kinds = f.names("layers_block_type", f.names("layer_types", ["mamba"] * layers))
    if set(kinds) - set(KINDS) or len(kinds) != layers:
        raise f.refuse("layer_types", kinds, f"{layers} of {', '.join(map(repr, KINDS))}")
    return [KINDS[kind] for kind in kinds]


def assemble(config: ModelConfig, source: Source) -> Model:
    """The tensors: `model.layers.i` with `mamba` or `self_attn`, and `shared_mlp`."""
    blocks = tuple(_block(source, f"model.layers.{i}", config, block) for i, block in enumerate(config.blocks))
    return parts.model(source, config, "model.embed_tokens", "model.norm", "lm_head", blocks)


def _block(source: Source, name: str, config: ModelConfig, block: BlockConfig) -> Block:
    width, (branch,), c = config.width, block.branches, block.mlp
    assert c is not None
    both = source.linear(f"{name}.shared_mlp.input_linear", 2 * c.inner, width).weight
    gate, up = Linear(both[: c.inner]), Linear(both[c.inner :])
    mlp = MLP(c, up, source.linear(f"{name}.shared_mlp.output_linear", width, c.inner), gate)
    norms = (parts.norm(source, f"{name}.{x}_layernorm", width, config.norm) for x in ("input", "post_attention"))
    mixer = parts.mixer(source, f"{name}.{parts.home(branch.mixer)}", width, branch.mixer)
    return Block((mixer,), next(norms), mlp, next(norms))
