"""Small models of every family, drawn without a folder or transformers, and the oracle's model of the same tensors."""

import zlib
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ssmspec_fast.families import FAMILIES as READERS
from ssmspec_fast.families import find
from ssmspec_fast.families.source import Source
from ssmspec_fast.layers.attention import Attention
from ssmspec_fast.layers.linear import Linear
from ssmspec_fast.layers.mamba2 import Mamba2
from ssmspec_fast.models.config import ModelConfig
from ssmspec_fast.models.model import Mixer, Model
from ssmspec_ref import model as reference
from ssmspec_ref.attention import AttentionParams
from ssmspec_ref.attention import layer as attention_layer
from ssmspec_ref.conv import ConvParams
from ssmspec_ref.layers import layer, linear, mixer, norm
from ssmspec_ref.ssd import SSDParams

from .folders import COMMON, FAMILIES, MLP, VOCABULARY, WIDTH

TYPES = {
    "FalconH1": "falcon_h1", "NemotronH": "nemotron_h", "Qwen3_5": "qwen3_5_text", "KimiLinear": "kimi_linear",
    "GPTNeoX": "gpt_neox", "Qwen3Next": "qwen3_next",
}  # fmt: skip
NAMES = (*FAMILIES, "mamba_in_llama", "mamba_in_llama-rms", "mamba3", "mamba3-normed", "mamba3-mimo")
ONE_OF_EACH = (
    "mamba", "mamba2", "bamba", "falcon_h1", "nemotron_h", "qwen3_5", "qwen3_next", "kimi_linear", "lfm2", "llama",
    "gpt_neox", "mamba_in_llama", "mamba3", "mamba3-mimo",
)  # fmt: skip
LLAMA = MLP | {
    "model_type": "llama",
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
    "rms_norm_eps": 1e-5,
}
SSM_CFG: dict[str, Any] = {"expand": 1, "ngroups": 4, "d_state": 6, "rmsnorm": False, "D_has_hdim": True}


def mamba_in_llama(**ssm: Any) -> dict[str, Any]:
    """A mamba_config.json: layers 0 and 2 are Mamba-2, 1 is attention."""
    return {
        "d_model": WIDTH, "ssm_cfg": SSM_CFG | ssm, "rms_norm_eps": 1e-5, "vocab_size": VOCABULARY, "d_inner": WIDTH,
        "d_xb": 12, "intermediate_size": 40, "hidden_act": "silu", "n_layer": 3, "attn_layers": [1],
    }  # fmt: skip


MAMBA3: dict[str, dict[str, Any]] = {
    "mamba3": {},
    "mamba3-normed": {"is_outproj_norm": True, "ngroups": 2, "A_floor": 0.3, "rope_fraction": 1.0},
    "mamba3-mimo": {"is_mimo": True, "mimo_rank": 3},
}


def mamba3(name: str) -> dict[str, Any]:
    """A config as mamba-ssm writes it, without model_type; with a rank of several there is an MLP in each block."""
    ssm = {"layer": "Mamba3", "d_state": 8, "headdim": 12, "chunk_size": 4} | MAMBA3[name]
    return {
        "d_model": WIDTH, "d_intermediate": 100 if "is_mimo" in ssm else 0, "n_layer": 2, "vocab_size": 59, "ssm_cfg": ssm,
        "attn_layer_idx": [], "attn_cfg": {}, "rms_norm": "is_outproj_norm" not in ssm, "residual_in_fp32": True,
        "fused_add_norm": True, "pad_vocab_size_multiple": VOCABULARY, "tie_embeddings": "is_mimo" not in ssm,
    }  # fmt: skip


