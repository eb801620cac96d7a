"""SSD (Mamba-2): one token, several tokens, tokens with no-ops, a tree."""

from ssmspec_ref import error_bounds, ssd
from ssmspec_ref.layers.mixer import MixerInputs, SSDGates, SSDMixer
from ssmspec_ref.ssd import SSDParams, SSDWindow

from ...judge.draw import Draw
from ..kinds.mamba2 import KINDS
from ..production import LONGER, every, heads, lengths, tiles
from ..tables import Further, divides
from .recurrence import Recurrence, beside, handing_on

BASE = {"b": 2, "t": 7, "g": 2, "h": 6, "p": 5, "n": 4}
ROWS = (
    {"t": 1},
    {"g": 1, "h": 3},
    {"g": 4, "h": 4, "n": 7},
    {"b": 1, "t": 65, "g": 3},
    {"b": 3, "t": 33, "p": 1, "n": 16},
    {"b": 5, "t": 2, "n": 1},
    {"p": 17, "n": 33},
)
LARGEST: tuple[Further, ...] = (
    ({"b": 1, "t": 2, "g": 1, "h": 1, "p": 130, "n": 256}, {}, "gentle"),
    ({"b": 1, "t": 2, "g": 8, "h": 80, "p": 2, "n": 2}, {}, "gentle"),
    ({"b": 65, "t": 2, "g": 1, "h": 1, "p": 2, "n": 2}, {}, "gentle"),
)
"""More than one tile of channels and states, of heads, of rows."""
TILES: tuple[Further, ...] = (
    ({"b": 1, "t": 3, "g": 1, "h": 2, "p": 64, "n": 128}, {}, "gentle"),
    ({"b": 1, "t": 2, "g": 1, "h": 2, "p": 72, "n": 100}, {}, "gentle"),
    ({"b": 17, "t": 2}, {}, "gentle"),
    ({"g": 3, "h": 18, "p": 8, "n": 8}, {}, "gentle"),
    *LARGEST,
)
"""Sizes between these; and a square state, whose transpose has the same shape."""
LONG: Further = ({"b": 1, "t": 520, "g": 1, "h": 1, "p": 2, "n": 2}, {}, "gentle")
FURTHER = (*TILES, ({"b": 1, "t": 257}, {}, "gentle"), ({"b": 1, "t": 256}, {}, "gentle"), LONG, ({}, {"z": "on"}, "wide"))
"""Sizes with more tokens too; full tiles of tokens; gates at both limits of their activation."""
TINY = {"g": 1, "h": 1, "p": 2, "n": 3}
PRODUCTION: tuple[Further, ...] = (
    *heads({"p": 2, "n": 3}),
    *tiles("p", "n", {"g": 1, "h": 2}),
    ({"b": 1, "t": 2, "g": 2, "h": 32, "p": 64, "n": 128}, {}, "gentle"),
)
"""One as a model has them."""
RUNS: tuple[Further, ...] = tuple(lengths(TINY))
DEEP: tuple[Further, ...] = (*lengths(TINY, LONGER), *every({"g": 1}, ("h", "p", "n")))
OPTIONS = {
    "D": ("head", "channel", "off"),
    "z": ("off", "on"),
    "dt_bias": ("on", "off"),
    "softplus": ("on", "off"),
    "dt_limit": ("off", "floor", "finite"),
}
SOURCES = {
    "": "arXiv:2405.21060, section 3",
    "D": "state-spaces/mamba#887",
    "z": "state-spaces/mamba#66",
    "dt_bias": "huggingface/transformers#35943",
    "dt_limit": "huggingface/transformers#48989",
    "live": "Snakes and Ladders, section 3.1",
    "tree": "STree, section 3",
}


def params(draw: Draw) -> SSDParams:
    D = {"head": "h", "channel": "h p", "off": ""}[draw.options["D"]]
    return SSDParams(
        A=draw.rate("A", "h"),
        D=draw.normal("D", D) if D else None,
        dt_bias=draw.step_bias("dt_bias", "h") if draw.on("dt_bias") else None,
        dt_softplus=draw.on("softplus"),
        dt_limit=draw.dt_limit,
    )


def window(draw: Draw) -> SSDWindow:
    return SSDWindow(
        x=draw.normal("x", "b t h p"),
        dt=draw.step("dt", "b t h"),
        B=draw.normal("B", "b t g n"),
        C=draw.normal("C", "b t g n"),
        z=draw.gate("z", "b t h p") if draw.on("z") else None,
    )


def alone(window: SSDWindow, params: SSDParams) -> tuple[SSDMixer, MixerInputs]:
    """A layer whose convolution passes x, B and C through unchanged."""
    pre, sizes = beside(window.x, window.B, window.C), (window.x.shape[3], window.B.shape[3], window.B.shape[2])
    return SSDMixer(handing_on(pre), params, *sizes), MixerInputs(pre, SSDGates(window.dt, window.z))


def parts(layer: SSDMixer) -> tuple[tuple[int, int], ...]:
    """x | B | C of the convolution: heads or groups, and the channels of each."""
    x, B = layer.x_groups or len(layer.params.A), layer.B_groups or layer.groups
    return (x, layer.channels), (B, layer.state), (layer.groups, layer.state)


RECURRENCE: Recurrence = Recurrence(
    "ssd", ssd, error_bounds.ssd, window, params, "b h p n", ("y", "b t h p"),
    BASE, ROWS, TILES, FURTHER, OPTIONS, SOURCES, layers=KINDS,
    ok=divides("h", "g"), alone=alone, grouped=ROWS[1:3] + ROWS[6:], largest=LARGEST,
    tiny=TINY, production=PRODUCTION, runs=RUNS, deep=DEEP, parts=parts,
)  # fmt: skip
