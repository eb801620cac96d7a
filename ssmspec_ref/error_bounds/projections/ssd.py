"""Bounds of the projections of Mamba-2."""

from types import SimpleNamespace
from typing import Any

from ...layers.layer import Mamba2Layer
from ...layers.mixer import SSDGates, SSDMixer
from ...shapes import Array
from ...ssd import SSDWindow
from ..arithmetic import Approx, constant
from ..functions import silu
from ..inputs import values
from ..norms import gated, linear
from . import cut


def project(mixer: SSDMixer, c: Approx, gates: SimpleNamespace) -> tuple[Any, dict[str, Array]]:
    """The recurrence's inputs, and their errors."""
    return values(SSDWindow, **cut(mixer, c, SSDGates(gates.dt.value), "x", "B", "C"), dt=gates.dt, z=gates.z)


def inputs(x: Approx, layer: Mamba2Layer) -> tuple[Approx, Any, dict[str, Array], Approx]:
    """The convolution's inputs, the gates, their errors, and the gate z."""
    heads, channels = layer.mixer.params.A.shape[0], layer.mixer.conv.weight.shape[0]
    inner, form = heads * layer.mixer.channels, x.contract.io
    projected = linear(x * constant(layer.input_multiplier, x.contract), layer.in_proj).store(form)
    if layer.multipliers is not None:
        projected = (projected * constant(layer.multipliers, x.contract)).store(form)
    z, pre, dt = projected[..., :inner], projected[..., inner : inner + channels], projected[..., inner + channels :]
    return pre, *values(SSDGates, dt=dt), z


def output(y: Approx, gate: Approx, layer: Mamba2Layer) -> Approx:
    """Gate, norm and output projection."""
    flat = y.map(lambda a: a.reshape(gate.value.shape))
    inner = flat * silu(gate) if layer.norm is None else gated(flat, gate, layer.norm)
    return linear(inner.store(y.contract.io), layer.out_proj)
