"""Bounds for whole layers, from residual stream to residual stream: projections, mixer, gate, norm, projection."""

import numpy as np

from ..checks import checked
from ..contract import NumericContract
from ..layer import DeltaLayer, Mamba1Layer, Mamba2Layer, RecurrentLayer
from ..mixer import DeltaGates, MixerInputs, MixerState, SelectiveGates, SSDGates
from ..shapes import Mask, Residual
from . import mixer
from .arithmetic import Approx, constant, exact
from .functions import sigmoid, silu, softplus
from .inputs import Inexact, values
from .norms import gated, linear


@checked
def scan(
    state: MixerState,
    u: Residual,
    layer: RecurrentLayer,
    contract: NumericContract,
    live: Mask | None = None,
    inexact: Inexact = None,
) -> tuple[Approx, Approx, Approx]:
    """Outputs, window of the convolution and state of `ssmspec_ref.layer.scan` with their bounds.

    What one stage hands to the next is stored as outputs are. `inexact` names "u", "M" and "S".

    Raises: ShapeMismatch, PrecisionError, EmptyWindow, ParameterError.
    """
    errors = dict(inexact or {})
    x = exact(u, contract, errors.pop("u", None))
    inputs, known, gate = _inputs(x, layer)
    y, M, S = mixer.scan(state, inputs, layer.mixer, contract, live, known | errors)
    out = _output(y, gate, layer).store(contract.io)
    return (out if live is None else out.where(live[..., None])), M, S


def _inputs(x: Approx, layer: RecurrentLayer) -> tuple[MixerInputs, dict[str, np.ndarray], Approx]:
    """What the mixer reads, what it is wrong by, and the gate."""
    form = x.contract.io
    match layer:
        case Mamba2Layer():
            heads, channels = layer.mixer.params.A.shape[0], layer.mixer.conv.weight.shape[0]
            inner = heads * layer.mixer.channels
            projected = linear(x * constant(layer.input_multiplier, x.contract), layer.in_proj).store(form)
            if layer.multipliers is not None:
                projected = (projected * constant(layer.multipliers, x.contract)).store(form)
            z, pre, dt = projected[..., :inner], projected[..., inner : inner + channels], projected[..., inner + channels :]
            gates, known = values(SSDGates, dt=dt)
        case DeltaLayer():
            z, pre = linear(x, layer.z_proj).store(form), linear(x, layer.qkv_proj).store(form)
            z = z.map(lambda a: a.reshape(*a.shape[:2], layer.mixer.value_heads, layer.mixer.value_channels))
            gates, known = values(DeltaGates, **_gates(x, layer))
        case Mamba1Layer():
            projected, channels = linear(x, layer.in_proj).store(form), layer.mixer.conv.weight.shape[0]
            pre, z, gates, known = projected[..., :channels], projected[..., channels:], SelectiveGates(), {}
    return MixerInputs(pre.value, gates), known | {"pre": pre.error}, z


def _gates(x: Approx, layer: DeltaLayer) -> dict[str, Approx]:
    """g = A softplus(a + dt_bias), or lower_bound sigmoid(-A (a + dt_bias)), and beta = beta_scale sigmoid(b)."""
    c, shape = x.contract, layer.dt_bias.shape
    a = linear(x, layer.a_proj).store(c.io).map(lambda v: v.reshape(*v.shape[:2], *shape))
    A = layer.A if layer.dt_bias.ndim == 1 else layer.A[:, None]
    biased, rate = a + constant(layer.dt_bias, c), constant(A, c)
    bounded = layer.lower_bound is not None
    g = constant(layer.lower_bound or 0.0, c) * sigmoid(-rate * biased) if bounded else rate * softplus(biased)
    beta = constant(layer.beta_scale, c) * sigmoid(linear(x, layer.b_proj).store(c.io))
    return {"g": g, "beta": beta}


def _output(y: Approx, gate: Approx, layer: RecurrentLayer) -> Approx:
    """Gate, norm and projection out."""
    form = y.contract.io
    match layer:
        case Mamba2Layer():
            flat = y.map(lambda a: a.reshape(gate.value.shape))
            inner = flat * silu(gate) if layer.norm is None else gated(flat, gate, layer.norm)
        case DeltaLayer():
            inner = gated(y, gate, layer.norm).map(lambda a: a.reshape(*a.shape[:2], -1))
        case Mamba1Layer():
            inner = y * silu(gate)
    return linear(inner.store(form), layer.out_proj)
