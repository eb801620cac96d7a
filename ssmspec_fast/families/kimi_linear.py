"""Kimi Linear with dense MLPs: layers of Kimi Delta Attention, and of latent attention without positions.

Mixtures of experts are refused by name. The config is the published one, with `linear_attn_config`, whose lists count layers
from 1, or the one that transformers writes, with `layer_types` and `linear_*`.
`gate_lower_bound` and `use_full_rank_gate` are those of Kimi K3's layers.
Source: configuration_kimi.py of moonshotai/Kimi-Linear-48B-A3B-Instruct; configuration_kimi_linear.py of transformers 5.23.
"""

from ..errors import ConfigRefused
from ..models.config import BlockConfig, Branch, KDAConfig, LatentConfig, MixerConfig, MLPConfig, ModelConfig, NormConfig
from ..models.model import Model
from . import parts
from .fields import LONGEST, Fields
from .source import Source

KINDS = {"linear_attention": "kda_layers", "full_attention": "full_attn_layers"}
OF_LATENT_ATTENTION = (
    "attention_bias", "head_dim", "kv_lora_rank", "mla_use_nope", "num_attention_heads", "num_key_value_heads", "q_lora_rank",
    "qk_head_dim", "qk_nope_head_dim", "qk_rope_head_dim", "rope_parameters", "rope_scaling", "rope_theta", "v_head_dim",
)  # fmt: skip
OF_EXPERTS = (
    "moe_intermediate_size", "moe_renormalize", "moe_router_activation_func", "num_expert_group", "num_experts_per_token",
    "num_shared_experts", "output_router_logits", "routed_scaling_factor", "topk_group", "topk_method", "use_grouped_topk",
)  # fmt: skip
"""Fields without effect in a model that has no layer of this sort."""


def read(f: Fields) -> ModelConfig:
    width, eps, layers = f.count("hidden_size"), f.eps("rms_norm_eps", 1e-5), f.layers()
    f.must("hidden_act", "silu")
    f.must("num_nextn_predict_layers", 0)
    g = f.inside("linear_attn_config")
    kinds = _kinds(f, g, layers)
    mixers: dict[str, MixerConfig] = {"linear_attention": _delta(f, g, eps)}
    if "full_attention" in kinds:
        mixers["full_attention"] = _latent(f)
    _check_dense(f, layers)
    g.finish()
    f.ignore(*OF_LATENT_ATTENTION, *OF_EXPERTS)
    mlp, length = MLPConfig(f.count("intermediate_size")), f.count("model_max_length", 2**20, most=LONGEST)
    blocks = tuple(BlockConfig((Branch(mixers[kind]),), mlp) for kind in kinds)
    return f.model(width, blocks, NormConfig(eps), length=length)


def _latent(f: Fields) -> LatentConfig:
    """Its norm has transformers' default eps, not the config's."""
    heads, rank = f.count("num_attention_heads"), f.count("kv_lora_rank")
    own, shared, values = f.count("qk_nope_head_dim"), f.count("qk_rope_head_dim"), f.count("v_head_dim")
    f.must("num_key_value_heads", heads)
    f.must("mla_use_nope", True)
    f.must("q_lora_rank", None)
    f.must("attention_bias", False)
    return LatentConfig(heads, 1, rank + shared, rank=rank, own=own, shared=shared, values=values)


def _delta(f: Fields, g: Fields, eps: float) -> KDAConfig:
    """Keys and values have the same heads; the rank of the two projections is the channels of a head."""
    heads = g.count("num_heads", f.count("linear_num_heads", 32))
    channels = g.count("head_dim", f.count("linear_head_dim", 128))
    taps = g.count("short_conv_kernel_size", f.count("linear_conv_kernel_dim", 4))
    bound = None if g.get("gate_lower_bound", None) is None else g.number("gate_lower_bound")
    if bound is not None and not bound < 0:
        raise g.refuse("gate_lower_bound", bound, "a number below 0, because it bounds a log decay")
    full = g.flag("use_full_rank_gate", False)
    return KDAConfig(heads, heads, channels, channels, taps, eps, channels, None if full else channels, bound)


def _kinds(f: Fields, g: Fields, layers: int) -> list[str]:
    """Raises: ConfigRefused for two lists that do not agree."""
    usual = ["full_attention" if i and i % 4 == 0 else "linear_attention" for i in range(layers)]
    kinds = f.names("layer_types", usual)
    if set(kinds) - set(KINDS) or len(kinds) != layers:
        raise f.refuse("layer_types", kinds, f"{layers} of {', '.join(map(repr, KINDS))}")
    if {"kda_layers", "full_attn_layers"} & set(g.data):
        listed = {kind: {x - 1 for x in g.places(name, layers + 1)} for kind, name in KINDS.items()}
        found = ["".join(kind for kind, places in listed.items() if i in places) for i in range(layers)]
        if set(found) - set(KINDS) or ("layer_types" in f.data and found != kinds):
            raise ConfigRefused(
                f"{f.family}: kda_layers and full_attn_layers of linear_attn_config must name each layer once, from 1 on, as "
                "layer_types does if it is there"
            )
        return found
    return kinds


def _check_dense(f: Fields, layers: int) -> None:
    """Raises: ConfigRefused for a layer with experts."""
    dense, every = f.count("first_k_dense_replace", 0, least=0), f.count("moe_layer_freq", 1)
    experts = f.get("num_experts", None)
    usual = ["sparse" if experts and i >= dense and i % every == 0 else "dense" for i in range(layers)]
    kinds = f.names("mlp_layer_types", usual)
    if len(kinds) != layers or set(kinds) - {"dense", "sparse"}:
        raise f.refuse("mlp_layer_types", kinds, f"{layers} of 'dense' and 'sparse'")
    if "sparse" in kinds:
        sparse = [i for i, kind in enumerate(kinds) if kind != "dense"]
        raise ConfigRefused(
            f"{f.family}: num_experts or mlp_layer_types makes layers {sparse} (from 0) mixtures of experts, which are not "
            "supported; all layers must have a dense MLP"
        )


def assemble(config: ModelConfig, source: Source) -> Model:
    """The tensors: `model.layers.i` with `self_attn` and `mlp`."""
    return parts.model(source, config, "model.embed_tokens", "model.norm", "lm_head", parts.blocks(source, config))
