"""Granite 4 hybrid without experts: Mamba-2 or attention, then a shared MLP; factors of summands, scores and logits."""

from dataclasses import replace
from typing import Any

import numpy as np

from ssmspec_ref.attention import AttentionParams
from ssmspec_ref.layers.linear import Linear

from .mamba import ssd_layer, step_limit
from .parts import attention, model_of, rotary_params
from .tensors import NoOracle, Tensors
from .weights import MLP, Block, Weights


def granite_hybrid(c: dict[str, Any], w: Tensors) -> Weights:
    """Scores are scaled by `attention_multiplier`, and logits divided by `logits_scaling`. Raises: NoOracle for experts."""
    if c.get("num_local_experts", 8):
        raise NoOracle("granitemoehybrid: the oracle has no mixtures of experts; num_local_experts must be 0")
    eps, heads = c["rms_norm_eps"], c["num_attention_heads"]
    sizes = c["mamba_expand"] * c["hidden_size"] // c["mamba_n_heads"], c["mamba_d_state"], c["mamba_n_groups"]
    added, turned = c.get("residual_multiplier", 1.0), c.get("position_embedding_type") == "rope"
    params = rotary_params(c, c["hidden_size"] // heads) if turned else AttentionParams()
    params, blocks = replace(params, scale=c.get("attention_multiplier", 1.0)), []
    for i, kind in enumerate(c.get("layers_block_type") or c["layer_types"]):
        p = f"model.layers.{i}"
        layer: Any
        if kind in ("attention", "full_attention"):
            layer = attention(w, f"{p}.self_attn", params, heads, c["num_key_value_heads"])
        else:
            layer = ssd_layer(w, f"{p}.mamba", sizes, eps, step_limit(c))
        gate, up = np.split(w[f"{p}.shared_mlp.input_linear.weight"], 2)
        mlp = MLP(Linear(up), w.linear(f"{p}.shared_mlp.output_linear"), Linear(gate), factor=added)
        norms = w.norm(f"{p}.input_layernorm", eps), w.norm(f"{p}.post_attention_layernorm", eps)
        blocks.append(Block(norms[0], layer, norms[1], mlp, added))
    whole = model_of(c, w, ("model.embed_tokens", "model.norm"), blocks, eps)
    factors = c.get("embedding_multiplier", 1.0), 1.0 / c.get("logits_scaling", 1.0)
    return replace(whole, embedding_factor=factors[0], head_factor=factors[1])
