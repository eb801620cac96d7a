"""The supported families of checkpoints: for each, its config, and its tensors taken from a source."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from ..errors import ConfigRefused
from ..models.config import ModelConfig
from ..models.model import Model
from . import bamba, gpt_neox, granite_hybrid, kimi_linear, lfm2, llama, mamba, mamba3, nemotron_h, qwen3_5, qwen3_next
from .fields import Fields
from .source import Source


class Family(NamedTuple):
    """config.json -> ModelConfig, and ModelConfig -> Model from a source."""

    read: Callable[[Fields], ModelConfig]
    assemble: Callable[[ModelConfig, Source], Model]


FAMILIES = {
    "mamba": Family(mamba.read_mamba, mamba.assemble),
    "mamba2": Family(mamba.read_mamba2, mamba.assemble),
    "bamba": Family(bamba.read_bamba, bamba.assemble),
    "falcon_h1": Family(bamba.read_falcon_h1, bamba.assemble),
    "granitemoehybrid": Family(granite_hybrid.read, granite_hybrid.assemble),
    "nemotron_h": Family(nemotron_h.read, nemotron_h.assemble),
    "mamba3_lm": Family(mamba3.read, mamba3.assemble),
    "qwen3_5_text": Family(qwen3_5.read, qwen3_5.assemble),
    "qwen3_next": Family(qwen3_next.read, qwen3_next.assemble),
    "kimi_linear": Family(kimi_linear.read, kimi_linear.assemble),
    "lfm2": Family(lfm2.read, lfm2.assemble),
    "llama": Family(llama.read, llama.assemble),
    "mistral": Family(llama.read, llama.assemble),
    "gpt_neox": Family(gpt_neox.read, gpt_neox.assemble),
}
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_intermediate_size")


def find(
    data: dict[str, Any], extra: dict[str, Any] | None = None, accepted: Iterable[str] = ()
) -> tuple[Family, ModelConfig]:
    """The family of a config.json and the model that it describes; `extra` is MambaInLlama's mamba_config.json, and unknown
    fields that are `accepted` are passed over.

    Raises: ConfigRefused, by model_type and field.
    """
    name = data.get("model_type", named(data))
    if not isinstance(name, str) or name not in FAMILIES:
        experts = next((field for field in EXPERTS if data.get(field)), None)
        why = f"; field {experts} makes it a mixture of experts, which is not supported" if experts else ""
        raise ConfigRefused(f"model_type is {repr(name)[:80]}; supported: {', '.join(FAMILIES)}{why}")
    fields = Fields(name, {k: v for k, v in data.items() if k != "model_type"}, accepted)
    if extra is None:
        config = FAMILIES[name].read(fields)
    elif name in ("llama", "mistral"):
        config = llama.read_mamba_in_llama(fields, extra)
    else:
        raise ConfigRefused(
            f"there is a mamba_config.json, but model_type is {name!r}; MambaInLlama is built on llama or mistral"
        )
    fields.check_accepted()
    return FAMILIES[name], config


def named(data: dict[str, Any]) -> str | None:
    """The family of a config without model_type, which mamba-ssm writes: its recurrence is named in `ssm_cfg`."""
    ssm = data.get("ssm_cfg")
    return "mamba3_lm" if isinstance(ssm, dict) and ssm.get("layer") == "Mamba3" else None
