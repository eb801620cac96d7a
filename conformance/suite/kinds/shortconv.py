"""Layers of LFM2 that consist of a short convolution between two gates."""

from ssmspec_ref.layers.shortconv import ShortConvGates, ShortConvLayer, mixer_of
from ssmspec_ref.shortconv import ShortConvParams

from ...judge.draw import Draw
from ..tables import sizes_of
from .weights import Kind, half, linear, windowed

OPTIONS = {"conv_bias": ("off", "on"), "conv_act": ("off",), "proj_bias": ("off", "on")}
"""No layer of this kind has an activation after its convolution: the gate C takes its place."""


def layer(draw: Draw) -> ShortConvLayer:
    """In the family normal the taps are twice as large: there is no decay that a family could change."""
    (d, w), size = draw.shape("d w"), {"gentle": 1.0, "normal": 2.0}[draw.case.family]
    weight = draw.array("taps", (d, w), size * w**-0.5)
    mixer = mixer_of(ShortConvParams(weight, draw.array("taps bias", (d,), 0.5) if draw.on("conv_bias") else None))
    return ShortConvLayer(mixer, linear(draw, "in", 3 * d, half(d)), linear(draw, "out", half(d), d))


def gates(draw: Draw, number: int) -> ShortConvGates:
    return ShortConvGates(*(draw.normal(f"{name} {number}", "b t d") for name in ("B", "C", "x")))


KINDS = (
    Kind(
        "shortconv",
        {"b": 2, "t": 6, "j": 3, "d": 6, "w": 3},
        sizes_of("d1", "d33,w4", "w6"),
        OPTIONS,
        windowed(lambda sizes: True),
        ("d",),
        layer,
        gates,
    ),
)
