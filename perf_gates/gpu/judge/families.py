"""The recurrences that are checked: of each what its rows do not say."""

from functools import partial

import numpy as np

from perf_gates.static.shapes import KDA_BOUND
from ssmspec_ref import error_bounds as eb
from ssmspec_ref.conv import ConvParams
from ssmspec_ref.delta import DeltaParams, DeltaWindow
from ssmspec_ref.error_bounds.arithmetic import constant
from ssmspec_ref.mamba3 import Mamba3Params, Mamba3Window, width
from ssmspec_ref.selective import SelectiveParams, SelectiveWindow
from ssmspec_ref.shapes import Array
from ssmspec_ref.shortconv import ShortConvParams, ShortConvWindow
from ssmspec_ref.ssd import SSDParams, SSDWindow

from .layer import Family, Layer, Tokens

CHANNELS = 200
"""The number of compared channels of a convolution."""
FLOOR, EPS = 1e-3, 1e-5


def gated(layer: Layer, tokens: dict[str, Array]) -> Tokens:
    """A window of the delta rule with its gates as pairs: of one decay a head or one a key channel, bounded or not."""
    dead, c = np.isnan(tokens["beta"]), layer.contract()
    q, k, v, g, beta = (np.nan_to_num(tokens[name]) for name in ("q", "k", "v", "g", "beta"))
    A, bias = (eb.exact(layer.cut(name, layer.weights[name]), c) for name in ("A", "dt_bias"))
    A, over = (A[:, None], ~dead[..., None]) if g.ndim == 4 else (A, ~dead)
    a, bound = eb.exact(g, c) + bias, layer.options.get("lower_bound")
    log = A * eb.softplus(a) if bound is None else constant(bound, c) * eb.sigmoid(-A * a)
    gate, write = log.where(over), eb.sigmoid(eb.exact(beta, c)).where(~dead)
    return Tokens(DeltaWindow(q, k, v, gate.value, write.value), {"g": gate.error, "beta": write.error})


def mamba3_params(**weights: Array) -> Mamba3Params:
    return Mamba3Params(**weights, A_floor=FLOOR, eps=EPS, pairs="halves" if "up" in weights else "neighbours")


def unread(**_: Array) -> DeltaParams:
    """The gates are formed in `gated`."""
    return DeltaParams(scale=None, l2_norm=True)


SSD = Family("ssd", "h p n g", SSDWindow, partial(SSDParams, dt_softplus=True), ("x B C", "dt"), without=lambda _: "z")
DELTA = Family("delta", "g h k v", DeltaWindow, unread, ("q k v", "g beta"), record=gated)
BY_CHANNEL = Family("delta", "g h k v", DeltaWindow, unread, ("q k v", "g beta"), record=gated, form=1)
KDA = Family(
    "kda",
    "g h k v",
    DeltaWindow,
    unread,
    ("q k v", "g beta"),
    record=gated,
    options=lambda _: {"lower_bound": KDA_BOUND},
    committing="sequential",
)
SELECTIVE = Family(
    "selective", "d n", SelectiveWindow, partial(SelectiveParams, dt_softplus=True), ("x z", "dt B C"), by=("d", 40)
)
MAMBA3 = Family(
    "mamba3",
    "h p n g f r",
    Mamba3Window,
    mamba3_params,
    ("z x B C dt A trap angle",),
    derived=lambda axes: {"e": width(*(axes[letter] for letter in "pnfr"))},
    options=lambda axes: {"A_floor": FLOOR, "eps": EPS, "halves": axes["r"] > 1},
    without=lambda axes: "" if axes["r"] > 1 else "z up gate down",
    wide=False,
    reading="sequential",
    committing="sequential",
)
SHORTCONV = Family(
    "shortconv",
    "d w",
    ShortConvWindow,
    ShortConvParams,
    ("B C x",),
    derived=lambda axes: {"q": axes["w"] - 1},
    by=("d", CHANNELS),
    weights="bf16",
    exact=True,
    wide=False,
)
CONV = Family(
    "conv",
    "c w",
    lambda u: u,
    partial(ConvParams, activation=True),
    ("u",),
    row="conv_window",
    state="M",
    by=("c", CHANNELS),
    stored="bf16",
    weights="bf16",
    exact=True,
    wide=False,
)