def data(name: str) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The config.json of a small model, and the mamba_config.json beside it."""
    if name.startswith("mamba_in_llama"):
        return COMMON | LLAMA, mamba_in_llama(**({"rmsnorm": True} if name.endswith("rms") else {}))
    if name in MAMBA3:
        return mamba3(name), None
    title, options = FAMILIES[name]
    return COMMON | {"model_type": TYPES.get(title, title.lower())} | options, None


class Drawn(Source):
    """Tensors drawn by name and seed, fp32 numbers whatever the type."""

    def __init__(self, dtype: torch.dtype, seed: int) -> None:
        super().__init__(dtype)
        self.seed = seed

    def read(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        rng = np.random.default_rng([self.seed, zlib.crc32(name.encode())])
        drawn = rng.normal(size=shape) * (shape[-1] ** -0.5 if len(shape) > 1 else 0.2)
        if name.endswith("A_log"):
            drawn = np.log(rng.uniform(0.05, 4.0, shape))  # from gentle to steep decay
        elif name.endswith(("norm.weight", "norm_f.weight")) or "layernorm.weight" in name:
            drawn = 1.0 + drawn
        elif "embed" in name:
            drawn = rng.normal(size=shape)
        return torch.as_tensor(drawn.astype(np.float32)).to(dtype)


def config_of(name: str) -> ModelConfig:
    return find(*data(name))[1]


def drawn(name: str, dtype: torch.dtype = torch.float32, seed: int = 0) -> Model:
    """A small model of a family."""
    family, config = find(*data(name))
    assert family in READERS.values()
    return family.assemble(config, Drawn(dtype, seed))


def prompts(seed: int, lengths: tuple[int, ...]) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, VOCABULARY, n).tolist() for n in lengths]


def array(x: Tensor | None) -> Any:
    return None if x is None else x.double().numpy()


def to_linear(x: Linear) -> linear.Linear:
    return linear.Linear(array(x.weight), array(x.bias))


def to_layer(x: Mixer) -> Any:
    """The oracle's layer of the same tensors: Mamba-2 and plain attention."""
    if isinstance(x, Attention):
        params = AttentionParams(frequencies=array(x.frequencies))
        whole, keys = to_linear(x.qkv_proj), x.config.groups * x.config.channels
        cuts = [x.config.heads * x.config.channels, x.config.heads * x.config.channels + keys]
        biases = [None] * 3 if whole.bias is None else np.split(whole.bias, cuts)
        q, k, v = (linear.Linear(*part) for part in zip(np.split(whole.weight, cuts), biases, strict=True))
        return attention_layer.AttentionLayer(params, q, k, v, to_linear(x.out_proj), x.config.heads, x.config.groups)
    assert isinstance(x, Mamba2)
    c, p = x.config, x.params
    taps = ConvParams(array(x.taps.weight), array(x.taps.bias))
    rates = SSDParams(array(p.A), array(p.D), array(p.dt_bias), p.dt_softplus, p.dt_limit)
    gated = None
    if c.norm is not None:
        gated = norm.GatedNorm(array(x.norm), c.norm.eps, c.norm.groups, c.norm.norm_first)
    held = mixer.SSDMixer(taps, rates, c.channels, c.state, c.groups, c.x_groups, c.B_groups)
    return layer.Mamba2Layer(held, to_linear(x.in_proj), to_linear(x.out_proj), gated)


def to_reference(model: Model) -> reference.Model:
    """The oracle's model of the same tensors, for blocks of one mixer and a gated MLP."""

    def rms(x: Any) -> norm.Norm:
        return norm.Norm(array(x.weight), x.eps)

    blocks = []
    for block in model.blocks:
        mlp = block.mlp
        assert mlp is not None
        assert mlp.gate is not None
        made = reference.MLP(to_linear(mlp.gate), to_linear(mlp.up), to_linear(mlp.down))
        blocks.append(reference.Block(rms(block.norm), to_layer(block.mixers[0]), rms(block.mlp_norm), made))
    head = linear.Linear(array(model.head))
    return reference.Model(array(model.embedding), tuple(blocks), rms(model.norm), head)


def to_device(x: Any, device: str) -> Any:
    """A model with all its tensors on a device."""
    if isinstance(x, Tensor):
        return x.to(device)
    if isinstance(x, tuple):
        moved = [to_device(value, device) for value in x]
        return type(x)(*moved) if hasattr(x, "_fields") else tuple(moved)
    if is_dataclass(x) and not isinstance(x, type):
        return replace(x, **{f.name: to_device(getattr(x, f.name), device) for f in fields(x)})
    return x
