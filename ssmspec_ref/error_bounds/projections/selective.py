"""Bounds of the projections of Mamba-1."""

from types import SimpleNamespace
from typing import Any

from ...layers.layer import Mamba1Layer
from ...layers.mixer import SelectiveGates, SelectiveMixer
from ...layers.norm import Norm
from ...selective import SelectiveWindow
from ...shapes import Array
from ..arithmetic import Approx, constant, sum_of_products
from ..functions import silu
from ..inputs import values
from ..norms import linear, norm


def project(mixer: SelectiveMixer, c: Approx, gates: SimpleNamespace) -> tuple[Any, dict[str, Array]]:
    """The recurrence's inputs, and their errors: two projections, with norms between them if the layer has them."""
    form, rank, n = c.contract.io, mixer.dt_proj.shape[1], mixer.params.A.shape[1]
    whole = sum_of_products(("btd, od -> bto", c, constant(mixer.x_proj, c.contract)), matmuls=1).store(form)
    parts = whole[..., :rank], whole[..., rank : rank + n], whole[..., rank + n :]
    r, B, C = (_normed(part, layer) for part, layer in zip(parts, (mixer.dt_norm, mixer.B_norm, mixer.C_norm), strict=True))
    dt = sum_of_products(("btr, dr -> btd", r, constant(mixer.dt_proj, c.contract)), matmuls=1).store(form)
    return values(SelectiveWindow, x=c, dt=dt, B=B, C=C, z=gates.z)


def _normed(x: Approx, layer: Norm | None) -> Approx:
    return x if layer is None else norm(x, layer).store(x.contract.io)


def inputs(x: Approx, layer: Mamba1Layer) -> tuple[Approx, Any, dict[str, Array], Approx]:
    """The convolution's inputs, the gates, their errors, and the gate z."""
    projected, channels = linear(x, layer.in_proj).store(x.contract.io), layer.mixer.conv.weight.shape[0]
    return projected[..., :channels], SelectiveGates(), {}, projected[..., channels:]


def output(y: Approx, gate: Approx, layer: Mamba1Layer) -> Approx:
    """Gate and output projection."""
    return linear((y * silu(gate)).store(y.contract.io), layer.out_proj)
