"""The recurrent layers of transformers: how each is configured for the sizes of a record, and which records it fits.

The width of the residual stream enters the modules only through the projections, which `weights` replaces. Families that tie
the inner width to it are therefore configured with the inner width and an expansion of 1.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ssmspec_ref.contract import Limits
from ssmspec_ref.layers.layer import DeltaLayer, Mamba1Layer, Mamba2Layer

from . import weights
from .guard import modeling, quiet

CHUNK = 4
"""Tokens per chunk for families with this option: few, so that short cases cross chunk boundaries."""

ONE_LAYER = {"num_hidden_layers": 1, "vocab_size": 8, "pad_token_id": None, "bos_token_id": None, "eos_token_id": None}


@dataclass(frozen=True)
class Family:
    """A layer of transformers: its modeling file, its class, its options from a record, and the loader of its weights."""

    name: str
    mixer: str
    config: str
    options: Callable[[Any], Mapping[str, Any]]
    load: Callable[[Any, Any], Any]
    limits: Limits
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def build(self, layer: Any, dtype: Any) -> tuple[Any, Any, Any]:
        """The module with the weights of `layer`, its configuration, and the record of the weights as loaded."""
        from importlib import import_module

        module = modeling(self.name)
        configurations = import_module(f"transformers.models.{self.name}.configuration_{self.name}")
        with quiet():
            config = getattr(configurations, self.config)(**self.options(layer))
            mixer = getattr(module, self.mixer)(config, layer_idx=0, **self.arguments).to(dtype)
        loaded = self.load(mixer, layer)
        return mixer.eval(), config, loaded


def _ssd(layer: Mamba2Layer) -> dict[str, int]:
    mixer = layer.mixer
    h = mixer.params.A.shape[0]
    return {"h": h, "p": mixer.channels, "n": mixer.state, "g": mixer.groups, "w": mixer.conv.width, "d": h * mixer.channels}


def _mamba2(layer: Mamba2Layer) -> dict[str, Any]:
    s = _ssd(layer)
    return ONE_LAYER | {
        "hidden_size": s["d"], "expand": 1, "num_heads": s["h"], "head_dim": s["p"], "state_size": s["n"],
        "n_groups": s["g"], "conv_kernel": s["w"], "chunk_size": CHUNK, "use_bias": layer.in_proj.bias is not None,
        "use_conv_bias": layer.mixer.conv.bias is not None, "time_step_limit": layer.mixer.params.dt_limit,
    }  # fmt: skip


def _bamba(layer: Mamba2Layer) -> dict[str, Any]:
    s = _ssd(layer)
    return ONE_LAYER | {
        "hidden_size": s["d"], "mamba_expand": 1, "mamba_n_heads": s["h"], "mamba_d_head": s["p"],
        "mamba_d_state": s["n"], "mamba_n_groups": s["g"], "mamba_d_conv": s["w"], "mamba_chunk_size": CHUNK,
        "mamba_proj_bias": layer.in_proj.bias is not None, "mamba_conv_bias": layer.mixer.conv.bias is not None,
        "time_step_limit": layer.mixer.params.dt_limit, "num_attention_heads": 1, "num_key_value_heads": 1,
    }  # fmt: skip


def _falcon_h1(layer: Mamba2Layer) -> dict[str, Any]:
    s, norm = _ssd(layer), layer.norm
    return _bamba(layer) | {
        "mamba_d_ssm": s["d"], "mamba_rms_norm": norm is not None, "mamba_norm_before_gate": norm is None or norm.norm_first,
        "projectors_bias": layer.out_proj.bias is not None,
    }  # fmt: skip


def _nemotron_h(layer: Mamba2Layer) -> dict[str, Any]:
    s = _ssd(layer)
    return {
        "layers_block_type": ["linear_attention"], "vocab_size": 8, "hidden_size": s["d"], "mamba_num_heads": s["h"],
        "mamba_head_dim": s["p"], "ssm_state_size": s["n"], "n_groups": s["g"], "conv_kernel": s["w"], "chunk_size": CHUNK,
        "use_bias": layer.in_proj.bias is not None, "use_conv_bias": layer.mixer.conv.bias is not None,
        "time_step_limit": layer.mixer.params.dt_limit,
    }  # fmt: skip


def _zamba2(layer: Mamba2Layer) -> dict[str, Any]:
    s = _ssd(layer)
    return {
        "layers_block_type": ["linear_attention"], "num_hidden_layers": 1, "vocab_size": 8, "hidden_size": s["d"],
        "mamba_expand": 1, "n_mamba_heads": s["h"], "mamba_d_state": s["n"], "mamba_ngroups": s["g"],
        "mamba_d_conv": s["w"], "chunk_size": CHUNK, "add_bias_linear": layer.in_proj.bias is not None,
        "num_attention_heads": 1, "num_key_value_heads": 1,
    }  # fmt: skip


def _mamba(layer: Mamba1Layer) -> dict[str, Any]:
    mixer = layer.mixer
    d, n = mixer.params.A.shape
    return ONE_LAYER | {
        "hidden_size": d, "expand": 1, "state_size": n, "conv_kernel": mixer.conv.width,
        "time_step_rank": mixer.dt_proj.shape[1], "use_bias": layer.in_proj.bias is not None,
        "use_conv_bias": mixer.conv.bias is not None,
    }  # fmt: skip


def _jamba(layer: Mamba1Layer) -> dict[str, Any]:
    mixer = layer.mixer
    d, n = mixer.params.A.shape
    return ONE_LAYER | {
        "hidden_size": d, "mamba_expand": 1, "mamba_d_state": n, "mamba_d_conv": mixer.conv.width,
        "mamba_dt_rank": mixer.dt_proj.shape[1], "mamba_proj_bias": layer.in_proj.bias is not None,
        "mamba_conv_bias": mixer.conv.bias is not None, "num_attention_heads": 1, "num_key_value_heads": 1,
    }  # fmt: skip


def _zamba(layer: Mamba1Layer) -> dict[str, Any]:
    return _jamba(layer) | {"n_mamba_heads": 1, "layers_block_type": ["linear_attention"]}


def _delta(layer: DeltaLayer) -> dict[str, Any]:
    mixer = layer.mixer
    return ONE_LAYER | {
        "hidden_size": layer.qkv_proj.weight.shape[1], "linear_num_key_heads": mixer.key_heads,
        "linear_num_value_heads": mixer.value_heads, "linear_key_head_dim": mixer.key_channels,
        "linear_value_head_dim": mixer.value_channels, "linear_conv_kernel_dim": mixer.conv.width,
        "layer_types": ["linear_attention"], "num_attention_heads": 1, "num_key_value_heads": 1,
    }  # fmt: skip


def _qwen4_exp(layer: DeltaLayer) -> dict[str, Any]:
    return _delta(layer) | {"output_gate_type": layer.norm.gate}


def _olmo_hybrid(layer: DeltaLayer) -> dict[str, Any]:
    types = ["linear_attention", "full_attention"]
    return _delta(layer) | {"linear_allow_neg_eigval": layer.beta_scale == 2.0, "num_hidden_layers": 2, "layer_types": types}


def _kda(layer: DeltaLayer) -> dict[str, Any]:
    mixer = layer.mixer
    return ONE_LAYER | {
        "hidden_size": layer.qkv_proj.weight.shape[1], "linear_head_dim": mixer.key_channels,
        "linear_num_heads": mixer.value_heads, "linear_conv_kernel_dim": mixer.conv.width,
        "layer_types": ["linear_attention"], "mlp_layer_types": ["dense"], "num_attention_heads": 1, "num_key_value_heads": 1,
    }  # fmt: skip


def _glm5_next(layer: DeltaLayer) -> dict[str, Any]:
    return _kda(layer) | {"linear_lower_bound": layer.lower_bound}


def _bailing_hybrid(layer: DeltaLayer) -> dict[str, Any]:
    mixer = layer.mixer
    return ONE_LAYER | {
        "hidden_size": layer.qkv_proj.weight.shape[1], "head_dim": mixer.key_channels,
        "num_attention_heads": mixer.value_heads, "num_key_value_heads": mixer.value_heads,
        "short_conv_kernel_size": mixer.conv.width,
        "layer_types": ["linear_attention"], "mlp_layer_types": ["dense"],
        "kda_safe_gate": layer.lower_bound is not None, "kda_lower_bound": layer.lower_bound or -5.0,
    }  # fmt: skip


NO_INIT = {"initialize_mixer_weights": False}
"""FalconMamba's module initialises norms before it creates them; only the model, which sets this, can build it."""
MAMBA2 = {"kind": ("mamba2",), "norm": ("gate_first",), "norm_groups": ("g",), "D": ("head",)}
MAMBA2 |= {"conv_act": ("on",), "multipliers": ("off",)}
FALCON_H1 = MAMBA2 | {"norm": ("gate_first", "norm_first", "none"), "multipliers": ("off", "on")}
ZAMBA2 = MAMBA2 | {"dt_limit": ("off",), "conv_bias": ("on",)}
MAMBA1 = {"kind": ("mamba1",), "D": ("head",), "conv_act": ("on",), "inner_norm": ("off",)}
FALCON_MAMBA, JAMBA = MAMBA1 | {"inner_norm": ("unit",)}, MAMBA1 | {"inner_norm": ("on",)}
NO_BIAS = {"conv_bias": ("off",), "conv_act": ("on",), "proj_bias": ("off",)}
DELTA = NO_BIAS | {"kind": ("delta",), "gate": ("silu",), "beta": ("one",)}
QWEN4, OLMO = DELTA | {"gate": ("silu", "sigmoid")}, DELTA | {"beta": ("one", "two")}
KIMI = NO_BIAS | {"kind": ("kda",), "gate": ("sigmoid",), "beta": ("one",), "low_rank": ("on",), "safe_gate": ("off",)}
GLM = KIMI | {"safe_gate": ("off", "on")}
BAILING = GLM | {"low_rank": ("off",)}

