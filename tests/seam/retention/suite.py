"""Retention in the suite: inputs, tables and layers."""

from conformance.judge.draw import Draw
from conformance.suite.kinds.weights import CONV, Kind, conv, half, linear, windowed
from conformance.suite.recurrences.recurrence import Recurrence, beside, handing_on
from conformance.suite.recurrences.table import Table
from ssmspec_ref.layers.mixer import MixerInputs

from . import bounds, oracle
from .oracle import RetentionParams, RetentionWindow
from .oracle.layer import RetentionGates, RetentionLayer, RetentionMixer

TABLE = Table({"b": 2, "t": 7, "h": 3, "k": 4, "v": 5}, ({"t": 1}, {"h": 1}, {"k": 1, "v": 1}), ("k", "v"))


def window(draw: Draw) -> RetentionWindow:
    size = draw.sizes["k"] ** -0.5
    return RetentionWindow(draw.normal("q", "b t h k", size), draw.normal("k", "b t h k", size), draw.normal("v", "b t h v"))


def params(draw: Draw) -> RetentionParams:
    return RetentionParams(draw.rate("A", "h"))


def alone(window: RetentionWindow, params: RetentionParams) -> tuple[RetentionMixer, MixerInputs]:
    pre = beside(window.q, window.k, window.v)
    made = RetentionMixer(handing_on(pre), params, window.k.shape[3], window.v.shape[3])
    return made, MixerInputs(pre, RetentionGates())


def layer(draw: Draw) -> RetentionLayer:
    h, k, v = draw.shape("h k v")
    e, channels = half(h * v), h * (2 * k + v)
    mixer = RetentionMixer(conv(draw, channels), params(draw), k, v)
    projections = linear(draw, "qkv", channels, e), linear(draw, "z", h * v, e), linear(draw, "out", e, h * v)
    return RetentionLayer(mixer, *projections)


KIND = Kind(
    "retention",
    {"b": 2, "t": 6, "j": 3, "h": 2, "k": 3, "v": 4, "w": 4},
    ({"h": 1}, {"k": 8, "v": 2}),
    CONV,
    windowed(lambda sizes: True),
    ("h", "v"),
    layer,
    lambda draw, number: RetentionGates(),
)

RECURRENCE = Recurrence(
    "retention", oracle, bounds, window, params, "b h k v", ("o", "b t h v"),
    TABLE, {}, {"": "arXiv:2307.08621, equation 1"}, layers=(KIND,), alone=alone,
)  # fmt: skip
