"""The recurrent layers of mlx-lm on a CPU, with the weights of the reference's records and mlx-lm's own cache.

A projection is replaced by one with the record's sizes, as its modules tie them to the width of a model. Padding is passed as
mlx-lm passes it: before the tokens as `left_padding`, after them as `lengths`, both counted down by the layers, and no longer
after the prompt. The window of the convolution has w - 1 columns.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from ssmspec_ref.contract import Limits
from ssmspec_ref.layers.linear import Linear
from ssmspec_ref.layers.shortconv import ShortConvLayer
from ssmspec_ref.shapes import Array, Mask

from ..key_heads import by_key_head
from .sources import module


def array(values: Array | None, dtype: str = "float32") -> Any:
    """Floats in a format of mlx, other types unchanged."""
    if values is None:
        return None
    mx = module("mlx.core")
    given = np.asarray(values)
    return mx.array(given.astype(np.float32)).astype(getattr(mx, dtype)) if given.dtype.kind == "f" else mx.array(given)


def back(a: Any) -> Array:
    """An array of mlx in float64; NumPy has no bf16."""
    return np.array(a.astype(module("mlx.core").float32)).astype(np.float64)


def dense(weight: Array, bias: Array | None) -> Any:
    layer = module("mlx.nn").Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    layer.weight = array(weight)
    if bias is not None:
        layer.bias = array(bias)
    return layer


def project(linear: Linear) -> Any:
    return dense(linear.weight, linear.bias)


def convolution(layer: Any, weight: Array, bias: Array | None) -> None:
    """The taps of a depthwise convolution, which mlx has as (channels, taps, 1)."""
    layer.weight = array(weight[:, :, None])
    if bias is not None:
        layer.bias = array(bias)


def logarithm(A: Array) -> tuple[Any, Array]:
    """A_log as a layer stores it, and the A that it computes from it."""
    A_log = array(np.log(-A))
    return A_log, -back(module("mlx.core").exp(A_log))


def mamba2(made: Any, layer: Any) -> Any:
    """in_proj packs z | x B C | dt, as in transformers."""
    params, norm = layer.mixer.params, layer.norm
    made.in_proj, made.out_proj = project(layer.in_proj), project(layer.out_proj)
    convolution(made.conv1d, layer.mixer.conv.weight, layer.mixer.conv.bias)
    made.A_log, A = logarithm(params.A)
    made.D, made.dt_bias = array(params.D), array(params.dt_bias)
    if norm is not None:
        made.norm.weight = array(norm.weight)
    return replace(layer, mixer=replace(layer.mixer, params=replace(params, A=A)))


def mamba1(made: Any, layer: Any) -> Any:
    mixer = layer.mixer
    made.in_proj, made.out_proj = project(layer.in_proj), project(layer.out_proj)
    made.x_proj, made.dt_proj = dense(mixer.x_proj, None), dense(mixer.dt_proj, mixer.params.dt_bias)
    convolution(made.conv1d, mixer.conv.weight, mixer.conv.bias)
    made.A_log, A = logarithm(mixer.params.A)
    made.D = array(mixer.params.D)
    for name, norm in (("dt", mixer.dt_norm), ("b", mixer.B_norm), ("c", mixer.C_norm)):
        if norm is not None and hasattr(made, f"{name}_layernorm"):
            getattr(made, f"{name}_layernorm").weight = array(norm.weight)
    return replace(layer, mixer=replace(mixer, params=replace(mixer.params, A=A)))


def separate(made: Any, layer: Any, conv: str) -> None:
    """Projections and convolutions of q, k and v that are three each; `conv` names one of the convolutions."""
    keys = layer.mixer.key_heads * layer.mixer.key_channels
    parts = zip(
        "qkv", *(np.split(w, [keys, 2 * keys]) for w in (layer.qkv_proj.weight, layer.mixer.conv.weight)), strict=True
    )
    for name, weight, taps in parts:
        setattr(made, f"{name}_proj", dense(weight, None))
        found = getattr(made, conv.format(name))
        convolution(getattr(found, "conv", found), taps, None)


def decayed(made: Any, layer: Any, norm: Any) -> Any:
    """What decays the state, and the norm of its outputs."""
    A_log, A = logarithm(layer.A)
    made.A_log, made.dt_bias = A_log.reshape(made.A_log.shape), array(layer.dt_bias).reshape(made.dt_bias.shape)
    norm.weight = array(layer.norm.weight)
    return replace(layer, A=A)


def qwen3_next(made: Any, layer: Any) -> Any:
    """Projections interleaved by key head, as in transformers."""
    made.in_proj_qkvz, made.in_proj_ba = (dense(weight, None) for weight in by_key_head(layer))
    made.out_proj = project(layer.out_proj)
    convolution(made.conv1d, layer.mixer.conv.weight, None)
    return decayed(made, layer, made.norm)


def qwen3_5(made: Any, layer: Any) -> Any:
    made.in_proj_qkv, made.in_proj_z = project(layer.qkv_proj), project(layer.z_proj)
    made.in_proj_b, made.in_proj_a = project(layer.b_proj), project(layer.a_proj)
    made.out_proj = project(layer.out_proj)
    convolution(made.conv1d, layer.mixer.conv.weight, None)
    return decayed(made, layer, made.norm)


def olmo_hybrid(made: Any, layer: Any) -> Any:
    separate(made, layer, "{}_conv1d")
    made.a_proj, made.b_proj = project(layer.a_proj), project(layer.b_proj)
    made.g_proj, made.o_proj = project(layer.z_proj), project(layer.out_proj)
    return decayed(made, layer, made.o_norm)


def kimi_linear(made: Any, layer: Any) -> Any:
    separate(made, layer, "{}_conv")
    made.f_a_proj, made.f_b_proj = dense(layer.a_proj.down, None), project(layer.a_proj)
    made.g_a_proj, made.g_b_proj = dense(layer.z_proj.down, None), project(layer.z_proj)
    made.b_proj, made.o_proj = project(layer.b_proj), project(layer.out_proj)
    return decayed(made, layer, made.o_norm)


def bailing(made: Any, layer: Any) -> Any:
    separate(made, layer, "{}_conv1d")
    made.f_proj, made.g_proj = project(layer.a_proj), project(layer.z_proj)
    made.b_proj, made.o_proj = project(layer.b_proj), project(layer.out_proj)
    return decayed(made, layer, made.o_norm)


def lfm2(made: Any, layer: ShortConvLayer) -> ShortConvLayer:
    made.in_proj, made.out_proj = project(layer.in_proj), project(layer.out_proj)
    convolution(made.conv, layer.mixer.params.weight, layer.mixer.params.bias)
    return layer


def of_mamba2(layer: Any) -> dict[str, Any]:
    """The sizes of a layer of Mamba-2 by the names of all configs that have one."""
    mixer = layer.mixer
    h, p, biases = mixer.params.A.shape[0], mixer.channels, (layer.in_proj.bias is not None, mixer.conv.bias is not None)
    eps, limit = 1e-5 if layer.norm is None else layer.norm.eps, mixer.params.dt_limit
    plain = {
        "num_heads": h, "head_dim": p, "ssm_state_size": mixer.state, "n_groups": mixer.groups,
        "conv_kernel": mixer.conv.width, "hidden_size": layer.in_proj.weight.shape[1], "use_bias": biases[0],
        "use_conv_bias": biases[1],
        "layer_norm_epsilon": eps, "rms_norm_eps": eps, "time_step_limit": limit, "intermediate_size": h * p,
    }  # fmt: skip
    nemotron = {"mamba_num_heads": h, "mamba_head_dim": p, "mamba_proj_bias": biases[0]}
    return plain | nemotron | {
        "mamba_n_heads": h, "mamba_d_head": p, "mamba_d_state": mixer.state, "mamba_n_groups": mixer.groups,
        "mamba_d_conv": mixer.conv.width, "mamba_conv_bias": biases[1], "mamba_d_ssm": h * p, "mamba_chunk_size": 128,
        "mamba_rms_norm": layer.norm is not None, "mamba_norm_before_gate": layer.norm is None or layer.norm.norm_first,
        "projectors_bias": layer.out_proj.bias is not None,
    }  # fmt: skip


def of_mamba1(layer: Any) -> dict[str, Any]:
    mixer = layer.mixer
    d, n = mixer.params.A.shape
    norm = mixer.dt_norm
    return {
        "hidden_size": d, "intermediate_size": d, "state_size": n, "conv_kernel": mixer.conv.width,
        "time_step_rank": mixer.dt_proj.shape[1], "use_bias": layer.in_proj.bias is not None,
        "use_conv_bias": mixer.conv.bias is not None, "use_bcdt_rms": norm is not None,
        "mixer_rms_eps": 1e-6 if norm is None else norm.eps, "rms_norm_eps": 1e-6 if norm is None else norm.eps,
        "mamba_d_state": n, "mamba_d_conv": mixer.conv.width, "mamba_expand": 1, "mamba_dt_rank": mixer.dt_proj.shape[1],
        "mamba_conv_bias": mixer.conv.bias is not None, "mamba_proj_bias": layer.in_proj.bias is not None,
    }  # fmt: skip


def of_delta(layer: Any) -> dict[str, Any]:
    mixer, eps = layer.mixer, layer.norm.eps
    h, k, w = mixer.value_heads, mixer.key_channels, mixer.conv.width
    return {
        "hidden_size": layer.qkv_proj.weight.shape[1], "linear_num_key_heads": mixer.key_heads, "linear_num_value_heads": h,
        "linear_key_head_dim": k, "linear_value_head_dim": mixer.value_channels, "linear_conv_kernel_dim": w,
        "rms_norm_eps": eps, "layer_norm_epsilon": eps, "linear_allow_neg_eigval": layer.beta_scale == 2.0,
        "linear_attn_config": {"num_heads": h, "head_dim": k, "short_conv_kernel_size": w}, "num_attention_heads": h,
        "head_dim": k, "short_conv_kernel_size": w, "no_kda_lora": True, "kda_safe_gate": True,
        "kda_lower_bound": layer.lower_bound,
    }  # fmt: skip


def of_lfm2(layer: ShortConvLayer) -> dict[str, Any]:
    d, width = layer.mixer.params.weight.shape
    return {"hidden_size": d, "conv_L_cache": width, "conv_bias": layer.mixer.params.bias is not None}


@dataclass(frozen=True)
class Family:
    """A layer of mlx-lm: its file and class, its options from a record, the loader of its weights, the records that it fits,
    what is passed besides the config, and how many arrays its cache has; the operations in which padding is known to be read;
    `masked` says that its model passes a mask."""

    name: str
    kind: str
    options: Callable[[Any], Mapping[str, Any]]
    load: Callable[[Any, Any], Any]
    limits: Limits
    more: tuple[Any, ...] = ()
    arrays: int = 2
    unpadded: tuple[str, ...] = ()
    masked: bool = True


class CachedLayer:
    """One module with a cache; `used` is the record of the weights that the module computes with."""

    def __init__(self, family: Family, layer: Any, rows: int) -> None:
        home = module(f"mlx_lm.models.{family.name}")
        self.made = getattr(home, family.kind)(SimpleNamespace(**family.options(layer)), *family.more)
        self.used, self.masked = family.load(self.made, layer), family.masked
        self.made.eval()
        self.cache = module("mlx_lm.models.cache").ArraysCache(family.arrays)
        self.real = np.zeros(rows, dtype=np.int64)
        self.fed = 0

    def forward(self, u: Array, live: Mask | None = None) -> Array:
        self.pad(np.ones(u.shape[:2], dtype=bool) if live is None else live)
        given = {"mask": self.cache.make_mask(u.shape[1])} if self.masked else {}
        return back(self.made(array(u), cache=self.cache, **given))

    def pad(self, live: Mask) -> None:
        """Tell the cache of padding, in the numbers that it would have come to from those of the whole prompt."""
        mx, tokens = module("mlx.core"), live.shape[1]
        self.cache.finalize()
        if not live.all():
            count = live.sum(axis=1)
            if np.array_equal(live, np.arange(tokens) >= (tokens - count)[:, None]):
                self.cache.left_padding = mx.array(tokens - count)
            else:
                self.cache.prepare(lengths=np.where(count > 0, count, self.real - self.fed))
        self.real, self.fed = self.real + live.sum(axis=1), self.fed + tokens

    def state(self) -> tuple[Array, Array]:
        *windows, S = (back(held) for held in self.cache.cache)
        return np.concatenate(windows, axis=2).swapaxes(1, 2), self.turned(S)

    def turned(self, S: Array) -> Array:
        return S


class DeltaRule(CachedLayer):
    """The state of the delta rule is (value, key)."""

    def turned(self, S: Array) -> Array:
        return S.swapaxes(2, 3)


class ShortConvolution(CachedLayer):
    """The cache is the state; there is no other window."""

    def state(self) -> tuple[Array, Array]:
        held = back(self.cache[0])
        return np.zeros((len(held), 0, 2)), held.swapaxes(1, 2)
