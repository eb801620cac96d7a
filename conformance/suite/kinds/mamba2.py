"""Layers of Mamba-2."""

from dataclasses import replace

from ssmspec_ref.layers.layer import Mamba2Layer
from ssmspec_ref.layers.mixer import Mixer, SSDGates, SSDMixer
from ssmspec_ref.layers.norm import GatedNorm
from ssmspec_ref.ssd import SSDParams

from ...judge.draw import Draw
from ..tables import case_of, sizes_of
from .weights import CONV, Kind, conv, eps, half, linear, scale, step_bias, windowed

OPTIONS = {
    "norm": ("gate_first", "norm_first", "none"),
    "norm_groups": ("g", "one"),
    "D": ("head", "channel", "off"),
    "dt_limit": ("off", "floor", "finite"),
    "multipliers": ("off", "on"),
} | CONV
WIDER = case_of("g4,h8/widened=on")
"""Two groups of B repeated to four, so that the order of repetition matters."""


def layer(draw: Draw) -> Mamba2Layer:
    s = draw.sizes
    inner, packed = s["h"] * s["p"], s["h"] * s["p"] + 2 * s["g"] * s["n"]
    e = half(inner)
    params = SSDParams(
        A=draw.rate("A", "h"),
        D={"head": draw.normal("D", "h"), "channel": draw.normal("D", "h p"), "off": None}[draw.options["D"]],
        dt_bias=step_bias(draw),
        dt_limit=draw.dt_limit,
    )
    groups = s["g"] if draw.options["norm_groups"] == "g" else 1
    norm = GatedNorm(scale(draw, "norm", inner), eps(draw), groups, draw.options["norm"] == "norm_first")
    return Mamba2Layer(
        mixer=SSDMixer(conv(draw, packed), params, s["p"], s["n"], s["g"]),
        in_proj=linear(draw, "in", inner + packed + s["h"], e),
        out_proj=linear(draw, "out", e, inner),
        norm=None if draw.options["norm"] == "none" else norm,
        input_multiplier=0.75 if draw.on("multipliers") else 1.0,
        multipliers=scale(draw, "multipliers", inner + packed + s["h"]) if draw.on("multipliers") else None,
    )


def gates(draw: Draw, number: int) -> SSDGates:
    z = draw.normal(f"z {number}", "b t h p") if draw.on("z") else None
    return SSDGates(draw.array(f"dt {number}", draw.shape("b t h"), 0.5), z)


def widened(draw: Draw, layer: SSDMixer) -> Mixer:
    """With x of g heads and B of g / 2 groups or one, repeated after the convolution, if the case says so."""
    if not draw.on("widened"):
        return layer
    B_groups = layer.groups // 2 if layer.groups > 2 and layer.groups % 2 == 0 else 1
    packed = layer.groups * layer.channels + (B_groups + layer.groups) * layer.state
    bias = None if layer.conv.bias is None else layer.conv.bias[:packed]
    conv = replace(layer.conv, weight=layer.conv.weight[:packed], bias=bias)
    return replace(layer, conv=conv, x_groups=layer.groups, B_groups=B_groups)


KINDS = (
    Kind(
        "mamba2",
        {"b": 2, "t": 6, "j": 3, "g": 2, "h": 4, "p": 4, "n": 5, "w": 4},
        sizes_of("g1,h3", "g3,h6,p2,n3", "p8,n16"),
        OPTIONS,
        windowed(lambda sizes: sizes["h"] % sizes["g"] == 0 and sizes["h"] * sizes["p"] % 2 == 0),
        ("h", "p"),
        layer,
        gates,
        read=("D", "dt_limit"),
        inside={"z": ("off", "on"), "widened": ("off", "on")},
        between=widened,
        further=(WIDER,),
    ),
)
