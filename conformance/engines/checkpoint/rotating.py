"""Models of Mamba-3 in mamba-ssm's own form, whose config has no model_type."""

from typing import Any

from ssmspec_ref.layers.linear import Linear
from ssmspec_ref.layers.mamba3 import Mamba3Layer, mixer_of
from ssmspec_ref.layers.norm import GatedNorm
from ssmspec_ref.mamba3 import Mamba3Params

from .parts import model_of
from .tensors import NoOracle, Tensors
from .weights import MLP, Block, Weights

EPS = 1e-5
"""Of all norms: the defaults of mamba-ssm's modules."""


def mamba3(c: dict[str, Any], w: Tensors) -> Weights:
    """Blocks of one layer, each with a gated MLP if there is one. Raises: NoOracle for attention or norms with a mean."""
    if c.get("attn_layer_idx") or not c.get("rms_norm", True):
        raise NoOracle("mamba3: the oracle has neither mamba-ssm's attention nor its LayerNorm")
    s, blocks = c["ssm_cfg"], []
    for i in range(c["n_layer"]):
        p = f"backbone.layers.{i}"
        layer = _layer(w, f"{p}.mixer", s, c["d_model"])
        if c.get("d_intermediate"):
            both = w[f"{p}.mlp.fc1.weight"]
            up, gate = Linear(both[: len(both) // 2]), Linear(both[len(both) // 2 :])
            mlp = MLP(up, w.linear(f"{p}.mlp.fc2"), gate)
            blocks.append(Block(w.norm(f"{p}.norm", EPS), layer, w.norm(f"{p}.norm2", EPS), mlp))
        else:
            blocks.append(Block(w.norm(f"{p}.norm", EPS), layer))
    ends = {"model_type": "mamba3", "tie_word_embeddings": c.get("tie_embeddings", True)}
    return model_of(ends, w, ("backbone.embedding", "backbone.norm_f"), blocks, EPS)


def _layer(w: Tensors, p: str, s: dict[str, Any], width: int) -> Mamba3Layer:
    channels, state, several = s.get("headdim", 64), s.get("d_state", 128), s.get("is_mimo", False)
    if several and s.get("is_outproj_norm", False):
        raise NoOracle("mamba3: the oracle has no norm of each rank's output")
    up, gate, down = (w[f"{p}.mimo_{name}"] if several else None for name in "xzo")
    norms, biases = (w[f"{p}.B_norm.weight"], w[f"{p}.C_norm.weight"]), (w[f"{p}.B_bias"], w[f"{p}.C_bias"])
    params = Mamba3Params(
        *norms,
        *biases,
        w[f"{p}.dt_bias"],
        w[f"{p}.D"],
        up,
        gate,
        down,
        s.get("A_floor", 1e-4),
        EPS,
        "halves" if several else "neighbours",
    )
    heads = int(s.get("expand", 2) * width) // channels
    norm = GatedNorm(w[f"{p}.norm.weight"], EPS, heads, norm_first=True) if s.get("is_outproj_norm", False) else None
    mixer = mixer_of(params, channels, s.get("ngroups", 1), int(state * s.get("rope_fraction", 0.5)) // 2)
    return Mamba3Layer(mixer, w.linear(f"{p}.in_proj"), w.linear(f"{p}.out_proj"), norm)
