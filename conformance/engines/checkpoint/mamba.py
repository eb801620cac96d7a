"""Models of Mamba and Mamba-2: Mamba, Mamba-2, Bamba and Nemotron-H."""

import math
from typing import Any

import numpy as np

from ssmspec_ref.attention import AttentionParams
from ssmspec_ref.layers.layer import Mamba1Layer, Mamba2Layer
from ssmspec_ref.layers.mixer import SelectiveMixer, SSDMixer
from ssmspec_ref.layers.norm import GatedNorm
from ssmspec_ref.selective import SelectiveParams
from ssmspec_ref.ssd import SSDParams

from .parts import attention, mlp, model_of, rotary_params
from .tensors import NoOracle, Tensors
from .weights import MLP, Block, Weights


def step_limit(c: dict[str, Any]) -> tuple[float, float]:
    """The limits of dt in a config; JSON has no infinity, so it is written as an object."""
    low, high = (math.inf if x == {"__float__": "Infinity"} else float(x) for x in c.get("time_step_limit", (0.0, math.inf)))
    return low, high


def ssd_layer(
    w: Tensors, p: str, sizes: tuple[int, int, int], eps: float, limit: tuple[float, float], normed: bool = True
) -> Mamba2Layer:
    """The layer at a prefix of names; `sizes`: channels of a head, of its state, and groups. `normed`: with a gated norm."""
    channels, state, groups = sizes
    params = SSDParams(-np.exp(w[f"{p}.A_log"]), w[f"{p}.D"], w[f"{p}.dt_bias"], dt_limit=limit)
    mixer = SSDMixer(w.conv(f"{p}.conv1d"), params, channels, state, groups)
    gate = GatedNorm(w[f"{p}.norm.weight"], eps, groups=groups) if normed else None
    return Mamba2Layer(mixer, w.linear(f"{p}.in_proj"), w.linear(f"{p}.out_proj"), gate)


def mamba1(c: dict[str, Any], w: Tensors) -> Weights:
    eps, blocks = c.get("layer_norm_epsilon", 1e-5), []
    for i in range(c["num_hidden_layers"]):
        p = f"backbone.layers.{i}.mixer"
        params = SelectiveParams(-np.exp(w[f"{p}.A_log"]), w[f"{p}.D"], w[f"{p}.dt_proj.bias"])
        mixer = SelectiveMixer(w.conv(f"{p}.conv1d"), params, w[f"{p}.x_proj.weight"], w[f"{p}.dt_proj.weight"])
        layer = Mamba1Layer(mixer, w.linear(f"{p}.in_proj"), w.linear(f"{p}.out_proj"))
        blocks.append(Block(w.norm(f"backbone.layers.{i}.norm", eps), layer))
    return model_of(c, w, ("backbone.embeddings", "backbone.norm_f"), blocks, eps)


def mamba2(c: dict[str, Any], w: Tensors) -> Weights:
    eps, sizes = c.get("layer_norm_epsilon", 1e-5), (c["head_dim"], c["state_size"], c.get("n_groups", 8))
    blocks = [
        Block(w.norm(f"backbone.layers.{i}.norm", eps), ssd_layer(w, f"backbone.layers.{i}.mixer", sizes, eps, step_limit(c)))
        for i in range(c["num_hidden_layers"])
    ]
    return model_of(c, w, ("backbone.embeddings", "backbone.norm_f"), blocks, eps)


def bamba(c: dict[str, Any], w: Tensors) -> Weights:
    eps, heads = c["rms_norm_eps"], c["num_attention_heads"]
    inner = c["mamba_expand"] * c["hidden_size"]
    sizes = (inner // c["mamba_n_heads"], c["mamba_d_state"], c["mamba_n_groups"])
    params, blocks = rotary_params(c, c["hidden_size"] // heads, 0.5), []
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}"
        layer: Any
        if i in c["attn_layer_indices"]:
            layer = attention(w, f"{p}.self_attn", params, heads, c["num_key_value_heads"])
        else:
            layer = ssd_layer(w, f"{p}.mamba", sizes, eps, step_limit(c))
        norms = w.norm(f"{p}.input_layernorm", eps), w.norm(f"{p}.pre_ff_layernorm", eps)
        blocks.append(Block(norms[0], layer, norms[1], mlp(w, f"{p}.feed_forward")))
    return model_of(c, w, ("model.embed_tokens", "model.final_layernorm"), blocks, eps)


def nemotron_h(c: dict[str, Any], w: Tensors) -> Weights:
    eps, heads = c["layer_norm_epsilon"], c["num_attention_heads"]
    kinds = c.get("hybrid_override_pattern") or c["layers_block_type"]
    sizes = (c["mamba_head_dim"], c["ssm_state_size"], c["n_groups"])
    blocks = []
    for i, kind in enumerate(kinds):
        p = f"backbone.layers.{i}.mixer"
        layer: Any
        if kind in ("M", "mamba", "linear_attention"):
            layer = ssd_layer(w, p, sizes, eps, step_limit(c))
        elif kind in ("*", "attention", "full_attention"):
            layer = attention(w, p, AttentionParams(), heads, c["num_key_value_heads"])
        elif kind in ("-", "mlp"):
            layer = MLP(w.linear(f"{p}.up_proj"), w.linear(f"{p}.down_proj"))
        else:
            raise NoOracle(f"nemotron_h: the oracle has no block {kind!r}")
        blocks.append(Block(w.norm(f"backbone.layers.{i}.norm", eps), layer))
    return model_of(c, w, ("backbone.embeddings", "backbone.norm_f"), blocks, eps)
