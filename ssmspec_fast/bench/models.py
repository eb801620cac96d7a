"""Models of the papers' dimensions with random weights, made on the device, without files.

name               layers   width   heads        state   groups   vocabulary   where the sizes are from
mamba2-1.3b        48       2048    64 x 64      128     1        50288        state-spaces/mamba2-1.3b
mamba2-2.7b        64       2560    80 x 64      128     1        50288        state-spaces/mamba2-2.7b
mamba2-7b          64       4096    128 x 64     128     8        32768        Mamba-Codestral-7B-v0.1
mamba2-13b         76       5120    160 x 64     128     8        50288        6 width^2 weights a layer
mamba2-23b         84       6656    208 x 64     128     8        50288        the same
mamba-in-llama-8b  32       4096    32 x 128     128     32       128256       JunxiongWang/Llama3.1-Mamba2-8B, half attention
  .. -25, -0       32       4096    the same with a quarter of the layers, and none, attention
mamba-in-llama-2l  2        4096    as above, no attention                     a drafter of two layers of the former
  .. -1024         2        1024    16 x 64      64      16       128256       the same of a quarter of the width
mamba2-130m        24       768     24 x 64      128     1        50288        state-spaces/mamba2-130m
mamba-130m         24       768     Mamba-1      16               50432        state-spaces/mamba-130m; -32000: mistral's
mamba-370m         48       1024    Mamba-1      16               50432        state-spaces/mamba-370m
pythia-6.9b        32       4096    attention                     50432        EleutherAI/pythia-6.9b
mistral-7b         32       4096    attention, 8 key heads        32000        mistralai/Mistral-7B-v0.1, no sliding window
nemotron-3-nano-4b 42       3136    96 x 80      128     8        131072       nvidia/NVIDIA-Nemotron-3-Nano-4B
qwen3.5-4b         32       2560    delta rule, 16 and 32 heads   248320       Qwen/Qwen3.5-4B
tiny, tiny-hybrid                                                              for a CPU

The papers train 13B and 23B models from nothing and print no sizes; the sizes here have that many weights. Drafters have the
tokens of their targets.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ssmspec_ref.errors import ParameterError

from ..families import Family, find
from ..families.source import Source
from ..models.config import ModelConfig
from ..models.model import Model


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


def _mamba1(layers: int, width: int, vocabulary: int) -> Any:
    fields = {
        "model_type": "mamba", "hidden_size": width, "num_hidden_layers": layers, "intermediate_size": 2 * width,
        "state_size": 16, "vocab_size": vocabulary, "tie_word_embeddings": True, "residual_in_fp32": True,
    }  # fmt: skip
    return fields, None


def _attention(family: str, inner: int, vocabulary: int, **more: Any) -> Any:
    fields = {
        "model_type": family, "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
        "intermediate_size": inner, "vocab_size": vocabulary, "max_position_embeddings": 16384,
    }  # fmt: skip
    return fields | more, None


def _nemotron(pattern: str, width: int, inner: int, heads: int) -> Any:
    fields = {
        "model_type": "nemotron_h", "hidden_size": width, "hybrid_override_pattern": pattern, "intermediate_size": inner,
        "mamba_num_heads": heads, "mamba_head_dim": 80, "ssm_state_size": 128, "n_groups": 8, "vocab_size": 131072,
        "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128, "mlp_hidden_act": "relu2",
    }  # fmt: skip
    return fields, None


def _qwen(layers: int, width: int, inner: int) -> Any:
    fields = {
        "model_type": "qwen3_5_text", "hidden_size": width, "num_hidden_layers": layers, "intermediate_size": inner,
        "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
        "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 248320,
        "tie_word_embeddings": True,
    }  # fmt: skip
    return fields, None


DIMS: dict[str, Any] = {
    "mamba2-1.3b": _mamba2(48, 2048),
    "mamba2-2.7b": _mamba2(64, 2560),
    "mamba2-7b": _mamba2(64, 4096, 8, 32768),
    "mamba2-13b": _mamba2(76, 5120, 8),
    "mamba2-23b": _mamba2(84, 6656, 8),
    "mamba-in-llama-8b": _in_llama(32, list(range(1, 32, 2)), 4096, 1024, 14336, 32, 128256),
    "mamba-in-llama-8b-25": _in_llama(32, list(range(3, 32, 4)), 4096, 1024, 14336, 32, 128256),
    "mamba-in-llama-8b-0": _in_llama(32, [], 4096, 1024, 14336, 32, 128256),
    "mamba-in-llama-2l-1024": _in_llama(2, [], 1024, 512, 3584, 16, 128256),
    "mamba-in-llama-2l": _in_llama(2, [], 4096, 1024, 14336, 32, 128256),
    "mamba2-130m": _mamba2(24, 768),
    "mamba-130m": _mamba1(24, 768, 50432),
    "mamba-130m-32000": _mamba1(24, 768, 32000),
    "mamba-370m": _mamba1(48, 1024, 50432),
    "pythia-6.9b": _attention("gpt_neox", 16384, 50432),
    "pythia-160m": _attention("gpt_neox", 3072, 50432, hidden_size=768, num_hidden_layers=12, num_attention_heads=12),
    "pythia-410m": _attention("gpt_neox", 4096, 50432, hidden_size=1024, num_hidden_layers=24, num_attention_heads=16),
    "mistral-7b": _attention("mistral", 14336, 32000, num_key_value_heads=8, rms_norm_eps=1e-5),
    "nemotron-3-nano-4b": _nemotron("M-M-M-MM-M-M*-M-M*-M-M-M*-M-M-MM*-MMM-M-M-", 3136, 12544, 96),
    "qwen3.5-4b": _qwen(32, 2560, 9216),
    "tiny": _mamba2(2, 32, 1, 61, 8, 16),
    "tiny-hybrid": _in_llama(2, [1], 32, 16, 48, 4, 61),
}


def family_of(name: str) -> tuple[Family, ModelConfig]:
    """The family and config of a model. Raises: ParameterError for an unknown name."""
    if name not in DIMS:
        raise ParameterError(f"model is {name!r}; it must be one of {', '.join(DIMS)}")
    return find(*DIMS[name])


class Random(Source):
    """Tensors drawn on the device, in the order in which they are requested."""

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
    """A model of these dimensions; only its first `layers` layers, if given.

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
