"""Models of the delta rule: Qwen3.5, Qwen3-Next and Kimi Linear."""

from typing import Any

import numpy as np

from ssmspec_ref.attention.latent import LatentLayer
from ssmspec_ref.conv import ConvParams
from ssmspec_ref.delta import DeltaParams
from ssmspec_ref.layers.layer import DeltaLayer
from ssmspec_ref.layers.linear import Linear
from ssmspec_ref.layers.mixer import DeltaMixer
from ssmspec_ref.layers.norm import GatedNorm

from .parts import attention, mlp, model_of, rotary_params
from .tensors import NoOracle, Tensors
from .weights import Block, Weights


def qwen3_next(c: dict[str, Any], w: Tensors) -> Weights:
    """Qwen3-Next with dense MLPs."""
    every, dense = c.get("decoder_sparse_step", 1), c.get("mlp_only_layers") or []
    if c.get("num_experts", 512) and any((i + 1) % every == 0 and i not in dense for i in range(c["num_hidden_layers"])):
        raise NoOracle("qwen3_next: the oracle has no mixtures of experts; all MLPs must be dense")
    return qwen3_5(c, w, apart=True)


def qwen3_5(c: dict[str, Any], w: Tensors, apart: bool = False) -> Weights:
    """`apart`: each key head has the rows of its q, k, values and z in one matrix, and of its b and a in another."""
    eps, heads, size = c["rms_norm_eps"], c["num_attention_heads"], c["head_dim"]
    shapes = [c[f"linear_{name}"] for name in ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim")]
    every = c.get("full_attention_interval", 4)
    count = c["num_hidden_layers"]
    kinds = c.get("layer_types") or ["linear" if (i + 1) % every else "full" for i in range(count)]
    params, blocks = rotary_params(c, size, 0.25), []
    for i, kind in enumerate(kinds):
        p = f"model.layers.{i}"
        layer: Any
        if kind.startswith("full"):
            norms = {f"{x}_norm": w.norm(f"{p}.self_attn.{x}_norm", eps, 1.0) for x in "qk"}
            layer = attention(w, f"{p}.self_attn", params, heads, c["num_key_value_heads"], gated=True, **norms)
        else:
            layer = (_delta_by_key_head if apart else _delta)(w, f"{p}.linear_attn", shapes, eps)
        first, second = (w.norm(f"{p}.{name}_layernorm", eps, 1.0) for name in ("input", "post_attention"))
        blocks.append(Block(first, layer, second, mlp(w, f"{p}.mlp")))
    return model_of(c, w, ("model.embed_tokens", "model.norm"), blocks, eps, 1.0)


def _delta(w: Tensors, p: str, shapes: list[int], eps: float) -> DeltaLayer:
    mixer = DeltaMixer(w.conv(f"{p}.conv1d"), DeltaParams(), *shapes)
    qkv, z, a, b = (w.linear(f"{p}.in_proj_{name}") for name in ("qkv", "z", "a", "b"))
    norm = GatedNorm(w[f"{p}.norm.weight"], eps, norm_first=True)
    return DeltaLayer(mixer, qkv, z, a, b, -np.exp(w[f"{p}.A_log"]), w[f"{p}.dt_bias"], norm, w.linear(f"{p}.out_proj"))


def _delta_by_key_head(w: Tensors, p: str, shapes: list[int], eps: float) -> DeltaLayer:
    """The rows of two matrices, taken by number: what comes first to last in the head of key j."""
    keys, values, size, wide = shapes
    qkvz, ba = w[f"{p}.in_proj_qkvz.weight"], w[f"{p}.in_proj_ba.weight"]
    each = values // keys
    head, v = np.arange(keys)[:, None] * (len(qkvz) // keys), each * wide
    q, k, x, z = (
        (head + begin + np.arange(count)).ravel()
        for begin, count in ((0, size), (size, size), (2 * size, v), (2 * size + v, v))
    )
    b = (np.arange(keys)[:, None] * 2 * each + np.arange(each)).ravel()
    mixer = DeltaMixer(w.conv(f"{p}.conv1d"), DeltaParams(), *shapes)
    maps = Linear(qkvz[np.concatenate([q, k, x])]), Linear(qkvz[z]), Linear(ba[b + each]), Linear(ba[b])
    norm = GatedNorm(w[f"{p}.norm.weight"], eps, norm_first=True)
    return DeltaLayer(mixer, *maps, -np.exp(w[f"{p}.A_log"]), w[f"{p}.dt_bias"], norm, w.linear(f"{p}.out_proj"))


def kimi_linear(c: dict[str, Any], w: Tensors) -> Weights:
    """Kimi Linear with dense MLPs, by transformers' config or by the published one, whose lists count layers from 1. The norm
    of a latent has the default eps of the published code."""
    g, eps, count = c.get("linear_attn_config") or {}, c.get("rms_norm_eps", 1e-5), c["num_hidden_layers"]
    dense, every = c.get("first_k_dense_replace", 0), c.get("moe_layer_freq", 1)
    usual = ["sparse" if c.get("num_experts") and i >= dense and i % every == 0 else "dense" for i in range(count)]
    if "sparse" in c.get("mlp_layer_types", usual):
        raise NoOracle("kimi_linear: the oracle has no mixtures of experts; all MLPs must be dense")
    if c.get("q_lora_rank") is not None or not c.get("mla_use_nope", True):
        raise NoOracle("kimi_linear: the oracle has latent attention without positions and without a rank of the queries")
    heads, size = g.get("num_heads", c.get("linear_num_heads", 32)), g.get("head_dim", c.get("linear_head_dim", 128))
    kinds = c.get("layer_types", ["full_attention" if i and i % 4 == 0 else "linear_attention" for i in range(count)])
    full = g.get("full_attn_layers", [i + 1 for i, kind in enumerate(kinds) if kind == "full_attention"])
    blocks = []
    for i in range(count):
        p = f"model.layers.{i}"
        layer: Any
        if i + 1 in full:
            layer = _latent(w, f"{p}.self_attn", c["num_attention_heads"], c["qk_nope_head_dim"])
        else:
            layer = _kda(w, f"{p}.self_attn", heads, size, eps, g.get("gate_lower_bound"))
        first, second = (w.norm(f"{p}.{name}_layernorm", eps) for name in ("input", "post_attention"))
        blocks.append(Block(first, layer, second, mlp(w, f"{p}.mlp")))
    return model_of(c, w, ("model.embed_tokens", "model.norm"), blocks, eps)


def _latent(w: Tensors, p: str, heads: int, own: int) -> LatentLayer:
    norm = w.norm(f"{p}.kv_a_layernorm", 1e-6)
    maps = w[f"{p}.kv_b_proj.weight"].reshape(heads, -1, len(norm.weight))
    q, kv, out = (w.linear(f"{p}.{name}") for name in ("q_proj", "kv_a_proj_with_mqa", "o_proj"))
    return LatentLayer(q, kv, norm, maps[:, :own], maps[:, own:], out)


def _kda(w: Tensors, p: str, heads: int, size: int, eps: float, bound: float | None) -> DeltaLayer:
    def factored(name: str) -> Linear:
        if f"{p}.{name}_proj.weight" in w.found:
            return w.linear(f"{p}.{name}_proj")
        up = w.linear(f"{p}.{name}_b_proj")
        return Linear(up.weight, up.bias, w[f"{p}.{name}_a_proj.weight"])

    taps = np.concatenate([w.conv(f"{p}.{x}_conv1d").weight for x in "qkv"])
    qkv = np.concatenate([w[f"{p}.{x}_proj.weight"] for x in "qkv"])
    mixer = DeltaMixer(ConvParams(taps), DeltaParams(), heads, heads, size, size)
    A, bias = -np.exp(w[f"{p}.A_log"]).reshape(heads), w[f"{p}.dt_bias"].reshape(heads, size)
    norm = GatedNorm(w[f"{p}.o_norm.weight"], eps, norm_first=True, gate="sigmoid")
    maps = Linear(qkv), factored("g"), factored("f"), w.linear(f"{p}.b_proj")
    return DeltaLayer(mixer, *maps, A, bias, norm, w.linear(f"{p}.o_proj"), lower_bound=bound)
