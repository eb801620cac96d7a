"""Read a checkpoint for the oracle: config.json and safetensors, with NumPy only, in float64.

The reader of the tested engine is never used, ours included: two readers with the same mistake would agree. bf16 is widened
by its bits. A family that is missing here has no oracle, and *same model?* is not tested for it.
"""

import json
import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ssmspec_ref.attention import AttentionParams
from ssmspec_ref.attention.latent import LatentLayer
from ssmspec_ref.conv import ConvParams
from ssmspec_ref.delta import DeltaParams
from ssmspec_ref.layers.layer import DeltaLayer, Mamba1Layer, Mamba2Layer, RecurrentLayer
from ssmspec_ref.layers.linear import Linear
from ssmspec_ref.layers.mixer import DeltaMixer, SelectiveMixer, SSDMixer
from ssmspec_ref.layers.norm import GatedNorm, Norm
from ssmspec_ref.layers.rotary import frequencies
from ssmspec_ref.layers.shortconv import ShortConvLayer, mixer_of
from ssmspec_ref.selective import SelectiveParams
from ssmspec_ref.shapes import Array
from ssmspec_ref.shortconv import ShortConvParams
from ssmspec_ref.ssd import SSDParams

from ..errors import ConformanceError

WIDE = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8"}


class NoOracle(ConformanceError):
    """The oracle does not support this model: its family, or a field of its config."""


@dataclass(frozen=True)
class Attention:
    """Grouped-query attention, with norms of q and k and a gate in families that have them (Qwen3.5)."""

    params: AttentionParams
    q_proj: Linear
    k_proj: Linear
    v_proj: Linear
    out_proj: Linear
    heads: int
    groups: int
    q_norm: Norm | None = None
    k_norm: Norm | None = None
    gated: bool = False


@dataclass(frozen=True)
class MLP:
    """down(silu(gate x) up x), or down(relu(up x)^2) without a gate (Nemotron-H)."""

    up: Linear
    down: Linear
    gate: Linear | None = None


@dataclass(frozen=True)
class Block:
    norm: Norm
    layer: RecurrentLayer | Attention | LatentLayer | MLP
    mlp_norm: Norm | None = None
    mlp: MLP | None = None


@dataclass(frozen=True)
class Weights:
    """The weights of a whole language model; `eos` are the tokens that end a text."""

    family: str
    embedding: Array
    blocks: tuple[Block, ...]
    norm: Norm
    head: Linear
    eos: tuple[int, ...] = ()

    @property
    def vocabulary(self) -> int:
        return len(self.embedding)


class Tensors(Mapping[str, Array]):
    """The tensors of a folder in float64. Raises: NoOracle for a file that cannot be read."""

    def __init__(self, folder: Path) -> None:
        self.found: dict[str, Array] = {}
        for path in sorted(folder.glob("*.safetensors")):
            try:
                self._read(path.read_bytes())
            except (OSError, ValueError, KeyError, struct.error) as error:
                raise NoOracle(f"{path} cannot be read: {error}") from error
        if not self.found:
            raise NoOracle(f"{folder} holds no *.safetensors")

    def _read(self, raw: bytes) -> None:
        (length,) = struct.unpack("<Q", raw[:8])
        for name, told in json.loads(raw[8 : 8 + length]).items():
            if name != "__metadata__":
                start, end = (8 + length + at for at in told["data_offsets"])
                self.found[name] = widened(raw[start:end], told["dtype"]).reshape(told["shape"])

    def __getitem__(self, name: str) -> Array:
        if name not in self.found:
            raise NoOracle(f"the checkpoint has no tensor {name}")
        return self.found[name]

    def __iter__(self) -> Any:
        return iter(self.found)

    def __len__(self) -> int:
        return len(self.found)

    def linear(self, name: str) -> Linear:
        return Linear(self[f"{name}.weight"], self.found.get(f"{name}.bias"))

    def conv(self, name: str) -> ConvParams:
        return ConvParams(self[f"{name}.weight"][:, 0], self.found.get(f"{name}.bias"))

    def norm(self, name: str, eps: float, offset: float = 0.0) -> Norm:
        return Norm(self[f"{name}.weight"] + offset, eps)


def widened(raw: bytes, kind: str) -> Array:
    """Numbers of a safetensors type in float64; bf16 is the upper half of an fp32 number."""
    if kind == "BF16":
        return (np.frombuffer(raw, "<u2").astype("<u4") << 16).view("<f4").astype(np.float64)
    return np.frombuffer(raw, WIDE[kind]).astype(np.float64)


def read(folder: Path) -> Weights:
    """Read a checkpoint folder. Raises: NoOracle for a family, field or file that cannot be read."""
    try:
        config = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise NoOracle(f"{folder / 'config.json'} cannot be read: {error}") from error
    family = config.get("model_type")
    if family not in FAMILIES:
        raise NoOracle(f"no oracle of the family {family!r}; there is one of {', '.join(FAMILIES)}")
    try:
        return FAMILIES[family](config, Tensors(folder))
    except (KeyError, TypeError) as error:
        raise NoOracle(f"{family}: the config lacks or has in another form: {error}") from error


