"""The config and schedule of each checkpoint. This file, the corpus and a seed determine a checkpoint."""

from dataclasses import dataclass, field
from typing import Any

Config = dict[str, Any]


@dataclass(frozen=True)
class Recipe:
    """One training run.

    `teacher` names the checkpoint whose distribution the loss follows in addition to the data; `stages` are the parts of the
    run after which a checkpoint is saved.
    """

    name: str
    architecture: str
    config: Config = field(repr=False)
    steps: int = 3500
    rows: int = 64
    length: int = 512
    peak: float = 3e-3
    warmup: int = 200
    seed: int = 0
    teacher: str | None = None
    stages: tuple[float, ...] = (1.0,)
    tokenizer: str = "bytes"


def of_bytes(**more: Any) -> Config:
    """One token a byte; byte 0 ends a text."""
    text = {"vocab_size": 256, "tie_word_embeddings": True, "bos_token_id": None, "eos_token_id": 0, "pad_token_id": None}
    return text | more


def mamba2(hidden: int, layers: int, state: int, **more: Any) -> Config:
    heads = {"expand": 2, "head_dim": 32, "num_heads": 2 * hidden // 32, "n_groups": 1, "state_size": state}
    return of_bytes(hidden_size=hidden, num_hidden_layers=layers, chunk_size=64, conv_kernel=4, rms_norm=True, **heads) | more


def with_attention(**more: Any) -> Config:
    """Width, MLP and attention of a target with 8 layers."""
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 4096}
    return of_bytes(hidden_size=128, intermediate_size=256, num_hidden_layers=8, **heads) | more


RECIPES = (
    Recipe("mamba2", "Mamba2ForCausalLM", mamba2(144, 10, 64), steps=5200),
    Recipe(
        "hybrid",
        "BambaForCausalLM",
        with_attention(
            attn_layer_indices=[3, 7],
            mamba_n_heads=8,
            mamba_d_head=32,
            mamba_n_groups=2,
            mamba_d_state=64,
            mamba_expand=2,
            mamba_chunk_size=64,
        ),
    ),
    Recipe(
        "delta",
        "Qwen3_5ForCausalLM",
        with_attention(
            head_dim=32,
            layer_types=[*["linear_attention"] * 3, "full_attention"] * 2,
            linear_num_key_heads=2,
            linear_num_value_heads=4,
            linear_key_head_dim=32,
            linear_value_head_dim=32,
            linear_conv_kernel_dim=4,
            rope_parameters={
                "rope_type": "default",
                "rope_theta": 10000.0,
                "partial_rotary_factor": 0.5,
                "mrope_section": [3, 3, 2],
            },
            partial_rotary_factor=0.5,
        ),
        peak=2e-3,
    ),
    Recipe("llama", "LlamaForCausalLM", with_attention(intermediate_size=352, rms_norm_eps=1e-5), steps=5000),
    Recipe("mamba2-drafter", "Mamba2ForCausalLM", mamba2(96, 2, 32), steps=4500, teacher="mamba2", stages=(0.05, 0.25, 1.0)),
    Recipe(
        "mamba1-drafter",
        "MambaForCausalLM",
        of_bytes(hidden_size=96, num_hidden_layers=2, state_size=16, expand=2, conv_kernel=4),
        steps=2000,
        rows=32,
        teacher="mamba2",
    ),
    Recipe("bpe-drafter", "Mamba2ForCausalLM", mamba2(96, 2, 32, vocab_size=768), length=256, tokenizer="bpe"),
)
