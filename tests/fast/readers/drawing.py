"""Configs that are almost right: of every family, with some fields set to any JSON value."""

import copy
import math
from typing import Any

from hypothesis import strategies as st

from ssmspec_fast.errors import CheckpointError
from ssmspec_fast.families import find
from ssmspec_fast.families.source import Plan

from ..models import NAMES, data

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 300),
    st.sampled_from((10**9, 2**31, 2**63, 10**400, -(10**400), 1e308, -0.0, 5e-324, math.inf, -math.inf, math.nan)),
    st.floats(),
    st.sampled_from(("", "x", "auto", "silu", "default", "linear", "llama3", "mamba", "*", "0.5", "\ud800")),
    st.text(max_size=4),
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=3), max_leaves=6
)
ROPE = (
    "rope_type", "type", "rope_theta", "partial_rotary_factor", "mrope_section", "factor", "low_freq_factor",
    "high_freq_factor", "original_max_position_embeddings",
)  # fmt: skip
FIELDS = (
    "model_type", "vocab_size", "hidden_size", "num_hidden_layers", "eos_token_id", "dtype", "torch_dtype", "head_dim",
    "rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor", "time_step_limit", "layer_types",
    "layers_block_type", "hybrid_override_pattern", "attn_layer_indices", "ssm_multipliers", "mlp_multipliers",
    "max_position_embeddings", "tie_word_embeddings", "rms_norm_eps", "layer_norm_epsilon", "num_experts",
)  # fmt: skip


@st.composite
def configs(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """A config.json, and a mamba_config.json or None."""
    config, extra = copy.deepcopy(data(draw(st.sampled_from(NAMES))))
    for _ in range(draw(st.integers(1, 4))):
        records = [config, *([] if extra is None else [extra, extra["ssm_cfg"]])]
        record = draw(st.sampled_from(records))
        inner = record.get("rope_parameters")
        if isinstance(inner, dict) and draw(st.booleans()):
            inner[draw(st.sampled_from((*inner, *ROPE)))] = draw(VALUES)
        elif isinstance(record, dict):
            record[draw(st.sampled_from((*record, *FIELDS)))] = draw(VALUES)
        if extra is not None and not isinstance(extra.get("ssm_cfg"), dict):
            break
    return config, extra


def settled(config: Any, extra: Any = None) -> str:
    """What becomes of a config: `read`, or the name of the error that refuses it. Any other error is raised."""
    import torch

    try:
        family, made = find(config, extra)
        family.assemble(made, Plan(torch.float32))
    except CheckpointError as error:
        str(error).encode(errors="backslashreplace")
        return type(error).__name__
    return "read"
