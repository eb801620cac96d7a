"""Layers of Mamba-3, which have no convolution."""

from collections.abc import Mapping

from ssmspec_ref.layers.mamba3 import Mamba3Layer, mixer_of
from ssmspec_ref.layers.norm import GatedNorm
from ssmspec_ref.mamba3 import Mamba3Params, Mamba3Window

from ...judge.draw import Draw
from .weights import Kind, eps, half, linear, scale, step_bias

OPTIONS = {
    "pairs": ("neighbours", "halves"),
    "maps": ("off", "on"),
    "norm": ("none", "norm_first"),
    "conv_bias": ("off",),
    "conv_act": ("off",),
    "proj_bias": ("off",),
}
"""A norm is of layers of rank 1; with several ranks there is none, whatever the option says."""
POWERS = {"p": 16, "n": 16, "f": 4}
"""Sizes of kernels that take powers of two alone."""


def layer(draw: Draw) -> Mamba3Layer:
    """The floor is that of the published layer, or one that many tokens reach."""
    g, h, p, n, r, f = draw.shape("g h p n r f")
    up, gate, down = (draw.normal(name, "h r p", 0.3, 0.75) if draw.on("maps") else None for name in ("up", "gate", "down"))
    params = Mamba3Params(
        scale(draw, "B norm", n),
        scale(draw, "C norm", n),
        draw.normal("B_bias", "h r n", 0.5, 1.0),
        draw.normal("C_bias", "h r n", 0.5, 1.0),
        step_bias(draw),
        draw.normal("D", "h"),
        up,
        gate,
        down,
        A_floor={"gentle": 2.0**-13, "normal": 0.625}[draw.case.family],
        eps=eps(draw),
        pairs=draw.options["pairs"],  # type: ignore[arg-type]
    )
    normed = draw.options.get("norm", "none") == "norm_first" and r == 1
    norm = GatedNorm(scale(draw, "norm", h * p), eps(draw), groups=h, norm_first=True) if normed else None
    total = 2 * h * p + 2 * r * g * n + 3 * h + f
    e = half(h * p)
    return Mamba3Layer(mixer_of(params, p, g, f), linear(draw, "in", total, e), linear(draw, "out", e, h * p), norm)


def gates(draw: Draw, number: int) -> Mamba3Window:
    axes = {
        "x": "b t h p",
        "dt": "b t h",
        "A": "b t h",
        "trap": "b t h",
        "angle": "b t f",
        "B": "b t r g n",
        "C": "b t r g n",
    }
    drawn = {name: draw.normal(f"{name} {number}", shape) for name, shape in axes.items()}
    return Mamba3Window(**drawn, z=draw.normal(f"z {number}", "b t h p") if draw.on("z") else None)


def ok(sizes: Mapping[str, int]) -> bool:
    pairs = sizes["n"] % 2 == 0 and 2 * sizes["f"] <= sizes["n"]
    return pairs and sizes["h"] % sizes["g"] == 0 and sizes["h"] * sizes["p"] % 2 == 0


KINDS = (
    Kind(
        "mamba3",
        {"b": 2, "t": 6, "j": 3, "g": 2, "h": 4, "p": 4, "n": 8, "r": 1, "f": 2},
        ({"g": 1, "h": 3, "f": 4}, {"r": 2, "f": 4}, {"p": 2, "n": 16, "f": 4, "r": 4}, POWERS),
        OPTIONS,
        ok,
        ("h", "p"),
        layer,
        gates,
        read=("pairs", "maps"),
        inside={"z": ("off", "on")},
    ),
)
