"""Llama, and LFM2, which has short convolutions in place of most attention."""

from typing import Any

from ssmspec_ref.layers.shortconv import ShortConvLayer, mixer_of
from ssmspec_ref.shortconv import ShortConvParams

from .parts import attention, mlp, model_of, rotary_params
from .tensors import Tensors
from .weights import MLP, Attention, Block, Weights


def llama(c: dict[str, Any], w: Tensors) -> Weights:
    eps, heads = c["rms_norm_eps"], c["num_attention_heads"]
    params = rotary_params(c, c.get("head_dim") or c["hidden_size"] // heads)
    blocks = []
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}"
        layer = attention(w, f"{p}.self_attn", params, heads, c.get("num_key_value_heads", heads))
        norms = (w.norm(f"{p}.{name}_layernorm", eps) for name in ("input", "post_attention"))
        blocks.append(Block(next(norms), layer, next(norms), mlp(w, f"{p}.mlp")))
    return model_of(c, w, ("model.embed_tokens", "model.norm"), blocks, eps)


def lfm2(c: dict[str, Any], w: Tensors) -> Weights:
    """The layers are those of `layer_types`; the MLP is down w2, gate w1, up w3."""
    c = {"tie_word_embeddings": True} | c
    eps, heads = c.get("norm_eps", 1e-5), c["num_attention_heads"]
    params, blocks = rotary_params(c, c["hidden_size"] // heads), []
    for i, kind in enumerate(c["layer_types"]):
        p = f"model.layers.{i}"
        layer: Any
        if kind == "conv":
            taps = w[f"{p}.conv.conv.weight"][:, 0], w.found.get(f"{p}.conv.conv.bias")
            in_proj, out_proj = (w.linear(f"{p}.conv.{name}_proj") for name in ("in", "out"))
            layer = ShortConvLayer(mixer_of(ShortConvParams(*taps)), in_proj, out_proj)
        else:
            q, k, v, out = (w.linear(f"{p}.self_attn.{name}_proj") for name in ("q", "k", "v", "out"))
            q_norm, k_norm = (w.norm(f"{p}.self_attn.{name}_layernorm", eps) for name in "qk")
            layer = Attention(params, q, k, v, out, heads, c["num_key_value_heads"], q_norm, k_norm)
        gate, down, up = (w.linear(f"{p}.feed_forward.w{number}") for number in (1, 2, 3))
        norms = w.norm(f"{p}.operator_norm", eps), w.norm(f"{p}.ffn_norm", eps)
        blocks.append(Block(norms[0], layer, norms[1], MLP(up, down, gate)))
    return model_of(c, w, ("model.embed_tokens", "model.embedding_norm"), blocks, eps)