FAMILIES = (
    Family("mamba", "MambaMixer", "MambaConfig", _mamba, weights.mamba1, Limits(MAMBA1)),
    Family("falcon_mamba", "FalconMambaMixer", "FalconMambaConfig", _mamba, weights.mamba1, Limits(FALCON_MAMBA), NO_INIT),
    Family("jamba", "JambaMambaMixer", "JambaConfig", _jamba, weights.mamba1, Limits(JAMBA)),
    Family("zamba", "ZambaMambaMixer", "ZambaConfig", _zamba, weights.zamba, Limits(MAMBA1)),
    Family("mamba2", "Mamba2Mixer", "Mamba2Config", _mamba2, weights.mamba2, Limits(MAMBA2)),
    Family("bamba", "BambaMixer", "BambaConfig", _bamba, weights.mamba2, Limits(MAMBA2)),
    Family(
        "granitemoehybrid", "GraniteMoeHybridMambaLayer", "GraniteMoeHybridConfig", _bamba, weights.mamba2, Limits(MAMBA2)
    ),
    Family("falcon_h1", "FalconH1Mixer", "FalconH1Config", _falcon_h1, weights.falcon_h1, Limits(FALCON_H1)),
    Family("nemotron_h", "NemotronHMamba2Mixer", "NemotronHConfig", _nemotron_h, weights.mamba2, Limits(MAMBA2)),
    Family("zamba2", "Zamba2MambaMixer", "Zamba2Config", _zamba2, weights.mamba2, Limits(ZAMBA2)),
    Family("qwen3_next", "Qwen3NextGatedDeltaNet", "Qwen3NextConfig", _delta, weights.qwen3_next, Limits(DELTA)),
    Family("qwen3_5", "Qwen3_5GatedDeltaNet", "Qwen3_5TextConfig", _delta, weights.qwen3_5, Limits(DELTA)),
    Family("qwen3_5_moe", "Qwen3_5MoeGatedDeltaNet", "Qwen3_5MoeTextConfig", _delta, weights.qwen3_5, Limits(DELTA)),
    Family("qwen4_exp", "Qwen4ExpTextGatedDeltaNet", "Qwen4ExpTextConfig", _qwen4_exp, weights.qwen3_5, Limits(QWEN4)),
    Family("olmo_hybrid", "OlmoHybridGatedDeltaNet", "OlmoHybridConfig", _olmo_hybrid, weights.olmo_hybrid, Limits(OLMO)),
    Family("kimi_linear", "KimiLinearDeltaAttention", "KimiLinearConfig", _kda, weights.kimi_linear, Limits(KIMI)),
    Family("glm5_next", "Glm5NextTextLinearAttention", "Glm5NextTextConfig", _glm5_next, weights.kimi_linear, Limits(GLM)),
    Family(
        "bailing_hybrid",
        "BailingHybridDeltaAttention",
        "BailingHybridConfig",
        _bailing_hybrid,
        weights.bailing_hybrid,
        Limits(BAILING),
    ),
)
