"""The selective scan (Mamba-1): one token, several tokens, tokens with no-ops, a tree."""

from ssmspec_ref import error_bounds, selective
from ssmspec_ref.selective import SelectiveParams, SelectiveWindow

from ...judge.draw import Draw
from ..kinds.mamba1 import KINDS
from ..tables import cases_of, sizes_of
from .recurrence import Recurrence
from .table import Table

TABLE = Table(
    base={"b": 2, "t": 7, "d": 6, "n": 4},
    rows=sizes_of("t1", "d1,n7", "b1,t65", "b5,t2,n1", "d33,n16"),
    state=("d", "n"),
    beyond=cases_of("d260"),
    some=cases_of(
        "d130,n16,t3",
        "d8,n8",  # a square state, whose transpose has the same shape
        "d3,n72,t3",
    ),
    longer=cases_of("z=on/wide"),  # gates at both limits of their activation
)
OPTIONS = {"D": ("on", "off"), "z": ("off", "on"), "dt_bias": ("on", "off"), "softplus": ("on", "off")}
SOURCES = {
    "": "arXiv:2312.00752, algorithm 2",
    "D": "state-spaces/mamba#887",
    "dt_bias": "tenstorrent/tt-metal#9910",
    "live": "Snakes and Ladders, section 3.1",
    "tree": "STree, section 3",
}


def params(draw: Draw) -> SelectiveParams:
    return SelectiveParams(
        A=draw.rate("A", "d n"),
        D=draw.normal("D", "d") if draw.on("D") else None,
        dt_bias=draw.step_bias("dt_bias", "d") if draw.on("dt_bias") else None,
        dt_softplus=draw.on("softplus"),
    )


def window(draw: Draw) -> SelectiveWindow:
    return SelectiveWindow(
        x=draw.normal("x", "b t d"),
        dt=draw.step("dt", "b t d"),
        B=draw.normal("B", "b t n"),
        C=draw.normal("C", "b t n"),
        z=draw.gate("z", "b t d") if draw.on("z") else None,
    )


RECURRENCE: Recurrence = Recurrence(
    "selective", selective, error_bounds.selective, window, params, "b d n", ("y", "b t d"),
    TABLE, OPTIONS, SOURCES, layers=KINDS,
)  # fmt: skip
