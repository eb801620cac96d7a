"""Layers of Gated DeltaNet, and of Kimi Delta Attention, whose decay is per channel."""

from functools import partial

import numpy as np

from ssmspec_ref.delta import DeltaParams
from ssmspec_ref.layers.layer import DeltaLayer
from ssmspec_ref.layers.mixer import DeltaGates, DeltaMixer
from ssmspec_ref.layers.norm import GatedNorm

from ...judge.draw import STEP, Draw, stored
from ..tables import divides, sizes_of
from .weights import CONV, Kind, conv, eps, half, linear, scale, windowed

OPTIONS = {"gate": ("silu", "sigmoid"), "beta": ("one", "two")} | CONV


def layer(draw: Draw, channelwise: bool) -> DeltaLayer:
    g, h, k, v = draw.shape("g h k v")
    e = half(h * v)
    packed, gates = 2 * g * k + h * v, h * k if channelwise else h
    rank = v if channelwise and draw.on("low_rank") else 0
    return DeltaLayer(
        mixer=DeltaMixer(conv(draw, packed), DeltaParams(), g, h, k, v),
        qkv_proj=linear(draw, "qkv", packed, e),
        z_proj=linear(draw, "z", h * v, e, rank=rank),
        a_proj=linear(draw, "a", gates, e, bias=False, rank=rank),
        b_proj=linear(draw, "b", h, e, bias=False),
        A=draw.rate("A", "h"),
        dt_bias=draw.normal("dt_bias", "h k" if channelwise else "h", 0.5, STEP[draw.case.family]),
        norm=GatedNorm(scale(draw, "norm", v), eps(draw), norm_first=True, gate=draw.options["gate"]),  # type: ignore[arg-type]
        out_proj=linear(draw, "out", e, h * v),
        beta_scale=2.0 if draw.options["beta"] == "two" else 1.0,
        lower_bound=-5.0 if channelwise and draw.on("safe_gate") else None,
    )


def gates(draw: Draw, number: int, channelwise: bool) -> DeltaGates:
    gate, heads = draw.shape("b t h k" if channelwise else "b t h"), draw.shape("b t h")
    g = -np.logaddexp(0.0, draw.array(f"g {number}", gate, 0.5, STEP[draw.case.family]))
    beta = 1 / (1 + np.exp(-draw.array(f"beta {number}", heads)))
    return DeltaGates(stored(g, draw.contract.io), stored(beta, draw.contract.io))


KINDS = (
    Kind(
        "delta",
        {"b": 2, "t": 6, "j": 3, "g": 2, "h": 4, "k": 5, "v": 3, "w": 4},
        sizes_of("g1,h3", "g3,h3,k4,v6", "k16,v8"),
        OPTIONS,
        windowed(divides("h", "g")),
        ("h", "v"),
        partial(layer, channelwise=False),
        partial(gates, channelwise=False),
    ),
    Kind(
        "kda",
        {"b": 2, "t": 6, "j": 3, "g": 2, "h": 2, "k": 4, "v": 4, "w": 4},
        sizes_of("g3,h3", "g1,h1,k8,v8"),
        OPTIONS | {"low_rank": ("off", "on"), "safe_gate": ("off", "on")},
        windowed(lambda sizes: sizes["h"] == sizes["g"] and sizes["k"] == sizes["v"]),
        ("h", "v"),
        partial(layer, channelwise=True),
        partial(gates, channelwise=True),
    ),
)
