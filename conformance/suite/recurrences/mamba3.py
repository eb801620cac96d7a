"""Mamba-3: one token, several tokens, tokens with no-ops, a tree; inputs of one rank (SISO) or of several (MIMO)."""

import numpy as np

from ssmspec_ref import error_bounds, mamba3
from ssmspec_ref.layers.mamba3 import Mamba3Mixer, mixer_of
from ssmspec_ref.layers.mixer import MixerInputs
from ssmspec_ref.mamba3 import Mamba3Params, Mamba3Window
from ssmspec_ref.shapes import Array

from ...judge.draw import RATE, Draw, stored
from ..kinds.mamba3 import KINDS
from ..tables import case_of, cases_of, sizes_of
from .recurrence import Recurrence
from .table import Sizes, Table

ROWS = sizes_of("t1", "g1,h3,f4", "r4", "r2,f4,p5", "b1,t65", "b5,t2,n4,f1", "p8,g4", "n2,f1,p1,r3")
"""Half of the channels turn, and all of them; a square state; fewer ranks than heads, and more than states."""
MIMO = {"pairs": "halves", "maps": "on", "z": "on"}
TABLE = Table(
    base={"b": 2, "t": 7, "g": 2, "h": 4, "p": 3, "n": 8, "r": 1, "f": 2},
    rows=ROWS,
    least={"p": 2, "n": 4, "f": 1},
    beyond=(
        ({"p": 64, "n": 128, "f": 32, "r": 4}, MIMO, "gentle"),  # those of the published models
        case_of("h65"),
    ),
    some=(
        case_of("b1,t3,g1,h2,p16,n64,f32"),
        ({"r": 4, "f": 4}, MIMO, "gentle"),
        ({"r": 4, "f": 2}, MIMO, "normal"),
    ),
    longer=(({"b": 1, "t": 65, "r": 2}, MIMO, "gentle"),),
    model=cases_of("b1,t2,g1,h8,p64,n128,f32/z=on"),
    heads=(8, 16, 33, 64),
    chunks=(130,),
    narrow=ROWS[1:4],
)
OPTIONS = {
    "pairs": ("neighbours", "halves"),
    "D": ("head", "off"),
    "z": ("off", "on"),
    "maps": ("off", "on"),
    "floor": ("reached", "low"),
}
SOURCES = {
    "": "arXiv:2603.15569, section 3",
    "pairs": "mamba_ssm/modules/mamba3.py: rotate_pairwise = not is_mimo",
    "maps": "mamba_ssm/modules/mamba3.py: mimo_x, mimo_z, mimo_o",
    "floor": "mamba_ssm/modules/mamba3.py: A_floor",
    "live": "Snakes and Ladders, section 3.1",
    "tree": "STree, section 3",
}


def ok(sizes: Sizes) -> bool:
    """Pairs of channels, no more angles than pairs, and groups that divide the heads."""
    return sizes["n"] % 2 == 0 and 2 * sizes["f"] <= sizes["n"] and sizes["h"] % sizes["g"] == 0


def params(draw: Draw) -> Mamba3Params:
    """The floor is reached by about half of all tokens, unless it is low; norms and biases are all random."""
    n, floor = draw.sizes["n"], stored(np.array(RATE[draw.case.family]).prod() ** 0.5, "bf16")
    up, gate, down = (draw.normal(name, "h r p", 0.3, 0.75) if draw.on("maps") else None for name in ("up", "gate", "down"))
    return Mamba3Params(
        draw.array("B_norm", (n,), 0.3, 1.0),
        draw.array("C_norm", (n,), 0.3, 1.0),
        draw.normal("B_bias", "h r n", 0.5, 1.0),
        draw.normal("C_bias", "h r n", 0.5, 1.0),
        draw.step_bias("dt_bias", "h"),
        draw.normal("D", "h") if draw.options["D"] == "head" else None,
        up,
        gate,
        down,
        A_floor=float(floor) if draw.options["floor"] == "reached" else 2.0**-13,
        eps=1e-5 if draw.case.family == "gentle" else 2.0**-12,
        pairs=draw.options["pairs"],  # type: ignore[arg-type]
    )


def window(draw: Draw) -> Mamba3Window:
    """In the family wide B and C have sizes from 1e-4 to 1, so that eps of their norms matters."""
    rate = -draw.rate("A", "b t h")
    return Mamba3Window(
        x=draw.normal("x", "b t h p"),
        dt=draw.step("dt", "b t h"),
        A=stored(np.log(np.expm1(rate)), draw.contract.io),  # softplus of it is the rate
        trap=draw.normal("trap", "b t h"),
        angle=draw.normal("angle", "b t f"),
        B=sized(draw, "B"),
        C=sized(draw, "C"),
        z=draw.gate("z", "b t h p") if draw.on("z") else None,
    )


def sized(draw: Draw, name: str) -> Array:
    a = draw.normal(name, "b t r g n")
    if draw.case.family != "wide":
        return a
    return stored(a * 10.0 ** draw.rng(f"{name} scale").uniform(-4.0, 0.0, (*a.shape[:-1], 1)), draw.contract.io)


def alone(window: Mamba3Window, params: Mamba3Params) -> tuple[Mamba3Mixer, MixerInputs]:
    """A layer whose convolution of no channels has no inputs."""
    made = mixer_of(params, window.x.shape[3], window.B.shape[3], window.angle.shape[2])
    return made, MixerInputs(np.zeros((*window.x.shape[:2], 0)), window)


RECURRENCE: Recurrence = Recurrence(
    "mamba3", mamba3, error_bounds.mamba3, window, params, "b h pn+f+rn+p", ("y", "b t h p"),
    TABLE, OPTIONS, SOURCES, layers=KINDS, ok=ok, alone=alone,
)  # fmt: skip
