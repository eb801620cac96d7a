"""Small folders of every family of checkpoints, with what transformers makes of them in float64.

    python tests/fast/folders.py FOLDER

writes FOLDER/<name> with config.json and weights that are float32 numbers, and FOLDER/<name>/expected.safetensors: logits of
each prompt, and the tokens that greedy generation emits after it. It makes float32 mean float64 (`guard.reroute`), so it
needs a process of its own.
"""

import sys
from pathlib import Path
from typing import Any

VOCABULARY, WIDTH, BUDGET = 61, 24, 12
PROMPTS = ((7, 3, 55, 12, 9, 1, 40, 22, 5, 31, 8), (11,), (2, 44, 17, 60, 3))
COMMON: dict[str, Any] = {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "bos_token_id": None, "pad_token_id": None}
MLP: dict[str, Any] = {"intermediate_size": 40}
HEADS: dict[str, Any] = {"num_attention_heads": 3, "num_key_value_heads": 1}
SSM: dict[str, Any] = {"mamba_n_heads": 6, "mamba_d_head": 8, "mamba_n_groups": 2, "mamba_d_state": 5, "mamba_chunk_size": 4}
SCALES: dict[str, Any] = {
    "embedding_multiplier": 1.7, "lm_head_multiplier": 0.6, "mlp_multipliers": [0.8, 1.3], "key_multiplier": 0.7,
    "attention_in_multiplier": 1.2, "attention_out_multiplier": 0.9, "ssm_in_multiplier": 1.1, "ssm_out_multiplier": 0.8,
    "ssm_multipliers": [0.9, 1.1, 1.2, 0.8, 1.05],
}  # fmt: skip
GRANITE: dict[str, Any] = {
    "num_hidden_layers": 3, "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "num_local_experts": 0, "num_experts_per_tok": 0, "shared_intermediate_size": 40, "embedding_multiplier": 1.7,
    "residual_multiplier": 0.7, "attention_multiplier": 0.4, "logits_scaling": 1.6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 800.0},
}  # fmt: skip
QWEN: dict[str, Any] = {
    "head_dim": 8, "linear_key_head_dim": 6, "linear_value_head_dim": 5, "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"], "num_hidden_layers": 3,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5,
                        "mrope_section": [1, 1, 0]},
    "partial_rotary_factor": 0.5,
}  # fmt: skip
NEXT: dict[str, Any] = QWEN | {"num_experts": 0}
KIMI: dict[str, Any] = {
    "linear_head_dim": 6, "linear_num_heads": 3, "num_hidden_layers": 3, "mlp_layer_types": ["dense"] * 3,
    "num_attention_heads": 3, "num_key_value_heads": 3, "kv_lora_rank": 5, "qk_nope_head_dim": 4, "qk_rope_head_dim": 2,
    "v_head_dim": 7, "layer_types": ["linear_attention", "full_attention", "linear_attention"],
}  # fmt: skip
LFM2: dict[str, Any] = {
    "layer_types": ["conv", "full_attention", "conv", "conv"], "num_hidden_layers": 4, "intermediate_size": 60,
    "block_multiple_of": 16, "rope_parameters": {"rope_type": "default", "rope_theta": 700.0},
}  # fmt: skip
LLAMA3: dict[str, Any] = {
    "rope_type": "llama3", "rope_theta": 100.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
PARTIAL: dict[str, Any] = {"rope_type": "default", "rope_theta": 900.0}
NEMOTRON: dict[str, Any] = {
    "layers_block_type": ["mamba", "mlp", "attention", "mamba"], "head_dim": 6, "mamba_num_heads": 6, "mamba_head_dim": 8,
    "n_groups": 2, "ssm_state_size": 5, "chunk_size": 4, "time_step_min": 1e-30,
}  # fmt: skip

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "mamba": ("Mamba", {"num_hidden_layers": 3, "state_size": 5, "time_step_rank": 3}),
    "mamba2": ("Mamba2", {"num_hidden_layers": 3, "num_heads": 6, "head_dim": 8, "state_size": 5, "n_groups": 2}),
    "mamba2-tied": (
        "Mamba2",
        {
            "num_hidden_layers": 2, "num_heads": 3, "head_dim": 16, "state_size": 7, "n_groups": 1, "use_bias": True,
            "use_conv_bias": False, "tie_word_embeddings": True, "residual_in_fp32": False,
        },
    ),
    "bamba": ("Bamba", MLP | HEADS | SSM | {"num_hidden_layers": 4, "attn_layer_indices": [1, 3], "mamba_proj_bias": True}),
    "falcon_h1": ("FalconH1", MLP | HEADS | SSM | SCALES | {"num_hidden_layers": 2, "mamba_d_ssm": 48}),
    "falcon_h1-norm": ("FalconH1", MLP | HEADS | SSM | {"num_hidden_layers": 2, "mamba_d_ssm": 48, "mamba_rms_norm": True}),
    "granite_hybrid": ("GraniteMoeHybrid", HEADS | SSM | GRANITE),
    "granite_hybrid-turned": (
        "GraniteMoeHybrid", HEADS | SSM | GRANITE | {"position_embedding_type": "rope", "tie_word_embeddings": True}
    ),
    "nemotron_h": ("NemotronH", MLP | HEADS | NEMOTRON),
    "qwen3_5": ("Qwen3_5", MLP | HEADS | QWEN),
    "qwen3_next": ("Qwen3Next", MLP | HEADS | NEXT),
    "qwen3_next-listed": ("Qwen3Next", MLP | HEADS | NEXT | {"num_experts": 4, "mlp_only_layers": [0, 1, 2]}),
    "llama": ("Llama", MLP | {"num_attention_heads": 6, "num_key_value_heads": 2, "num_hidden_layers": 2}),
    "llama3": ("Llama", MLP | HEADS | {"num_hidden_layers": 2, "rope_parameters": LLAMA3, "attention_bias": True}),
    "mistral": ("Mistral", MLP | HEADS | {"num_hidden_layers": 2, "sliding_window": None, "head_dim": 10}),
    "gpt_neox": (
        "GPTNeoX",
        MLP | {"num_attention_heads": 3, "num_hidden_layers": 2, "rope_parameters": PARTIAL | {"partial_rotary_factor": 0.5}},
    ),
    "gpt_neox-serial": (
        "GPTNeoX",
        MLP | {"num_attention_heads": 2, "num_hidden_layers": 2, "use_parallel_residual": False, "attention_bias": False,
               "rope_parameters": PARTIAL | {"partial_rotary_factor": 1.0}},
    ),
    "kimi_linear": ("KimiLinear", MLP | KIMI),
    "lfm2": ("Lfm2", HEADS | LFM2),
    "lfm2-biased": ("Lfm2", HEADS | LFM2 | {"conv_bias": True, "conv_L_cache": 4, "tie_word_embeddings": False}),
}  # fmt: skip


