"""SSD (Mamba-2): one token, several tokens, tokens with no-ops, a tree."""

from ssmspec_ref import error_bounds, ssd
from ssmspec_ref.layers.mixer import MixerInputs, SSDGates, SSDMixer
from ssmspec_ref.ssd import SSDParams, SSDWindow

from ...judge.draw import Draw
from ..kinds.mamba2 import KINDS
from ..tables import divides
from .recurrence import Recurrence, beside, handing_on
from .table import Table

TABLE = Table(
    base={"b": 2, "t": 7, "g": 2, "h": 6, "p": 5, "n": 4},
    rows=(
        {"t": 1},
        {"g": 1, "h": 3},
        {"g": 4, "h": 4, "n": 7},
        {"b": 1, "t": 65, "g": 3},
        {"b": 3, "t": 33, "p": 1, "n": 16},
        {"b": 5, "t": 2, "n": 1},
        {"p": 17, "n": 33},
    ),
    state=("p", "n"),
    beyond=(({"p": 130, "n": 256}, {}, "gentle"), ({"g": 8, "h": 80}, {}, "gentle")),
    some=(
        ({"b": 1, "t": 3, "g": 1, "h": 2, "p": 64, "n": 128}, {}, "gentle"),
        ({"b": 1, "t": 2, "g": 1, "h": 2, "p": 72, "n": 100}, {}, "gentle"),
        ({"g": 3, "h": 18, "p": 8, "n": 8}, {}, "gentle"),  # a square state, whose transpose has the same shape
    ),
    longer=(({}, {"z": "on"}, "wide"),),  # gates at both limits of their activation
    model=(({"b": 1, "t": 2, "g": 2, "h": 32, "p": 64, "n": 128}, {}, "gentle"),),
)
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
    TABLE, OPTIONS, SOURCES, layers=KINDS, ok=divides("h", "g"), alone=alone, parts=parts,
)  # fmt: skip
