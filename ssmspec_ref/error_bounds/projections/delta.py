"""Bounds of the projections of Gated DeltaNet and Kimi Delta Attention."""

from types import SimpleNamespace
from typing import Any

from ...delta import DeltaWindow
from ...layers.layer import DeltaLayer
from ...layers.mixer import DeltaGates, DeltaMixer
from ...shapes import Array
from ..arithmetic import Approx, constant
from ..functions import sigmoid, softplus
from ..inputs import values
from ..norms import gated, linear
from . import cut


def project(mixer: DeltaMixer, c: Approx, gates: SimpleNamespace) -> tuple[Any, dict[str, Array]]:
    """The recurrence's inputs, and their errors."""
    given = DeltaGates(gates.g.value, gates.beta.value)
    return values(DeltaWindow, **cut(mixer, c, given, "q", "k", "v"), g=gates.g, beta=gates.beta)


def inputs(x: Approx, layer: DeltaLayer) -> tuple[Approx, Any, dict[str, Array], Approx]:
    """The convolution's inputs, the gates, their errors, and the gate z.

    g = A softplus(a + dt_bias), or lower_bound sigmoid(-A (a + dt_bias)), and beta = beta_scale sigmoid(b).
    """
    c, shape = x.contract, layer.dt_bias.shape
    z, pre = linear(x, layer.z_proj).store(c.io), linear(x, layer.qkv_proj).store(c.io)
    z = z.map(lambda v: v.reshape(*v.shape[:2], layer.mixer.value_heads, layer.mixer.value_channels))
    a = linear(x, layer.a_proj).store(c.io).map(lambda v: v.reshape(*v.shape[:2], *shape))
    A = layer.A if layer.dt_bias.ndim == 1 else layer.A[:, None]
    biased, rate = a + constant(layer.dt_bias, c), constant(A, c)
    bounded = layer.lower_bound is not None
    g = constant(layer.lower_bound or 0.0, c) * sigmoid(-rate * biased) if bounded else rate * softplus(biased)
    beta = constant(layer.beta_scale, c) * sigmoid(linear(x, layer.b_proj).store(c.io))
    return pre, *values(DeltaGates, g=g, beta=beta), z


def output(y: Approx, gate: Approx, layer: DeltaLayer) -> Approx:
    """Gate, norm and output projection."""
    inner = gated(y, gate, layer.norm).map(lambda a: a.reshape(*a.shape[:2], -1))
    return linear(inner.store(y.contract.io), layer.out_proj)
