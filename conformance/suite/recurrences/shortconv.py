"""The short convolution (LFM2): one token, several tokens, tokens with no-ops, a tree."""

from ssmspec_ref import error_bounds, shortconv
from ssmspec_ref.layers.mixer import MixerInputs
from ssmspec_ref.layers.shortconv import ShortConvGates, ShortConvMixer, mixer_of
from ssmspec_ref.shortconv import ShortConvParams, ShortConvWindow

from ...judge.draw import Draw
from ..kinds.shortconv import KINDS
from ..production import EDGES, every, tiles
from ..tables import case_of, cases_of, sizes_of
from .recurrence import Recurrence
from .table import Table

NARROW = (1, 2, 3, 4, 5, 6, 7) * 2
TABLE = Table(
    base={"b": 2, "t": 7, "d": 5, "q": 2},
    rows=sizes_of(
        "t1", "d1,q1", "q4,t2", "b1,t65", "b5,t2,q3", "d33,q3", "d3,q3"
    ),  # fewer tokens than columns, as many, and more; a square state, whose transpose has the same shape
    least={"d": 2, "q": 2},
    beyond=cases_of("d260"),
    some=cases_of("d130,t3"),
    model=(
        *(({"b": 1, "t": 2, "d": d, "q": q}, {}, "gentle") for d, q in zip(EDGES, NARROW, strict=False)),
        case_of("b1,t2,d2048"),  # the channels of LFM2-1.2B
    ),
    deepest=(*every({"q": 2}, ("d", "b")), *tiles("d", "q", {}, (1, 2, 3, 4, 7, 8))),
    narrow=sizes_of("d1,q1", "q4"),
)
OPTIONS = {"bias": ("off", "on")}
SOURCES = {
    "": "arXiv:2511.23404 (LFM2, the gated short convolution)",
    "bias": "conv_bias of transformers' Lfm2Config",
    "live": "Snakes and Ladders, section 3.1",
    "tree": "STree, section 3",
}


def params(draw: Draw) -> ShortConvParams:
    d, width = draw.sizes["d"], draw.sizes["q"] + 1
    return ShortConvParams(draw.array("taps", (d, width), width**-0.5), draw.normal("bias", "d") if draw.on("bias") else None)


def window(draw: Draw) -> ShortConvWindow:
    return ShortConvWindow(*(draw.normal(name, "b t d") for name in ("B", "C", "x")))


def alone(window: ShortConvWindow, params: ShortConvParams) -> tuple[ShortConvMixer, MixerInputs]:
    """A layer whose convolution of no channels has no inputs."""
    return mixer_of(params), MixerInputs(window.x[..., :0], ShortConvGates(window.B, window.C, window.x))


RECURRENCE: Recurrence = Recurrence(
    "shortconv", shortconv, error_bounds.shortconv, window, params, "b d q", ("y", "b t d"),
    TABLE, OPTIONS, SOURCES, layers=KINDS, alone=alone,
)  # fmt: skip