def _whole(
    c: dict[str, Any], w: Tensors, names: tuple[str, str], blocks: list[Block], eps: float, offset: float = 0.0
) -> Weights:
    table = w[f"{names[0]}.weight"]
    head = Linear(table if c.get("tie_word_embeddings", c["model_type"] == "mamba") else w["lm_head.weight"])
    ends = c.get("eos_token_id")
    eos = tuple(ends) if isinstance(ends, list) else () if ends is None else (ends,)
    return Weights(c["model_type"], table, tuple(blocks), w.norm(names[1], eps, offset), head, eos)


def _limit(c: dict[str, Any]) -> tuple[float, float]:
    low, high = (math.inf if x == {"__float__": "Infinity"} else float(x) for x in c.get("time_step_limit", (0.0, math.inf)))
    return low, high


def _mamba2(w: Tensors, p: str, sizes: tuple[int, int, int], eps: float, limit: tuple[float, float]) -> Mamba2Layer:
    channels, state, groups = sizes
    params = SSDParams(-np.exp(w[f"{p}.A_log"]), w[f"{p}.D"], w[f"{p}.dt_bias"], dt_limit=limit)
    mixer = SSDMixer(w.conv(f"{p}.conv1d"), params, channels, state, groups)
    gate = GatedNorm(w[f"{p}.norm.weight"], eps, groups=groups)
    return Mamba2Layer(mixer, w.linear(f"{p}.in_proj"), w.linear(f"{p}.out_proj"), gate)


def mamba1(c: dict[str, Any], w: Tensors) -> Weights:
    eps, blocks = c.get("layer_norm_epsilon", 1e-5), []
    for i in range(c["num_hidden_layers"]):
        p = f"backbone.layers.{i}.mixer"
        params = SelectiveParams(-np.exp(w[f"{p}.A_log"]), w[f"{p}.D"], w[f"{p}.dt_proj.bias"])
        mixer = SelectiveMixer(w.conv(f"{p}.conv1d"), params, w[f"{p}.x_proj.weight"], w[f"{p}.dt_proj.weight"])
        layer = Mamba1Layer(mixer, w.linear(f"{p}.in_proj"), w.linear(f"{p}.out_proj"))
        blocks.append(Block(w.norm(f"backbone.layers.{i}.norm", eps), layer))
    return _whole(c, w, ("backbone.embeddings", "backbone.norm_f"), blocks, eps)


def mamba2(c: dict[str, Any], w: Tensors) -> Weights:
    eps, sizes = c.get("layer_norm_epsilon", 1e-5), (c["head_dim"], c["state_size"], c.get("n_groups", 8))
    blocks = [
        Block(w.norm(f"backbone.layers.{i}.norm", eps), _mamba2(w, f"backbone.layers.{i}.mixer", sizes, eps, _limit(c)))
        for i in range(c["num_hidden_layers"])
    ]
    return _whole(c, w, ("backbone.embeddings", "backbone.norm_f"), blocks, eps)


def turned(c: dict[str, Any], channels: int, part: float = 1.0) -> AttentionParams:
    """The rotary parameters of a config. Raises: NoOracle for scaled positions."""
    rope = c.get("rope_parameters") or c.get("rope_scaling") or {}
    if rope.get("rope_type", rope.get("type", "default")) != "default":
        raise NoOracle(f"the oracle has no positions of the kind {rope.get('rope_type')!r}")
    part = rope.get("partial_rotary_factor", c.get("partial_rotary_factor", part))
    return AttentionParams(
        frequencies=frequencies(int(channels * part), rope.get("rope_theta", c.get("rope_theta", 10000.0)))
    )


def _attention(w: Tensors, p: str, params: AttentionParams, heads: int, groups: int, **more: Any) -> Attention:
    q, k, v, out = (w.linear(f"{p}.{name}_proj") for name in "qkvo")
    return Attention(params, q, k, v, out, heads, groups, **more)


def _mlp(w: Tensors, p: str) -> MLP:
    return MLP(w.linear(f"{p}.up_proj"), w.linear(f"{p}.down_proj"), w.linear(f"{p}.gate_proj"))


def llama(c: dict[str, Any], w: Tensors) -> Weights:
    eps, heads = c["rms_norm_eps"], c["num_attention_heads"]
    params = turned(c, c.get("head_dim") or c["hidden_size"] // heads)
    blocks = []
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}"
        layer = _attention(w, f"{p}.self_attn", params, heads, c.get("num_key_value_heads", heads))
        norms = (w.norm(f"{p}.{name}_layernorm", eps) for name in ("input", "post_attention"))
        blocks.append(Block(next(norms), layer, next(norms), _mlp(w, f"{p}.mlp")))
    return _whole(c, w, ("model.embed_tokens", "model.norm"), blocks, eps)


