"""The gated delta rule: one token, several tokens, tokens with no-ops, a tree; one gate per head, or per key channel."""

import numpy as np

from ssmspec_ref import delta, error_bounds
from ssmspec_ref.delta import DeltaParams, DeltaWindow
from ssmspec_ref.layers.mixer import DeltaGates, DeltaMixer, MixerInputs
from ssmspec_ref.shapes import Array

from ...judge.draw import Draw, stored
from ..kinds.delta import KINDS
from ..tables import cases_of, divides, sizes_of
from .recurrence import Recurrence, beside, handing_on
from .table import Table

TABLE = Table(
    base={"b": 2, "t": 7, "g": 2, "h": 4, "k": 5, "v": 3},
    rows=sizes_of("t1", "g1,h3", "g3,h3,v7", "b1,t65", "b5,t2,k1", "k16,v9,t33"),
    state=("k", "v"),
    beyond=cases_of("k256,v256", "g13,h65"),
    some=cases_of(
        "b1,t3,g1,h2,k128,v128",
        "b1,t2,g1,h2,k72,v100",
        "g3,h18,k8,v8",  # a square state, whose transpose has the same shape
        "k16,v9/wide",  # small keys in more than one channel
        "t17/sparse=on",  # tokens that write nothing, or before which nothing decays: so many that
        # in every draw running sums of the other tokens round differently before and after one
    ),
    model=cases_of("b1,t2,g2,h32,k64,v128"),
)
RARE = {"sparse": ("off", "on")}
"""Of three tokens one has a log decay of 0 and one a beta of 0; neither is padding."""
OPTIONS = {"gate": ("head", "channel"), "l2_norm": ("on", "off"), "scale": ("default", "given"), "beta": ("one", "two")}
SOURCES = {
    "": "arXiv:2412.06464, equation 10",
    "gate": "Kimi Linear, section 3",
    "l2_norm": "flash-linear-attention#885",
    "live": "Snakes and Ladders, section 3.1",
    "tree": "STree, section 3",
}
GATE = {"normal": 0.3, "gentle": 0.005, "strong": 20.0, "wide": 0.3}
"""The scale of the log decay."""


def params(draw: Draw) -> DeltaParams:
    return DeltaParams(scale=None if draw.options["scale"] == "default" else 0.75, l2_norm=draw.on("l2_norm"))


def window(draw: Draw) -> DeltaWindow:
    """Tokens; keys have norm about 1 if the layer does not normalise them, so that the state stays bounded."""
    size = 1.0 if draw.on("l2_norm") else draw.sizes["k"] ** -0.5
    k = draw.normal("k", "b t g k", size)
    if not draw.on("l2_norm"):
        k = stored(k / np.maximum(1.0, np.linalg.norm(k, axis=-1, keepdims=True)), draw.contract.io)
    gate = draw.normal("gate", "b t h" if draw.options["gate"] == "head" else "b t h k")
    beta = 1 / (1 + np.exp(-draw.normal("beta", "b t h")))
    g, beta = -GATE[draw.case.family] * np.abs(gate), (2 if draw.options["beta"] == "two" else 1) * beta
    if draw.options.get("sparse") == "on":
        turn = np.arange(g.shape[1]) % 3
        g[:, turn == 0], beta[:, turn == 1] = 0.0, 0.0
    q = draw.normal("q", "b t g k")
    if draw.case.family == "wide":
        q, k = small(draw, "q", q), small(draw, "k", k)
    return DeltaWindow(
        q=q,
        k=k,
        v=draw.normal("v", "b t h v"),
        g=stored(g, draw.contract.io),
        beta=stored(beta, draw.contract.io),
    )


def small(draw: Draw, name: str, a: Array) -> Array:
    """Vectors scaled by 1 to 1e-4, and by 0 in the last token's first head: eps keeps their direction finite."""
    scale = 10.0 ** draw.rng(f"{name} scale").uniform(-4.0, 0.0, a.shape[:3])
    scale[:, -1:, 0] = 0.0
    return stored(a * scale[..., None] + 0.0, draw.contract.io)


def alone(window: DeltaWindow, params: DeltaParams) -> tuple[DeltaMixer, MixerInputs]:
    """A layer whose convolution passes q, k and v through unchanged."""
    pre, (keys, values) = beside(window.q, window.k, window.v), (window.k.shape[2:], window.v.shape[2:])
    made = DeltaMixer(handing_on(pre), params, keys[0], values[0], keys[1], values[1])
    return made, MixerInputs(pre, DeltaGates(window.g, window.beta))


def parts(layer: DeltaMixer) -> tuple[tuple[int, int], ...]:
    """q | k | v of the convolution: heads, and the channels of each."""
    keys = layer.key_heads, layer.key_channels
    return keys, keys, (layer.value_heads, layer.value_channels)


RECURRENCE: Recurrence = Recurrence(
    "delta", delta, error_bounds.delta, window, params, "b h k v", ("o", "b t h v"),
    TABLE, OPTIONS, SOURCES, layers=KINDS, ok=divides("h", "g"), rare=RARE, alone=alone, parts=parts,
)  # fmt: skip
