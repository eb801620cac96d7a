"""Bounds of the projections around a short convolution: from the residual stream to B | C | x, and from y back."""

from types import SimpleNamespace
from typing import Any

from ...layers.shortconv import ShortConvGates, ShortConvLayer, ShortConvMixer
from ...shapes import Array
from ...shortconv import ShortConvWindow
from ..arithmetic import Approx
from ..inputs import values
from ..norms import linear


def project(mixer: ShortConvMixer, c: Approx, gates: SimpleNamespace) -> tuple[Any, dict[str, Array]]:
    """The recurrence's inputs, which all pass the convolution by, and their errors."""
    return values(ShortConvWindow, B=gates.B, C=gates.C, x=gates.x)


def inputs(x: Approx, layer: ShortConvLayer) -> tuple[Approx, Any, dict[str, Array], Approx]:
    """An input of no channels for the convolution, the gates, their errors, and no gate for `output`."""
    whole, d = linear(x, layer.in_proj).store(x.contract.io), layer.mixer.params.weight.shape[0]
    gates, known = values(ShortConvGates, B=whole[..., :d], C=whole[..., d : 2 * d], x=whole[..., 2 * d :])
    return whole[..., :0], gates, known, whole[..., :0]


def output(y: Approx, gate: Approx, layer: ShortConvLayer) -> Approx:
    """The output projection."""
    return linear(y, layer.out_proj)
