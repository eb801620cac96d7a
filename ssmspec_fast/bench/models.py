"""Models of the papers' dimensions with random weights, made on the device, without files.

name               layers   width   heads        state   groups   vocabulary   where the sizes are from
mamba2-1.3b        48       2048    64 x 64      128     1        50288        state-spaces/mamba2-1.3b
mamba2-2.7b        64       2560    80 x 64      128     1        50288        state-spaces/mamba2-2.7b
mamba2-7b          64       4096    128 x 64     128     8        32768        Mamba-Codestral-7B-v0.1
mamba2-13b         76       5120    160 x 64     128     8        50288        6 width^2 weights a layer
mamba2-23b         84       6656    208 x 64     128     8        50288        the same
mamba-in-llama-8b  32       4096    32 x 128     128     32       128256       JunxiongWang/Llama3.1-Mamba2-8B, half attention
mamba-in-llama-2l  2        4096    as above, no attention                     a drafter of two layers of the former
mamba2-130m        24       768     24 x 64      128     1        50288        state-spaces/mamba2-130m
tiny, tiny-hybrid                                                              for a CPU

The papers train 13B and 23B models from nothing and print no sizes; the sizes here have that many weights.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ssmspec_ref.errors import ParameterError

from ..config import ModelConfig
from ..families import Family, find
from ..families.source import Source
from ..model import Model


def _mamba2(layers: int, width: int, groups: int = 1, vocabulary: int = 50288, head: int = 64, state: int = 128) -> Any:
    fields = {
        "model_type": "mamba2", "hidden_size": width, "num_hidden_layers": layers, "num_heads": 2 * width // head,
        "head_dim": head, "state_size": state, "n_groups": groups, "expand": 2, "vocab_size": vocabulary,
        "tie_word_embeddings": True, "residual_in_fp32": True,
    }  # fmt: skip
    return fields, None


def _in_llama(layers: int, attended: list[int], width: int, shared: int, inner: int, heads: int, vocabulary: int) -> Any:
    channels = width // heads
    base = {
        "model_type": "llama", "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": shared // channels, "intermediate_size": inner, "vocab_size": vocabulary,
        "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "max_position_embeddings": 8192,
    }  # fmt: skip
    ssm = {"expand": 1, "ngroups": heads, "d_state": channels, "rmsnorm": False}
    extra = {
        "d_model": width, "ssm_cfg": ssm, "rms_norm_eps": 1e-5, "vocab_size": vocabulary, "d_inner": width, "d_xb": shared,
        "intermediate_size": inner, "hidden_act": "silu", "n_layer": layers, "attn_layers": attended,
    }  # fmt: skip
    return base, extra


DIMS: dict[str, Any] = {
    "mamba2-1.3b": _mamba2(48, 2048),
    "mamba2-2.7b": _mamba2(64, 2560),
    "mamba2-7b": _mamba2(64, 4096, 8, 32768),
    "mamba2-13b": _mamba2(76, 5120, 8),
    "mamba2-23b": _mamba2(84, 6656, 8),
    "mamba-in-llama-8b": _in_llama(32, list(range(1, 32, 2)), 4096, 1024, 14336, 32, 128256),
    "mamba-in-llama-2l": _in_llama(2, [], 4096, 1024, 14336, 32, 128256),
    "mamba2-130m": _mamba2(24, 768),
    "tiny": _mamba2(2, 32, 1, 61, 8, 16),
    "tiny-hybrid": _in_llama(2, [1], 32, 16, 48, 4, 61),
}


def family_of(name: str) -> tuple[Family, ModelConfig]:
    """Raises: ParameterError for a name that is none."""
    if name not in DIMS:
        raise ParameterError(f"model came as {name!r}; give one of {', '.join(DIMS)}")
    return find(*DIMS[name])


class Random(Source):
    """Tensors drawn on the device, in the order in which they are asked for."""

    def __init__(self, dtype: torch.dtype, device: str, seed: int = 0) -> None:
        super().__init__(dtype)
        self.device = torch.device(device)
        self.generator = None if device == "meta" else torch.Generator(device).manual_seed(seed)

    def read(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        made = torch.empty(shape, dtype=dtype, device=self.device)
        if name.endswith("A_log"):
            return made.uniform_(0.0, 2.77, generator=self.generator)  # A from -1 to -16
        if name.endswith(("dt_bias", "dt_proj.bias")):
            return made.uniform_(-6.9, -2.3, generator=self.generator)  # dt from 0.001 to 0.1
        if "norm" in name or name.endswith(".D"):
            return made.fill_(1.0)
        return made.normal_(0.0, 0.02 if "embed" in name else shape[-1] ** -0.5, generator=self.generator)


def random_model(
    name: str, dtype: torch.dtype = torch.bfloat16, device: str = "cuda", *, layers: int | None = None, seed: int = 0
) -> Model:
    """A model of these dimensions; of its first `layers` layers only, where they are given.

    Raises: ParameterError.
    """
    family, config = family_of(name)
    if layers is not None:
        config = replace(config, blocks=config.blocks[:layers])
    return family.assemble(config, Random(dtype, device, seed))


def weight_bytes(model: Model) -> int:
    """The bytes of weights that a step reads: all matrices, and the head, which may be the embedding."""
    mixers = [linear for mixer in model.mixers for linear in vars(mixer).values() if hasattr(linear, "weight")]
    mlps = [linear for block in model.blocks if block.mlp for linear in vars(block.mlp).values() if hasattr(linear, "weight")]
    weights = [linear.weight for linear in (*mixers, *mlps) if linear.weight.dim() == 2]
    return sum(W.numel() * W.element_size() for W in (*weights, model.head))
