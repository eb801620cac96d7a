"""Qwen3-Next, dense: the layers of Qwen3.5, with the projections of Gated DeltaNet in two matrices.

A layer has experts unless `num_experts` is 0, `mlp_only_layers` names it, or `decoder_sparse_step` does not divide its
number, counted from 1; all layers must be dense.
Source: configuration_qwen3_next.py and modeling_qwen3_next.py of transformers 5.23.0.
"""

from ..errors import ConfigRefused
from ..models.config import ModelConfig
from . import qwen3_5
from .fields import Fields

OF_EXPERTS = (
    "moe_intermediate_size", "norm_topk_prob", "num_experts_per_tok", "output_router_logits", "router_aux_loss_coef",
    "shared_expert_intermediate_size",
)  # fmt: skip
"""Fields without effect in a model that has no experts."""


def read(f: Fields) -> ModelConfig:
    layers, experts = f.layers(), f.count("num_experts", 512, least=0)
    every, dense = f.count("decoder_sparse_step", 1), f.places("mlp_only_layers", layers)
    sparse = [i for i in range(layers) if experts and i not in dense and (i + 1) % every == 0]
    if sparse:
        raise ConfigRefused(
            f"{f.family}: num_experts is {experts} and makes layers {repr(sparse)[:80]} (from 0) mixtures of experts, which "
            "are not supported; num_experts must be 0, or mlp_only_layers must name all layers"
        )
    f.ignore(*OF_EXPERTS)
    return qwen3_5.hybrid(f, 2, interleaved=True)


assemble = qwen3_5.assemble