def draw(model: Any, seed: int) -> None:
    """Every parameter moved, so that none is at a value that hides a mistake; all of them are float32 numbers."""
    import numpy as np
    import torch

    rng = np.random.default_rng(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            shape = tuple(parameter.shape)
            noise = rng.normal(size=shape) * (0.2 if len(shape) < 2 else shape[-1] ** -0.5)
            moved = (0.0 if len(shape) == 2 and min(shape) > 8 else 1.0) * parameter.detach().double().numpy() + noise
            parameter.copy_(torch.as_tensor(moved.astype(np.float32).astype(np.float64)))
    model.tie_weights()


def write(folder: Path, name: str, seed: int) -> None:
    """One folder and what transformers makes of it."""
    import numpy as np
    import torch
    import transformers
    from safetensors.numpy import save_file

    title, options = FAMILIES[name]
    config_class = getattr(transformers, f"{title}{'Text' if title == 'Qwen3_5' else ''}Config")
    config = config_class(**COMMON | {"eos_token_id": None} | options)
    model = getattr(transformers, f"{title}ForCausalLM")(config).eval().double()
    draw(model, seed)
    home = folder / name
    model.save_pretrained(home)
    published(home / "model.safetensors")
    expected = {}
    with torch.no_grad():
        for i, prompt in enumerate(PROMPTS):
            ids = torch.tensor([prompt])
            expected[f"logits{i}"] = model(ids).logits.double().numpy()[0]
            out = model.generate(ids, max_new_tokens=BUDGET, do_sample=False, attention_mask=torch.ones_like(ids))
            expected[f"tokens{i}"] = out[0, len(prompt) :].numpy()
    save_file({k: np.ascontiguousarray(v) for k, v in expected.items()}, home / "expected.safetensors")


def published(file: Path) -> None:
    """Renames what transformers 5.23 writes under another name than the published checkpoint: Kimi Linear's dense MLPs."""
    from safetensors.numpy import load_file, save_file

    tensors = load_file(file)
    if any(".block_sparse_moe." in name for name in tensors):
        save_file({name.replace(".block_sparse_moe.", ".mlp."): x for name, x in tensors.items()}, file)


def main(folder: Path) -> None:
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from conformance.adapters.transformers import guard

    for package in guard.KERNEL_PACKAGES:
        sys.modules[package] = None  # type: ignore[assignment]
    guard.reroute()
    with guard.quiet():
        for seed, name in enumerate(FAMILIES):
            write(folder, name, seed)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