def bamba(c: dict[str, Any], w: Tensors) -> Weights:
    eps, heads = c["rms_norm_eps"], c["num_attention_heads"]
    inner = c["mamba_expand"] * c["hidden_size"]
    sizes = (inner // c["mamba_n_heads"], c["mamba_d_state"], c["mamba_n_groups"])
    params, blocks = turned(c, c["hidden_size"] // heads, 0.5), []
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}"
        layer: Any
        if i in c["attn_layer_indices"]:
            layer = _attention(w, f"{p}.self_attn", params, heads, c["num_key_value_heads"])
        else:
            layer = _mamba2(w, f"{p}.mamba", sizes, eps, _limit(c))
        norms = w.norm(f"{p}.input_layernorm", eps), w.norm(f"{p}.pre_ff_layernorm", eps)
        blocks.append(Block(norms[0], layer, norms[1], _mlp(w, f"{p}.feed_forward")))
    return _whole(c, w, ("model.embed_tokens", "model.final_layernorm"), blocks, eps)


def nemotron_h(c: dict[str, Any], w: Tensors) -> Weights:
    eps, heads = c["layer_norm_epsilon"], c["num_attention_heads"]
    kinds = c.get("hybrid_override_pattern") or c["layers_block_type"]
    sizes = (c["mamba_head_dim"], c["ssm_state_size"], c["n_groups"])
    blocks = []
    for i, kind in enumerate(kinds):
        p = f"backbone.layers.{i}.mixer"
        layer: Any
        if kind in ("M", "mamba", "linear_attention"):
            layer = _mamba2(w, p, sizes, eps, _limit(c))
        elif kind in ("*", "attention", "full_attention"):
            layer = _attention(w, p, AttentionParams(), heads, c["num_key_value_heads"])
        elif kind in ("-", "mlp"):
            layer = MLP(w.linear(f"{p}.up_proj"), w.linear(f"{p}.down_proj"))
        else:
            raise NoOracle(f"nemotron_h: the oracle has no block {kind!r}")
        blocks.append(Block(w.norm(f"backbone.layers.{i}.norm", eps), layer))
    return _whole(c, w, ("backbone.embeddings", "backbone.norm_f"), blocks, eps)


def qwen3_5(c: dict[str, Any], w: Tensors) -> Weights:
    eps, heads, size = c["rms_norm_eps"], c["num_attention_heads"], c["head_dim"]
    shapes = [c[f"linear_{name}"] for name in ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim")]
    every = c.get("full_attention_interval", 4)
    count = c["num_hidden_layers"]
    kinds = c.get("layer_types") or ["linear" if (i + 1) % every else "full" for i in range(count)]
    params, blocks = turned(c, size, 0.25), []
    for i, kind in enumerate(kinds):
        p = f"model.layers.{i}"
        layer: Any
        if kind.startswith("full"):
            norms = {f"{x}_norm": w.norm(f"{p}.self_attn.{x}_norm", eps, 1.0) for x in "qk"}
            layer = _attention(w, f"{p}.self_attn", params, heads, c["num_key_value_heads"], gated=True, **norms)
        else:
            layer = _delta(w, f"{p}.linear_attn", shapes, eps)
        first, second = (w.norm(f"{p}.{name}_layernorm", eps, 1.0) for name in ("input", "post_attention"))
        blocks.append(Block(first, layer, second, _mlp(w, f"{p}.mlp")))
    return _whole(c, w, ("model.embed_tokens", "model.norm"), blocks, eps, 1.0)


def _delta(w: Tensors, p: str, shapes: list[int], eps: float) -> DeltaLayer:
    mixer = DeltaMixer(w.conv(f"{p}.conv1d"), DeltaParams(), *shapes)
    qkv, z, a, b = (w.linear(f"{p}.in_proj_{name}") for name in ("qkv", "z", "a", "b"))
    norm = GatedNorm(w[f"{p}.norm.weight"], eps, norm_first=True)
    return DeltaLayer(mixer, qkv, z, a, b, -np.exp(w[f"{p}.A_log"]), w[f"{p}.dt_bias"], norm, w.linear(f"{p}.out_proj"))


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
        blocks.append(Block(first, layer, second, _mlp(w, f"{p}.mlp")))
    return _whole(c, w, ("model.embed_tokens", "model.norm"), blocks, eps)


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


def lfm2(c: dict[str, Any], w: Tensors) -> Weights:
    """The layers are those of `layer_types`; the MLP is down w2, gate w1, up w3."""
    c = {"tie_word_embeddings": True} | c
    eps, heads = c.get("norm_eps", 1e-5), c["num_attention_heads"]
    params, blocks = turned(c, c["hidden_size"] // heads), []
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
    return _whole(c, w, ("model.embed_tokens", "model.embedding_norm"), blocks, eps)


FAMILIES: dict[str, Callable[[dict[str, Any], Tensors], Weights]] = {
    "mamba": mamba1,
    "mamba2": mamba2,
    "bamba": bamba,
    "nemotron_h": nemotron_h,
    "qwen3_5_text": qwen3_5,
    "llama": llama,
    "kimi_linear": kimi_linear,
    "lfm2": lfm2,
}
