"""What models of several families have in common: a config's positions, attention, an MLP, and the ends of a model."""

from typing import Any

from ssmspec_ref.attention import AttentionParams
from ssmspec_ref.layers.linear import Linear
from ssmspec_ref.layers.rotary import frequencies

from .tensors import NoOracle, Tensors
from .weights import MLP, Attention, Block, Weights


def model_of(
    c: dict[str, Any], w: Tensors, names: tuple[str, str], blocks: list[Block], eps: float, offset: float = 0.0
) -> Weights:
    """The whole model; `names` are those of the embedding and of the last norm, `offset` is added to its weight."""
    table = w[f"{names[0]}.weight"]
    head = Linear(table if c.get("tie_word_embeddings", c["model_type"] == "mamba") else w["lm_head.weight"])
    ends = c.get("eos_token_id")
    eos = tuple(ends) if isinstance(ends, list) else () if ends is None else (ends,)
    return Weights(c["model_type"], table, tuple(blocks), w.norm(names[1], eps, offset), head, eos)


def rotary_params(c: dict[str, Any], channels: int, part: float = 1.0) -> AttentionParams:
    """The rotary parameters of a config. Raises: NoOracle for scaled positions."""
    rope = c.get("rope_parameters") or c.get("rope_scaling") or {}
    if rope.get("rope_type", rope.get("type", "default")) != "default":
        raise NoOracle(f"the oracle has no positions of the kind {rope.get('rope_type')!r}")
    part = rope.get("partial_rotary_factor", c.get("partial_rotary_factor", part))
    return AttentionParams(
        frequencies=frequencies(int(channels * part), rope.get("rope_theta", c.get("rope_theta", 10000.0)))
    )


def attention(w: Tensors, p: str, params: AttentionParams, heads: int, groups: int, **more: Any) -> Attention:
    """The attention at a prefix of names."""
    q, k, v, out = (w.linear(f"{p}.{name}_proj") for name in "qkvo")
    return Attention(params, q, k, v, out, heads, groups, **more)


def mlp(w: Tensors, p: str) -> MLP:
    """The gated MLP at a prefix of names."""
    return MLP(w.linear(f"{p}.up_proj"), w.linear(f"{p}.down_proj"), w.linear(f"{p}.gate_proj"))
