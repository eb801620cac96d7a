"""Small random checkpoints of the families: `python -m conformance.engines.small FOLDER [--family mamba2]`.

Each is a folder that transformers reads, in float32 or bfloat16, with a drafter beside it (`FAMILY-drafter`): the same
weights moved by noise, so that its drafts are accepted often and not always. The sizes differ where a family lets them:
groups are fewer than heads, keys are narrower than values, the last chunk is not full.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from ssmspec_ref.shapes import Array

VOCABULARY, WIDTH, EOS = 64, 64, 0
NOISE = 0.05
"""Noise in the drafter's matrices, relative to their size."""
RECURRENT = {"llama": "mamba2"}
"""Of a target whose state is keys and values alone: a drafter whose state must be put back after a rejection
(`FAMILY-recurrent`). Its own tokens are those of the target six times in ten."""
CYCLE, LOOPING = 4, 0.3
"""The head favours the previous token of a cycle of this many tokens, with this weight added to random weights. Greedy text
therefore enters loops and leaves them, and drafts from its own tokens are accepted often but not always."""
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
CONFIGS: dict[str, dict[str, Any]] = {
    "mamba2": {
        **COMMON, "model_type": "mamba2", "architectures": ["Mamba2ForCausalLM"], "expand": 2, "num_heads": 4, "head_dim": 32,
        "state_size": 16, "n_groups": 1, "conv_kernel": 4, "chunk_size": 16, "use_bias": False, "use_conv_bias": True,
        "layer_norm_epsilon": 1e-5, "rms_norm": True, "residual_in_fp32": True, "time_step_limit": [0.0, float("inf")],
        "time_step_rank": 4,
    },
    "bamba": {
        **COMMON, **ATTENTION, "model_type": "bamba", "architectures": ["BambaForCausalLM"], "attn_layer_indices": [1],
        "mamba_chunk_size": 16, "mamba_conv_bias": True, "mamba_d_conv": 4, "mamba_d_head": 32, "mamba_d_state": 16,
        "mamba_expand": 2, "mamba_n_groups": 1, "mamba_n_heads": 4, "mamba_proj_bias": False, "mlp_bias": False,
        "rope_parameters": {**ROPE, "partial_rotary_factor": 0.5}, "partial_rotary_factor": 0.5,
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
CONFIGS["qwen3_5-128"] = CONFIGS["qwen3_5"] | {"dtype": "bfloat16", "linear_key_head_dim": 128, "linear_value_head_dim": 128}
"""Of engines that compute the delta rule in bf16 alone, with heads of 128 channels (vLLM on a CPU)."""
Shapes = Iterator[tuple[str, tuple[int, ...], str]]
"""Name, shape and how it is drawn."""


def mamba2_block(p: str, c: dict[str, Any], inner: int, heads: int, state: int, groups: int, width: int) -> Shapes:
    channels = inner + 2 * groups * state
    yield f"{p}.A_log", (heads,), "decay"
    yield f"{p}.D", (heads,), "one"
    yield f"{p}.dt_bias", (heads,), "step"
    yield f"{p}.conv1d.weight", (channels, 1, width), "filter"
    yield f"{p}.conv1d.bias", (channels,), "bias"
    yield f"{p}.in_proj.weight", (inner + channels + heads, c["hidden_size"]), "matrix"
    yield f"{p}.norm.weight", (inner,), "one"
    yield f"{p}.out_proj.weight", (c["hidden_size"], inner), "matrix"


def attention_block(p: str, c: dict[str, Any], size: int, gated: bool = False) -> Shapes:
    queries, keys = c["num_attention_heads"] * size, c["num_key_value_heads"] * size
    yield f"{p}.q_proj.weight", (queries * (1 + gated), c["hidden_size"]), "matrix"
    yield f"{p}.k_proj.weight", (keys, c["hidden_size"]), "matrix"
    yield f"{p}.v_proj.weight", (keys, c["hidden_size"]), "matrix"
    yield f"{p}.o_proj.weight", (c["hidden_size"], queries), "matrix"
    if gated:
        yield f"{p}.q_norm.weight", (size,), "offset"
        yield f"{p}.k_norm.weight", (size,), "offset"


def delta_block(p: str, c: dict[str, Any]) -> Shapes:
    keys = c["linear_num_key_heads"] * c["linear_key_head_dim"]
    heads = c["linear_num_value_heads"]
    values = heads * c["linear_value_head_dim"]
    yield f"{p}.A_log", (heads,), "decay"
    yield f"{p}.dt_bias", (heads,), "step"
    yield f"{p}.conv1d.weight", (2 * keys + values, 1, c["linear_conv_kernel_dim"]), "filter"
    for name, rows in (("qkv", 2 * keys + values), ("z", values), ("a", heads), ("b", heads)):
        yield f"{p}.in_proj_{name}.weight", (rows, c["hidden_size"]), "matrix"
    yield f"{p}.norm.weight", (c["linear_value_head_dim"],), "one"
    yield f"{p}.out_proj.weight", (c["hidden_size"], values), "matrix"


def kda_block(p: str, c: dict[str, Any]) -> Shapes:
    heads, width = c["linear_num_heads"], c["hidden_size"]
    size = c["linear_head_dim"]
    yield f"{p}.A_log", (1, 1, heads, 1), "decay"
    yield f"{p}.dt_bias", (heads * size,), "step"
    for name in "qkv":
        yield f"{p}.{name}_proj.weight", (heads * size, width), "matrix"
        yield f"{p}.{name}_conv1d.weight", (heads * size, 1, 4), "filter"
    for name in "fg":
        yield f"{p}.{name}_a_proj.weight", (size, width), "matrix"
        yield f"{p}.{name}_b_proj.weight", (heads * size, size), "matrix"
    yield f"{p}.b_proj.weight", (heads, width), "matrix"
    yield f"{p}.o_norm.weight", (size,), "one"
    yield f"{p}.o_proj.weight", (width, heads * size), "matrix"


def latent_block(p: str, c: dict[str, Any]) -> Shapes:
    heads, rank, width = c["num_attention_heads"], c["kv_lora_rank"], c["hidden_size"]
    own, shared, values = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
    yield f"{p}.q_proj.weight", (heads * (own + shared), width), "matrix"
    yield f"{p}.kv_a_proj_with_mqa.weight", (rank + shared, width), "matrix"
    yield f"{p}.kv_a_layernorm.weight", (rank,), "one"
    yield f"{p}.kv_b_proj.weight", (heads * (own + values), rank), "matrix"
    yield f"{p}.o_proj.weight", (width, heads * values), "matrix"


def mlp_block(p: str, c: dict[str, Any]) -> Shapes:
    for name, shape in (("gate", (1, 0)), ("up", (1, 0)), ("down", (0, 1))):
        sizes = (c["hidden_size"], c["intermediate_size"])
        yield f"{p}.{name}_proj.weight", (sizes[shape[0]], sizes[shape[1]]), "matrix"


def lfm2(c: dict[str, Any]) -> Shapes:
    """Every tensor of a checkpoint of LFM2."""
    width, size = c["hidden_size"], c["hidden_size"] // c["num_attention_heads"]
    keys = c["num_key_value_heads"] * size
    yield "model.embed_tokens.weight", (c["vocab_size"], width), "embedding"
    for i, kind in enumerate(c["layer_types"]):
        p = f"model.layers.{i}"
        if kind == "conv":
            yield f"{p}.conv.conv.weight", (width, 1, c["conv_L_cache"]), "filter"
            yield f"{p}.conv.in_proj.weight", (3 * width, width), "matrix"
            yield f"{p}.conv.out_proj.weight", (width, width), "matrix"
        else:
            for name, rows in (("q_proj", width), ("k_proj", keys), ("v_proj", keys), ("out_proj", width)):
                yield f"{p}.self_attn.{name}.weight", (rows, width), "matrix"
            for name in "qk":
                yield f"{p}.self_attn.{name}_layernorm.weight", (size,), "one"
        inner = c["intermediate_size"]
        for name, sizes in (("w1", (inner, width)), ("w2", (width, inner)), ("w3", (inner, width))):
            yield f"{p}.feed_forward.{name}.weight", sizes, "matrix"
        for name in ("operator", "ffn"):
            yield f"{p}.{name}_norm.weight", (width,), "one"
    yield "model.embedding_norm.weight", (width,), "one"
    yield "lm_head.weight", (c["vocab_size"], width), "head"


def tensors(c: dict[str, Any]) -> Shapes:
    """Every tensor of a checkpoint."""
    kind, width = c["model_type"], c["hidden_size"]
    if kind == "lfm2":
        yield from lfm2(c)
        return
    plain = kind == "mamba2"
    home = "backbone" if plain else "model"
    drawn = "offset" if kind == "qwen3_5_text" else "one"
    yield f"{home}.{'embeddings' if plain else 'embed_tokens'}.weight", (c["vocab_size"], width), "embedding"
    for i in range(c["num_hidden_layers"]):
        p = f"{home}.layers.{i}"
        yield f"{p}.{'norm' if plain else 'input_layernorm'}.weight", (width,), drawn
        if plain:
            yield from mamba2_block(f"{p}.mixer", c, 2 * width, c["num_heads"], c["state_size"], c["n_groups"], 4)
            continue
        if kind == "bamba" and i not in c["attn_layer_indices"]:
            yield from mamba2_block(
                f"{p}.mamba", c, 2 * width, c["mamba_n_heads"], c["mamba_d_state"], c["mamba_n_groups"], 4
            )
        elif kind == "qwen3_5_text" and c["layer_types"][i] == "linear_attention":
            yield from delta_block(f"{p}.linear_attn", c)
        elif kind == "kimi_linear":
            block = kda_block if c["layer_types"][i] == "linear_attention" else latent_block
            yield from block(f"{p}.self_attn", c)
        else:
            size = c.get("head_dim", width // c["num_attention_heads"])
            yield from attention_block(f"{p}.self_attn", c, size, kind == "qwen3_5_text")
        yield f"{p}.{'pre_ff' if kind == 'bamba' else 'post_attention'}_layernorm.weight", (width,), drawn
        yield from mlp_block(f"{p}.{'feed_forward' if kind == 'bamba' else 'mlp'}", c)
    last = {"mamba2": "norm_f", "bamba": "final_layernorm"}.get(kind, "norm")
    yield f"{home}.{last}.weight", (width,), drawn
    yield "lm_head.weight", (c["vocab_size"], width), "head"


DRAWN: dict[str, Callable[[np.random.Generator, tuple[int, ...]], Array]] = {
    "decay": lambda rng, shape: rng.uniform(-3.0, 1.0, shape),
    "step": lambda rng, shape: rng.uniform(-3.0, 0.5, shape),
    "one": lambda rng, shape: rng.uniform(0.6, 1.4, shape),
    "offset": lambda rng, shape: rng.uniform(-0.4, 0.4, shape),
    "bias": lambda rng, shape: rng.normal(0, 0.2, shape),
    "matrix": lambda rng, shape: rng.normal(0, shape[-1] ** -0.5, shape),
    "filter": lambda rng, shape: rng.normal(0, 0.5, shape),
    "embedding": lambda rng, shape: rng.normal(0, 1.0, shape),
    "head": lambda rng, shape: rng.normal(0, 2.0 * shape[-1] ** -0.5, shape),
}
"""Parameters as trained models have them: states that last for a few to a few hundred tokens."""


def before(tokens: int) -> Array:
    """The previous token of each token in its cycle."""
    first = np.arange(tokens) // CYCLE * CYCLE
    return np.minimum(first + (np.arange(tokens) - first - 1) % CYCLE, tokens - 1)


def make(family: str, folder: Path, seed: int = 0, noise: float = 0.0, **changed: Any) -> Path:
    """Write one checkpoint; its folder. `changed` are fields of its config: with `dtype` "bfloat16" it is stored in that."""
    config = CONFIGS[family] | changed
    rng, other = np.random.default_rng(seed), np.random.default_rng(seed + 1)
    made: dict[str, Array] = {}
    table = np.zeros(0)
    for name, shape, how in tensors(config):
        values = DRAWN[how](rng, shape)
        table = values if how == "embedding" else table
        if how == "head":
            values = values + LOOPING * table[before(len(table))]
        if noise and how in ("matrix", "head"):
            values = values + noise * np.std(values) * other.normal(0, 1, shape)
        made[name] = values.astype(np.float32)
    folder.mkdir(parents=True, exist_ok=True)
    stored = {name: STORED[config["dtype"]](values) for name, values in made.items()}
    home = import_module("safetensors")
    told = {name: home.TensorSpec(dtype=config["dtype"], shape=x.shape, data_ptr=x.ctypes.data, data_len=x.nbytes)
            for name, x in stored.items()}  # fmt: skip
    home.serialize_file(told, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    return folder


def upper(values: Array) -> Array:
    """bf16: the upper half of an fp32 number, rounded to the nearest, ties to even."""
    whole = np.ascontiguousarray(values, "<f4").view("<u4")
    return ((whole + 0x7FFF + ((whole >> 16) & 1)) >> 16).astype("<u2")


STORED: dict[str, Callable[[Array], Array]] = {
    "float32": lambda values: np.ascontiguousarray(values, "<f4"),
    "bfloat16": upper,
}
"""Numbers as they are stored, by dtype."""


def pair(family: str, folder: Path, seed: int = 0, **changed: Any) -> tuple[Path, Path]:
    """A target and its drafter."""
    target = make(family, folder / family, seed, **changed)
    if family in RECURRENT:
        make(RECURRENT[family], folder / f"{family}-recurrent", seed, **changed)
    return target, make(family, folder / f"{family}-drafter", seed, NOISE, **changed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--family", choices=CONFIGS, action="append")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    for family in given.family or CONFIGS:
        for path in pair(family, given.folder, given.seed):
            print(path)


if __name__ == "__main__":
    main()
