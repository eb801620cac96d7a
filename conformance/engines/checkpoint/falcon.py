"""Falcon-H1: Mamba-2 and attention beside each other in every block, on one norm, and a factor for each of their parts."""

from dataclasses import replace
from typing import Any

import numpy as np

from ssmspec_ref.attention import AttentionParams
from ssmspec_ref.layers.layer import Mamba2Layer
from ssmspec_ref.layers.linear import Linear

from .mamba import ssd_layer, step_limit
from .parts import attention, mlp, model_of, rotary_params
from .tensors import Tensors
from .weights import Attention, Block, Weights


def falcon_h1(c: dict[str, Any], w: Tensors) -> Weights:
    """A block becomes two: Mamba-2, and beside it attention with the MLP behind both."""
    eps, heads, blocks = c["rms_norm_eps"], c["num_attention_heads"], []
    params = rotary_params(c, c.get("head_dim") or c["hidden_size"] // heads)
    gate, down = c.get("mlp_multipliers") or (1.0, 1.0)
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}"
        first, second = (w.norm(f"{p}.{name}_layernorm", eps) for name in ("input", "pre_ff"))
        dense = replace(mlp(w, f"{p}.feed_forward"), gate_factor=gate, factor=down)
        blocks += [
            Block(first, _mamba2(c, w, f"{p}.mamba", eps), factor=c.get("ssm_out_multiplier", 1.0)),
            Block(
                first, _attention(c, w, f"{p}.self_attn", params, heads), second, dense,
                c.get("attention_out_multiplier", 1.0), c.get("attention_in_multiplier", 1.0), beside=True,
            ),
        ]  # fmt: skip
    whole = model_of(c, w, ("model.embed_tokens", "model.final_layernorm"), blocks, eps)
    factors = c.get("embedding_multiplier", 1.0), c.get("lm_head_multiplier", 1.0)
    return replace(whole, embedding_factor=factors[0], head_factor=factors[1])


def _mamba2(c: dict[str, Any], w: Tensors, p: str, eps: float) -> Mamba2Layer:
    """The norm before the output projection only if `mamba_rms_norm`; the factors of z, x, B, C, dt, by channel."""
    inner = c.get("mamba_d_ssm") or c["mamba_expand"] * c["hidden_size"]
    heads, state, groups = c["mamba_n_heads"], c["mamba_d_state"], c["mamba_n_groups"]
    channels = [inner, inner, groups * state, groups * state, heads]
    factors = np.repeat(np.array(c.get("ssm_multipliers") or (1.0,) * 5, dtype=np.float64), channels)
    layer = ssd_layer(w, p, (inner // heads, state, groups), eps, step_limit(c), normed=c.get("mamba_rms_norm", False))
    norm = layer.norm and replace(layer.norm, norm_first=c.get("mamba_norm_before_gate", True))
    return replace(layer, norm=norm, input_multiplier=c.get("ssm_in_multiplier", 1.0), multipliers=factors)


def _attention(c: dict[str, Any], w: Tensors, p: str, params: AttentionParams, heads: int) -> Attention:
    layer, factor = attention(w, p, params, heads, c["num_key_value_heads"]), c.get("key_multiplier", 1.0)
    bias = layer.k_proj.bias if layer.k_proj.bias is None else factor * layer.k_proj.bias
    return replace(layer, k_proj=Linear(factor * layer.k_proj.weight, bias))
