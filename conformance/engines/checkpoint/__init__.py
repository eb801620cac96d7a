"""Read a checkpoint for the oracle: config.json and safetensors, with NumPy only, in float64.

The reader of the tested engine is never used, ours included: two readers with the same mistake would agree. A family that is
missing here has no oracle, and *same model?* is not tested for it.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .delta import kimi_linear, qwen3_5, qwen3_next
from .falcon import falcon_h1
from .granite import granite_hybrid
from .mamba import bamba, mamba1, mamba2, nemotron_h
from .rotating import mamba3
from .tensors import NoOracle, Tensors
from .transformer import lfm2, llama
from .weights import MLP, Attention, Block, Weights

__all__ = ["MLP", "Attention", "Block", "NoOracle", "Weights", "read"]

FAMILIES: dict[str, Callable[[dict[str, Any], Tensors], Weights]] = {
    "mamba": mamba1,
    "mamba2": mamba2,
    "bamba": bamba,
    "falcon_h1": falcon_h1,
    "granitemoehybrid": granite_hybrid,
    "nemotron_h": nemotron_h,
    "qwen3_5_text": qwen3_5,
    "qwen3_next": qwen3_next,
    "mamba3": mamba3,
    "llama": llama,
    "kimi_linear": kimi_linear,
    "lfm2": lfm2,
}


def read(folder: Path) -> Weights:
    """Read a checkpoint folder. Raises: NoOracle for a family, field or file that cannot be read."""
    try:
        config = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise NoOracle(f"{folder / 'config.json'} cannot be read: {error}") from error
    inner = config.get("ssm_cfg")
    own = isinstance(inner, dict) and inner.get("layer") == "Mamba3"
    family = config.get("model_type", "mamba3" if own else None)
    if family not in FAMILIES:
        raise NoOracle(f"no oracle of the family {family!r}; there is one of {', '.join(FAMILIES)}")
    try:
        return FAMILIES[family](config, Tensors(folder))
    except (KeyError, TypeError) as error:
        raise NoOracle(f"{family}: the config lacks or has in another form: {error}") from error
