"""Bounds of the projections around Mamba-3: from the residual stream to its eight inputs, and from y back."""

from functools import partial
from math import prod
from types import SimpleNamespace
from typing import Any

import numpy as np

from ...layers.mamba3 import Mamba3Layer, Mamba3Mixer
from ...mamba3 import Mamba3Window
from ...shapes import Array
from ..arithmetic import Approx
from ..inputs import values
from ..norms import gated, linear

NAMES = ("x", "dt", "A", "trap", "angle", "B", "C", "z")


def project(mixer: Mamba3Mixer, c: Approx, gates: SimpleNamespace) -> tuple[Any, dict[str, Array]]:
    """The recurrence's inputs, which all pass the convolution by, and their errors."""
    return values(Mamba3Window, **{name: getattr(gates, name) for name in NAMES})


def inputs(x: Approx, layer: Mamba3Layer) -> tuple[Approx, Any, dict[str, Array], Approx]:
    """An input of no channels for the convolution, the gates, their errors, and the gate z."""
    m, whole = layer.mixer, linear(x, layer.in_proj).store(x.contract.io)
    h, r, n = m.params.B_bias.shape
    heads, ranks, lead = (h, m.channels), (r, m.groups, n), x.value.shape[:2]
    shapes = {"z": heads, "x": heads, "B": ranks, "C": ranks, "dt": (h,), "A": (h,), "trap": (h,), "angle": (m.angles,)}
    found, start = dict[str, Approx](), 0
    for name, shape in shapes.items():
        size = prod(shape)
        found[name] = whole[..., start : start + size].map(partial(np.reshape, shape=(*lead, *shape)))
        start += size
    z = found["z"].map(lambda a: a.reshape(*lead, -1))
    gates, known = values(Mamba3Window, **{**found, "z": found["z"] if layer.norm is None else None})
    return whole[..., :0], gates, known, z


def output(y: Approx, gate: Approx, layer: Mamba3Layer) -> Approx:
    """The norm, if there is one, and the output projection."""
    flat = y.map(lambda a: a.reshape(gate.value.shape))
    return linear((flat if layer.norm is None else gated(flat, gate, layer.norm)).store(y.contract.io), layer.out_proj)
