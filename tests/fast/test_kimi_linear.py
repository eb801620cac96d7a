"""Configs of Kimi Linear: the published form, the one of transformers, and the fields of later models."""

from typing import Any

import torch

from ssmspec_fast.families import find
from ssmspec_fast.families.source import Plan
from ssmspec_fast.models.config import KDAConfig, LatentConfig

from .models import config_of

PUBLISHED = {
    "model_type": "kimi_linear", "architectures": ["KimiLinearForCausalLM"], "auto_map": {}, "hidden_size": 24,
    "num_hidden_layers": 3, "intermediate_size": 40, "vocab_size": 61, "rms_norm_eps": 1e-5, "hidden_act": "silu",
    "head_dim": 72, "num_attention_heads": 4, "num_key_value_heads": 4, "kv_lora_rank": 8, "q_lora_rank": None,
    "qk_nope_head_dim": 6, "qk_rope_head_dim": 2, "v_head_dim": 5, "mla_use_nope": True, "rope_theta": 10000.0,
    "rope_scaling": None, "moe_intermediate_size": 1024, "moe_renormalize": True, "moe_router_activation_func":
    "sigmoid", "num_expert_group": 1, "num_experts": 256, "num_experts_per_token": 8, "num_nextn_predict_layers": 0,
    "num_shared_experts": 1, "moe_layer_freq": 1, "routed_scaling_factor": 2.446, "first_k_dense_replace": 3,
    "topk_group": 1, "use_grouped_topk": True, "model_max_length": 1048576, "tie_word_embeddings": False, "use_cache":
    True, "dtype": "bfloat16", "eos_token_id": 7,
}  # fmt: skip
"""The fields of moonshotai/Kimi-Linear-48B-A3B-Instruct, with the sizes of a small model."""
LINEAR = {"head_dim": 6, "num_heads": 3, "short_conv_kernel_size": 4, "kda_layers": [1, 3], "full_attn_layers": [2]}


def test_the_published_config_and_the_one_of_transformers_are_the_same_layers() -> None:
    configs = find(PUBLISHED | {"linear_attn_config": LINEAR})[1], config_of("kimi_linear")
    one, other = ({config.mixers[0], config.mixers[2]} for config in configs)
    assert one == other == {KDAConfig(3, 3, 6, 6, 4, 1e-5, 6, 6)}
    assert configs[0].mixers[1] == LatentConfig(4, 1, 10, rank=8, own=6, shared=2, values=5)


def test_the_gate_of_later_models_is_read_from_the_config() -> None:
    """Kimi K3's layers: a bounded decay, and an output gate of one matrix."""
    later = LINEAR | {"gate_lower_bound": -5.0, "use_full_rank_gate": True}
    family, config = find(PUBLISHED | {"linear_attn_config": later})
    assert config.mixers[0] == KDAConfig(3, 3, 6, 6, 4, 1e-5, 6, None, -5.0)
    plan = Plan(torch.float32)
    made: Any = family.assemble(config, plan).mixers[0]
    assert plan.shapes["model.layers.0.self_attn.g_proj.weight"] == (18, 24)
    assert made.params.lower_bound == -5.0
