"""The config of each family's small checkpoint. The sizes differ where a family lets them: groups are fewer than heads, keys
are narrower than values, the last chunk is not full.
"""

from typing import Any

VOCABULARY, WIDTH, EOS = 64, 64, 0
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "num_hidden_layers": 3,
    "tie_word_embeddings": False,
    "eos_token_id": EOS,
    "bos_token_id": None,
    "pad_token_id": None,
    "dtype": "float32",
    "use_cache": True,
    "hidden_act": "silu",
}
ATTENTION: dict[str, Any] = {
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "attention_bias": False,
    "intermediate_size": 96,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
}
MAMBA: dict[str, Any] = {
    "mamba_chunk_size": 16, "mamba_conv_bias": True, "mamba_d_conv": 4, "mamba_d_head": 32, "mamba_d_state": 16,
    "mamba_expand": 2, "mamba_n_groups": 1, "mamba_n_heads": 4, "mamba_proj_bias": False,
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "mamba2": {
        **COMMON, "model_type": "mamba2", "architectures": ["Mamba2ForCausalLM"], "expand": 2, "num_heads": 4, "head_dim": 32,
        "state_size": 16, "n_groups": 1, "conv_kernel": 4, "chunk_size": 16, "use_bias": False, "use_conv_bias": True,
        "layer_norm_epsilon": 1e-5, "rms_norm": True, "residual_in_fp32": True, "time_step_limit": [0.0, float("inf")],
        "time_step_rank": 4,
    },
    "bamba": {
        **COMMON, **ATTENTION, **MAMBA, "model_type": "bamba", "architectures": ["BambaForCausalLM"],
        "attn_layer_indices": [1], "mlp_bias": False,
        "rope_parameters": {**ROPE, "partial_rotary_factor": 0.5}, "partial_rotary_factor": 0.5,
    },
    "falcon_h1": {
        **COMMON, **ATTENTION, **MAMBA, "model_type": "falcon_h1", "architectures": ["FalconH1ForCausalLM"], "head_dim": 32,
        "mamba_d_ssm": 128, "mamba_rms_norm": False, "mamba_norm_before_gate": True, "mlp_bias": False,
        "projectors_bias": False, "rope_parameters": ROPE, "embedding_multiplier": 1.5, "lm_head_multiplier": 0.75,
        "mlp_multipliers": [0.75, 1.25], "key_multiplier": 0.75, "attention_in_multiplier": 1.25,
        "attention_out_multiplier": 0.75, "ssm_in_multiplier": 1.25, "ssm_out_multiplier": 0.75,
        "ssm_multipliers": [0.75, 1.25, 1.5, 0.75, 1.25],
    },
    "granitemoehybrid": {
        **COMMON, **ATTENTION, **MAMBA, "model_type": "granitemoehybrid", "architectures": ["GraniteMoeHybridForCausalLM"],
        "layer_types": ["mamba", "attention", "mamba"], "num_local_experts": 0, "num_experts_per_tok": 0,
        "shared_intermediate_size": 96, "position_embedding_type": "nope", "embedding_multiplier": 1.5,
        "residual_multiplier": 0.75, "attention_multiplier": 0.25, "logits_scaling": 1.25,
    },
    "nemotron_h": {
        **{name: value for name, value in (COMMON | ATTENTION).items() if name not in ("hidden_act", "num_hidden_layers")},
        "model_type": "nemotron_h", "architectures": ["NemotronHForCausalLM"], "hybrid_override_pattern": "M-*M",
        "layers_block_type": ["mamba", "mlp", "attention", "mamba"], "num_hidden_layers": 4, "head_dim": 32,
        "mamba_num_heads": 4, "mamba_head_dim": 32, "ssm_state_size": 16, "n_groups": 2, "conv_kernel": 4, "chunk_size": 16,
        "expand": 2, "use_bias": False, "use_conv_bias": True, "mamba_proj_bias": False, "mlp_bias": False,
        "mlp_hidden_act": "relu2", "mamba_hidden_act": "silu", "layer_norm_epsilon": 1e-5, "residual_in_fp32": False,
        "time_step_min": 1e-30, "time_step_limit": [0.0, float("inf")],
    },
    "qwen3_5": {
        **COMMON, **ATTENTION, "model_type": "qwen3_5_text", "architectures": ["Qwen3_5ForCausalLM"], "head_dim": 32,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"], "full_attention_interval": 2,
        "rms_norm_eps": 1e-6,
        "linear_conv_kernel_dim": 4, "linear_key_head_dim": 32, "linear_value_head_dim": 32, "linear_num_key_heads": 2,
        "linear_num_value_heads": 4, "partial_rotary_factor": 0.5,
        "rope_parameters": {**ROPE, "mrope_section": [3, 3, 2], "partial_rotary_factor": 0.5},
    },
    "kimi_linear": {
        **COMMON, **ATTENTION, "model_type": "kimi_linear", "architectures": ["KimiLinearForCausalLM"],
        "layer_types": ["linear_attention", "full_attention", "linear_attention"], "mlp_layer_types": ["dense"] * 3,
        "linear_num_heads": 2, "linear_head_dim": 32, "num_key_value_heads": 2, "kv_lora_rank": 24, "q_lora_rank": None,
        "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 20,
    },
    "llama": {
        **COMMON, **ATTENTION, "model_type": "llama", "architectures": ["LlamaForCausalLM"], "head_dim": 32,
        "mlp_bias": False, "rope_parameters": ROPE,
    },
    "lfm2": {
        **{name: value for name, value in COMMON.items() if name != "hidden_act"},
        "model_type": "lfm2", "architectures": ["Lfm2ForCausalLM"], "layer_types": ["conv", "full_attention", "conv"],
        "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 96, "block_auto_adjust_ff_dim": False,
        "conv_L_cache": 3, "conv_bias": False, "norm_eps": 1e-5, "max_position_embeddings": 1024, "rope_parameters": ROPE,
    },
}  # fmt: skip
CONFIGS["qwen3_next"] = CONFIGS["qwen3_5"] | {
    "model_type": "qwen3_next", "architectures": ["Qwen3NextForCausalLM"], "num_experts": 0, "num_experts_per_tok": 0,
    "decoder_sparse_step": 1, "mlp_only_layers": [0, 1, 2], "rope_parameters": {**ROPE, "partial_rotary_factor": 0.5},
}  # fmt: skip
"""With dense MLPs alone."""
CONFIGS["lfm2-tied"] = CONFIGS["lfm2"] | {"tie_word_embeddings": True}
"""Of engines whose LFM2 has no separate head (mlx-lm)."""
CONFIGS["qwen3_5-128"] = CONFIGS["qwen3_5"] | {"dtype": "bfloat16", "linear_key_head_dim": 128, "linear_value_head_dim": 128}
"""Of engines that compute the delta rule in bf16 alone, with heads of 128 channels (vLLM on a CPU)."""
CONFIGS["qwen3_5-bf16"] = CONFIGS["qwen3_5"] | {"dtype": "bfloat16"}
"""Of engines that change weights in the type that they are stored in (mlx-lm): stored in bf16, computed in float32."""
COMPUTED = {"qwen3_5-128": "bfloat16"}
"""What engines are asked to compute in, where it is not float32."""
