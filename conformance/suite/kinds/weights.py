"""Weights of whole layers, all random: none keeps a constant from initialisation."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ssmspec_ref.conv import ConvParams
from ssmspec_ref.layers.layer import RecurrentLayer
from ssmspec_ref.layers.linear import Linear
from ssmspec_ref.layers.mixer import Mixer
from ssmspec_ref.records import Record
from ssmspec_ref.shapes import Array

from ...judge.draw import STEP, Draw
from ..tables import Further, sizes_of

CONV: dict[str, tuple[str, ...]] = {"conv_bias": ("on", "off"), "conv_act": ("on", "off"), "proj_bias": ("off", "on")}
WINDOWS = sizes_of("t1", "t9,j1", "b1,t3", "w2,j5", "b3,t17")
"""Rows of the table for every kind."""
SOURCES = {
    "norm": "huggingface/transformers#35943",
    "norm_groups": "huggingface/transformers#35943",
    "D": "state-spaces/mamba#887",
    "dt_limit": "huggingface/transformers#48989",
    "safe_gate": "Kimi Linear, section 4",
}


@dataclass(frozen=True, eq=False)
class Kind:
    """One kind of layer: its sizes, its own table rows, its options, which sizes are valid, and how it is drawn.

    `inner` are the axes of its inner width. `gates(draw, number)` draws the inputs of window `number` that bypass the
    convolution. `read` are the options that act between its projections; `inside` those that a mixer may have but no layer
    with projections, which `between` adds; `further` are cases of windows that only this kind has.
    """

    name: str
    base: Mapping[str, int]
    rows: tuple[Mapping[str, int], ...]
    options: Mapping[str, tuple[str, ...]]
    ok: Callable[[Mapping[str, int]], bool]
    inner: tuple[str, ...]
    layer: Callable[[Draw], RecurrentLayer]
    gates: Callable[[Draw, int], Record]
    read: tuple[str, ...] = ()
    inside: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    between: Callable[[Draw, Any], Mixer] = lambda draw, mixer: mixer
    further: tuple[Further, ...] = ()

    @property
    def narrow(self) -> tuple[Mapping[str, int], ...]:
        """The row of a convolution of two taps, if there is a convolution."""
        return sizes_of("w2") if "w" in self.base else ()

    def residual(self, sizes: Mapping[str, int]) -> int:
        """The width of the residual stream."""
        return half(math.prod(sizes[axis] for axis in self.inner))


def half(inner: int) -> int:
    """The width of the residual stream: half of the inner width, as in every published layer with an expansion of 2."""
    return max(1, inner // 2)


def windowed(ok: Callable[[Mapping[str, int]], bool]) -> Callable[[Mapping[str, int]], bool]:
    """Valid sizes with at least two taps."""
    return lambda sizes: sizes["w"] >= 2 and ok(sizes)


def linear(draw: Draw, name: str, outputs: int, inputs: int, bias: bool | None = None, rank: int = 0) -> Linear:
    """Weights of scale inputs^-1/2, so that outputs have the scale of inputs; with a bias if the layer has one."""
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
    """dt_bias of each head. With gentle decays the first head has steps below 1e-3, like some heads of published layers (dt
    is initialised from 1e-3 on), so that a floor under dt changes the result."""
    bias = draw.normal("dt_bias", "h", 0.5, STEP[draw.case.family])
    if draw.case.family == "gentle":
        bias[0] = -10.0
    return bias


def eps(draw: Draw) -> float:
    """eps of a norm: the usual one, and an unusual one that no implementation would assume."""
    return {"gentle": 1e-5, "normal": 3e-4}[draw.case.family]
