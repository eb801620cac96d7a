"""Nemotron-H, dense: every block is one of Mamba-2, attention without positions, or an MLP of squared ReLU.

transformers clamps dt at `time_step_min` in prefill and not in decode; here, as in the published kernels, dt is clamped by
`time_step_limit` alone, in both.
"""

from ..errors import ConfigRefused
from ..models.config import (
    AttentionConfig,
    BlockConfig,
    Branch,
    GatedNormConfig,
    Mamba2Config,
    MixerConfig,
    MLPConfig,
    ModelConfig,
    NormConfig,
)
from ..models.model import Block, Model
from . import parts
from .fields import LAYERS, Fields
from .source import Source

KINDS = {
    "M": "mamba", "*": "attention", "-": "mlp", "E": "moe",
    "linear_attention": "mamba", "full_attention": "attention", "mamba": "mamba", "attention": "attention", "mlp": "mlp",
}  # fmt: skip
EXPERTS = (
    "n_routed_experts", "n_shared_experts", "moe_intermediate_size", "moe_shared_expert_intermediate_size",
    "moe_latent_size", "moe_shared_expert_overlap", "num_experts_per_tok", "routed_scaling_factor", "n_group", "topk_group",
    "norm_topk_prob", "output_router_logits", "mtp_layers_block_type", "mtp_hybrid_override_pattern",
)  # fmt: skip
"""Fields of the mixture-of-experts blocks, which a dense config contains but does not use."""

PATTERNS = ("hybrid_override_pattern", "layers_block_type", "layer_types")
"""Fields that name the kind of each block."""


def read(f: Fields) -> ModelConfig:
    width, eps = f.count("hidden_size"), f.eps("layer_norm_epsilon", f.get("rms_norm_eps", 1e-5))
    f.must("mamba_hidden_act", "silu")
    f.must("num_nextn_predict_layers", 0)
    f.ignore(*EXPERTS, "mamba_ssm_cache_dtype", "sliding_window", "attention_head_dim")
    f.ignore("rope_theta", "norm_eps", "mamba_num_groups", "use_mamba_kernels")
    f.number("expand", 2, 0.0)  # published configs hold one that is not their heads times channels over their width
    if f.eps("rms_norm_eps", eps) != eps:
        said = f"layer_norm_epsilon is {eps} and rms_norm_eps {f.get('rms_norm_eps')}"
        raise ConfigRefused(f"{f.family}: {said}; they say the same thing, so one of them is wrong")
    mixers: dict[str, MixerConfig] = {"mamba": _mamba2(f, eps), "attention": _attention(f, width)}
    mlp = MLPConfig(
        f.count("intermediate_size"), f.must("mlp_hidden_act", "relu2", "silu"), gated=False, bias=f.flag("mlp_bias", False)
    )
    blocks = tuple(BlockConfig((), mlp) if kind == "mlp" else BlockConfig((Branch(mixers[kind]),)) for kind in _kinds(f))
    return f.model(width, blocks, NormConfig(eps), length=4096, residual_fp32=f.flag("residual_in_fp32", False))


def _kinds(f: Fields) -> list[str]:
    """The kind of each block. Raises: ConfigRefused for experts and unknown kinds."""
    fields = [name for name in PATTERNS if f.get(name, None) is not None]
    field = fields[0] if fields else "hybrid_override_pattern"
    every = {name: [KINDS.get(kind, kind) for kind in f.names(name)] for name in fields or [field]}
    kinds = every[field]
    for name, others in every.items():
        if others != kinds:
            raise ConfigRefused(f"{f.family}: fields {field} and {name} name other blocks; one of them is wrong")
    if f.count("num_hidden_layers", len(kinds), most=LAYERS) != len(kinds):
        said = f"field num_hidden_layers is {f.get('num_hidden_layers')}, but {field} has {len(kinds)} blocks"
        raise ConfigRefused(f"{f.family}: {said}; one of them is wrong")
    for kind in kinds:
        if kind not in ("mamba", "attention", "mlp"):
            reason = "a mixture of experts" if kind == "moe" else repr(kind)
            raise ConfigRefused(f"{f.family}: field {field} has a block that is {reason}; supported: mamba, attention, mlp")
    return kinds


def _mamba2(f: Fields, eps: float) -> Mamba2Config:
    groups, heads = f.count("n_groups", 8), f.count("mamba_num_heads", 128)
    f.divides("n_groups", groups, "mamba_num_heads", heads)
    bias = f.flag("use_bias", False)
    f.must("mamba_proj_bias", bias, False)
    return Mamba2Config(
        heads,
        f.count("mamba_head_dim", 64),
        f.count("ssm_state_size", 128),
        groups,
        f.count("conv_kernel", 4),
        conv_bias=f.flag("use_conv_bias", True),
        bias=bias,
        out_bias=bias,
        dt_limit=f.limits("time_step_limit"),
        norm=GatedNormConfig(groups, eps),
    )


def _attention(f: Fields, width: int) -> AttentionConfig:
    heads, groups = f.count("num_attention_heads", 32), f.count("num_key_value_heads", 8)
    f.divides("num_key_value_heads", groups, "num_attention_heads", heads)
    f.must("attention_bias", False)
    channels = f.count("head_dim", f.get("attention_head_dim", width // heads))
    return AttentionConfig(heads, groups, channels)


def assemble(config: ModelConfig, source: Source) -> Model:
    """The tensors: `backbone.layers.i.mixer`, for every kind."""
    blocks = []
    for i, block in enumerate(config.blocks):
        name = f"backbone.layers.{i}"
        norm = parts.norm(source, f"{name}.norm", config.width, config.norm)
        if block.mlp is not None:
            blocks.append(Block(mlp=parts.mlp(source, f"{name}.mixer", config.width, block.mlp), mlp_norm=norm))
        else:
            mixer = parts.mixer(source, f"{name}.mixer", config.width, block.branches[0].mixer)
            blocks.append(Block((mixer,), norm))
    return parts.model(source, config, "backbone.embeddings", "backbone.norm_f", "lm_head", tuple(blocks))
