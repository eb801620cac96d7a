"""Weights of whole layers, drawn at random everywhere: nothing stays at the constant that an initialisation gives it."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from ssmspec_ref.conv import ConvParams
from ssmspec_ref.delta import DeltaParams
from ssmspec_ref.layer import DeltaLayer, Mamba1Layer, Mamba2Layer, RecurrentLayer
from ssmspec_ref.linear import Linear
from ssmspec_ref.mixer import DeltaMixer, SelectiveMixer, SSDMixer
from ssmspec_ref.norm import GatedNorm, Norm
from ssmspec_ref.selective import SelectiveParams
from ssmspec_ref.shapes import Array
from ssmspec_ref.ssd import SSDParams

from ..draw import STEP, Draw
from .specification import divides

SOURCES = {
    "norm": "huggingface/transformers#35943",
    "norm_groups": "huggingface/transformers#35943",
    "D": "state-spaces/mamba#887",
    "dt_limit": "huggingface/transformers#48989",
    "safe_gate": "Kimi Linear, section 4",
}
CONV = {"conv_bias": ("on", "off"), "conv_act": ("on", "off"), "proj_bias": ("off", "on")}
MAMBA2 = {
    "norm": ("gate_first", "norm_first", "none"),
    "norm_groups": ("g", "one"),
    "D": ("head", "channel", "off"),
    "dt_limit": ("off", "floor", "finite"),
    "multipliers": ("off", "on"),
} | CONV
DELTA = {"gate": ("silu", "sigmoid"), "beta": ("one", "two")} | CONV
KDA = DELTA | {"low_rank": ("off", "on"), "safe_gate": ("off", "on")}
MAMBA1 = {"D": ("head", "off"), "inner_norm": ("off", "on", "unit")} | CONV


@dataclass(frozen=True)
class Kind:
    """One kind of layer: its sizes, its options, and which sizes make sense."""

    name: str
    base: Mapping[str, int]
    rows: tuple[Mapping[str, int], ...]
    options: Mapping[str, tuple[str, ...]]
    ok: Callable[[Mapping[str, int]], bool]


def _windowed(ok: Callable[[Mapping[str, int]], bool]) -> Callable[[Mapping[str, int]], bool]:
    """Sizes that make sense, with at least two taps."""
    return lambda sizes: sizes["w"] >= 2 and ok(sizes)


WINDOWS = ({"t": 1}, {"t": 9, "j": 1}, {"b": 1, "t": 3}, {"w": 2, "j": 5}, {"b": 3, "t": 17})
KINDS = (
    Kind(
        "mamba2",
        {"b": 2, "t": 6, "j": 3, "g": 2, "h": 4, "p": 4, "n": 5, "w": 4},
        (*WINDOWS, {"g": 1, "h": 3}, {"g": 3, "h": 6, "p": 2, "n": 3}, {"p": 8, "n": 16}),
        MAMBA2,
        _windowed(lambda sizes: sizes["h"] % sizes["g"] == 0 and sizes["h"] * sizes["p"] % 2 == 0),
    ),
    Kind(
        "mamba1",
        {"b": 2, "t": 6, "j": 3, "d": 6, "n": 4, "r": 2, "w": 4},
        (*WINDOWS, {"d": 2, "n": 7, "r": 1}, {"d": 16, "n": 16, "r": 3}),
        MAMBA1,
        _windowed(lambda sizes: sizes["d"] % 2 == 0),
    ),
    Kind(
        "delta",
        {"b": 2, "t": 6, "j": 3, "g": 2, "h": 4, "k": 5, "v": 3, "w": 4},
        (*WINDOWS, {"g": 1, "h": 3}, {"g": 3, "h": 3, "k": 4, "v": 6}, {"k": 16, "v": 8}),
        DELTA,
        _windowed(divides("h", "g")),
    ),
    Kind(
        "kda",
        {"b": 2, "t": 6, "j": 3, "g": 2, "h": 2, "k": 4, "v": 4, "w": 4},
        (*WINDOWS, {"g": 3, "h": 3}, {"g": 1, "h": 1, "k": 8, "v": 8}),
        KDA,
        _windowed(lambda sizes: sizes["h"] == sizes["g"] and sizes["k"] == sizes["v"]),
    ),
)


def residual(draw: Draw) -> int:
    """The width of the residual stream: half of the inner width, as every published layer with an expansion of 2 has it."""
    s = draw.sizes
    inner = {"mamba2": ("h", "p"), "mamba1": ("d",)}.get(draw.options["kind"], ("h", "v"))
    return max(1, math.prod(s[axis] for axis in inner) // 2)


def draw(draw: Draw) -> RecurrentLayer:
    """The layer of a case."""
    match draw.options["kind"]:
        case "mamba2":
            return mamba2(draw)
        case "mamba1":
            return mamba1(draw)
        case _:
            return delta(draw)


def linear(draw: Draw, name: str, outputs: int, inputs: int, bias: bool | None = None, rank: int = 0) -> Linear:
    """Weights of size inputs^-1/2, so that outputs have the size of inputs; a bias where the layer has them."""
    down = draw.array(f"{name} down", (rank, inputs), inputs**-0.5) if rank else None
    weight = draw.array(name, (outputs, rank or inputs), (rank or inputs) ** -0.5)
    with_bias = draw.on("proj_bias") if bias is None else bias
    return Linear(weight, draw.array(f"{name} bias", (outputs,), 0.5) if with_bias else None, down)


def conv(draw: Draw, channels: int) -> ConvParams:
    weight = draw.array("conv", (channels, draw.sizes["w"]), draw.sizes["w"] ** -0.5)
    bias = draw.array("conv bias", (channels,), 0.5) if draw.on("conv_bias") else None
    return ConvParams(weight, bias, draw.on("conv_act"))


def scale(draw: Draw, name: str, channels: int) -> Array:
    """Weights of a norm, or multipliers: around 1, none of them 1."""
    return draw.array(name, (channels,), 0.3, 1.0)


def step_bias(draw: Draw) -> Array:
    """dt_bias of each head. Where decays are gentle, the first head takes steps below 1e-3, as some heads of published layers
    do (dt is initialised from 1e-3 on): a floor that an implementation puts under dt shows there."""
    bias = draw.normal("dt_bias", "h", 0.5, STEP[draw.case.family])
    if draw.case.family == "gentle":
        bias[0] = -10.0
    return bias


def eps(draw: Draw) -> float:
    """eps of a norm: the usual one, and one that no implementation would assume."""
    return {"gentle": 1e-5, "normal": 3e-4}[draw.case.family]


def mamba2(draw: Draw) -> Mamba2Layer:
    s, e = draw.sizes, residual(draw)
    inner, packed = s["h"] * s["p"], s["h"] * s["p"] + 2 * s["g"] * s["n"]
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


def inner_norm(draw: Draw, name: str, channels: int) -> Norm | None:
    """The norm of dt, B or C: with weights (Jamba), or without any (FalconMamba)."""
    match draw.options["inner_norm"]:
        case "on":
            return Norm(scale(draw, f"{name} norm", channels), eps(draw))
        case "unit":
            return Norm(np.ones(channels))
        case _:
            return None


def mamba1(draw: Draw) -> Mamba1Layer:
    s, e = draw.sizes, residual(draw)
    d, n, r = s["d"], s["n"], s["r"]
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


def delta(draw: Draw) -> DeltaLayer:
    s, e, channelwise = draw.sizes, residual(draw), draw.options["kind"] == "kda"
    g, h, k, v = s["g"], s["h"], s["k"], s["v"]
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
