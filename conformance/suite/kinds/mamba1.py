"""Layers of Mamba-1."""

import numpy as np

from ssmspec_ref.layers.layer import Mamba1Layer
from ssmspec_ref.layers.mixer import SelectiveGates, SelectiveMixer
from ssmspec_ref.layers.norm import Norm
from ssmspec_ref.selective import SelectiveParams

from ...judge.draw import STEP, Draw
from ..tables import sizes_of
from .weights import CONV, Kind, conv, eps, half, linear, scale, windowed

OPTIONS = {"D": ("head", "off"), "inner_norm": ("off", "on", "unit")} | CONV


def inner_norm(draw: Draw, name: str, channels: int) -> Norm | None:
    """The norm of dt, B or C: with weights (Jamba), or without any (FalconMamba)."""
    match draw.options["inner_norm"]:
        case "on":
            return Norm(scale(draw, f"{name} norm", channels), eps(draw))
        case "unit":
            return Norm(np.ones(channels))
        case _:
            return None


def layer(draw: Draw) -> Mamba1Layer:
    d, n, r = draw.shape("d n r")
    e = half(d)
    params = SelectiveParams(
        A=draw.rate("A", "d n"),
        D=draw.normal("D", "d") if draw.options["D"] == "head" else None,
        dt_bias=draw.normal("dt_bias", "d", 0.5, STEP[draw.case.family]),
    )
    norms = [inner_norm(draw, name, size) for name, size in (("dt", r), ("B", n), ("C", n))]
    x_proj = draw.array("x_proj", (r + 2 * n, d), d**-0.5)
    dt_proj = draw.array("dt_proj", (d, r), 0.5 * r**-0.5)
    return Mamba1Layer(
        mixer=SelectiveMixer(conv(draw, d), params, x_proj, dt_proj, *norms),
        in_proj=linear(draw, "in", 2 * d, e),
        out_proj=linear(draw, "out", e, d),
    )


def gates(draw: Draw, number: int) -> SelectiveGates:
    return SelectiveGates(draw.normal(f"z {number}", "b t d") if draw.on("z") else None)


KINDS = (
    Kind(
        "mamba1",
        {"b": 2, "t": 6, "j": 3, "d": 6, "n": 4, "r": 2, "w": 4},
        sizes_of("d2,n7,r1", "d16,n16,r3"),
        OPTIONS,
        windowed(lambda sizes: sizes["d"] % 2 == 0),
        ("d",),
        layer,
        gates,
        read=("D", "inner_norm"),
        inside={"z": ("off", "on")},
    ),
)
