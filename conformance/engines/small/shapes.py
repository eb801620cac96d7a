"""The tensors of a small checkpoint: names, shapes, and how each is drawn."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ssmspec_ref.shapes import Array

QWEN3 = ("qwen3_5_text", "qwen3_next")
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
    if c.get("mamba_rms_norm", True):
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
    together = (("qkvz", 2 * keys + 2 * values), ("ba", 2 * heads))
    apart = (("qkv", 2 * keys + values), ("z", values), ("a", heads), ("b", heads))
    for name, rows in together if c["model_type"] == "qwen3_next" else apart:
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


def shared_mlp_block(p: str, c: dict[str, Any]) -> Shapes:
    """Gate and up in one matrix (Granite)."""
    width, inner = c["hidden_size"], c["shared_intermediate_size"]
    yield f"{p}.input_linear.weight", (2 * inner, width), "matrix"
    yield f"{p}.output_linear.weight", (width, inner), "matrix"


def lfm2(c: dict[str, Any]) -> Shapes:
    """Every tensor of a checkpoint of LFM2."""
    width, size = c["hidden_size"], c["hidden_size"] // c["num_attention_heads"]
    keys, tied = c["num_key_value_heads"] * size, c["tie_word_embeddings"]
    yield "model.embed_tokens.weight", (c["vocab_size"], width), "tied" if tied else "embedding"
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
    if not tied:
        yield "lm_head.weight", (c["vocab_size"], width), "head"


def nemotron_h(c: dict[str, Any]) -> Shapes:
    """Every tensor of a checkpoint of Nemotron-H: each block has one mixer, or an MLP without a gate."""
    width = c["hidden_size"]
    yield "backbone.embeddings.weight", (c["vocab_size"], width), "embedding"
    for i, kind in enumerate(c["layers_block_type"]):
        p = f"backbone.layers.{i}"
        yield f"{p}.norm.weight", (width,), "one"
        if kind == "mamba":
            heads = c["mamba_num_heads"]
            inner = heads * c["mamba_head_dim"]
            yield from mamba2_block(f"{p}.mixer", c, inner, heads, c["ssm_state_size"], c["n_groups"], c["conv_kernel"])
        elif kind == "attention":
            yield from attention_block(f"{p}.mixer", c, c["head_dim"])
        else:
            yield f"{p}.mixer.up_proj.weight", (c["intermediate_size"], width), "matrix"
            yield f"{p}.mixer.down_proj.weight", (width, c["intermediate_size"]), "matrix"
    yield "backbone.norm_f.weight", (width,), "one"
    yield "lm_head.weight", (c["vocab_size"], width), "head"


WHOLE: dict[str, Callable[[dict[str, Any]], Shapes]] = {"lfm2": lfm2, "nemotron_h": nemotron_h}
"""Families whose blocks have other parts than a mixer and a gated MLP."""


def has_mamba2(c: dict[str, Any], layer: int) -> bool:
    """Whether a layer of Bamba, Falcon-H1 or Granite's hybrid has Mamba-2."""
    if c["model_type"] == "granitemoehybrid":
        return bool(c["layer_types"][layer] == "mamba")
    return c["model_type"] == "falcon_h1" or (c["model_type"] == "bamba" and layer not in c["attn_layer_indices"])


def mixers(p: str, c: dict[str, Any], layer: int) -> Shapes:
    """The mixers of a layer; Falcon-H1 has two."""
    kind, ssm, width = c["model_type"], has_mamba2(c, layer), c["hidden_size"]
    if ssm:
        yield from mamba2_block(f"{p}.mamba", c, 2 * width, c["mamba_n_heads"], c["mamba_d_state"], c["mamba_n_groups"], 4)
    if kind in QWEN3 and c["layer_types"][layer] == "linear_attention":
        yield from delta_block(f"{p}.linear_attn", c)
    elif kind == "kimi_linear":
        block = kda_block if c["layer_types"][layer] == "linear_attention" else latent_block
        yield from block(f"{p}.self_attn", c)
    elif not ssm or kind == "falcon_h1":
        size = c.get("head_dim", width // c["num_attention_heads"])
        yield from attention_block(f"{p}.self_attn", c, size, kind in QWEN3)


def tensors(c: dict[str, Any]) -> Shapes:
    """Every tensor of a checkpoint."""
    kind, width = c["model_type"], c["hidden_size"]
    if kind in WHOLE:
        yield from WHOLE[kind](c)
        return
    plain = kind == "mamba2"
    home = "backbone" if plain else "model"
    drawn = "offset" if kind in QWEN3 else "one"
    yield f"{home}.{'embeddings' if plain else 'embed_tokens'}.weight", (c["vocab_size"], width), "embedding"
    for i in range(c["num_hidden_layers"]):
        p = f"{home}.layers.{i}"
        yield f"{p}.{'norm' if plain else 'input_layernorm'}.weight", (width,), drawn
        if plain:
            yield from mamba2_block(f"{p}.mixer", c, 2 * width, c["num_heads"], c["state_size"], c["n_groups"], 4)
            continue
        yield from mixers(p, c, i)
        bamba = kind in ("bamba", "falcon_h1")
        yield f"{p}.{'pre_ff' if bamba else 'post_attention'}_layernorm.weight", (width,), drawn
        if kind == "granitemoehybrid":
            yield from shared_mlp_block(f"{p}.shared_mlp", c)
        else:
            yield from mlp_block(f"{p}.{'feed_forward' if bamba else 'mlp'}", c)
    last = {"mamba2": "norm_f", "bamba": "final_layernorm", "falcon_h1": "final_layernorm"}.get(kind, "norm")
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
    "tied": lambda rng, shape: rng.normal(0, 0.3, shape),
    "head": lambda rng, shape: rng.normal(0, 2.0 * shape[-1] ** -0.5, shape),
}
"""Parameters as trained models have them: states that last for a few to a few hundred tokens. An embedding that is the head
too is smaller, so that a token is not followed by itself."""
