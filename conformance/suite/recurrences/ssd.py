"""SSD (Mamba-2): one token, several tokens, tokens with no-ops, a tree."""

from ssmspec_ref import error_bounds, ssd
from ssmspec_ref.layers.mixer import MixerInputs, SSDGates, SSDMixer
from ssmspec_ref.ssd import SSDParams, SSDWindow

from ...judge.draw import Draw
from ..kinds.mamba2 import KINDS
from ..tables import cases_of, divides, sizes_of
from .recurrence import Recurrence, beside, handing_on
from .table import Table

TABLE = Table(
    base={"b": 2, "t": 7, "g": 2, "h": 6, "p": 5, "n": 4},
    rows=sizes_of("t1", "g1,h3", "g4,h4,n7", "b1,t65,g3", "b3,t33,p1,n16", "b5,t2,n1", "p17,n33"),
    state=("p", "n"),
    beyond=cases_of("p130,n256", "g8,h80"),
    some=cases_of(
        "b1,t3,g1,h2,p64,n128",
        "b1,t2,g1,h2,p72,n100",
        "g3,h18,p8,n8",  # a square state, whose transpose has the same shape
    ),
    longer=cases_of("z=on/wide"),  # gates at both limits of their activation
    model=cases_of("b1,t2,g2,h32,p64,n128"),
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
