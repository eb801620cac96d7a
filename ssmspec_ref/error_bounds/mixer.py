"""Bounds for a recurrent layer between its projections: convolution, then recurrence. What the first is wrong by enters the
second, and what one hands to the other is stored as outputs are."""

from types import ModuleType
from typing import Any

import numpy as np

from ..checks import checked
from ..contract import NumericContract
from ..delta import DeltaWindow
from ..mixer import DeltaMixer, Mixer, MixerInputs, MixerState, SelectiveMixer, SSDGates, SSDMixer
from ..norm import Norm
from ..selective import SelectiveWindow
from ..shapes import Ancestors, Array, Mask
from ..ssd import SSDWindow
from . import conv, delta, selective, ssd
from .arithmetic import Approx, constant, sum_of_products
from .inputs import Inexact, lift, values
from .norms import norm


@checked
def scan(
    state: MixerState,
    inputs: MixerInputs,
    mixer: Mixer,
    contract: NumericContract,
    live: Mask | None = None,
    inexact: Inexact = None,
) -> tuple[Approx, Approx, Approx]:
    """Outputs, window of the convolution and state of `mixer.scan` with their bounds.

    `inexact` names the arrays of `inputs` ("pre", "dt", "z", "g", "beta") and of `state` ("M", "S").

    Raises: ShapeMismatch, PrecisionError, EmptyWindow, ParameterError.
    """
    errors = dict(inexact or {})
    before = {"M": errors.pop("M", np.zeros_like(state.M)), "u": errors.pop("pre", np.zeros_like(inputs.pre))}
    c, M = conv.scan(state.M, inputs.pre, mixer.conv, contract, live, before)
    window, window_errors = _project(mixer, c, inputs.gates, errors, contract)
    y, S = recurrence(mixer).scan(state.S, window, mixer.params, contract, live, window_errors)
    return y, M, S


@checked
def tree(
    state: MixerState,
    inputs: MixerInputs,
    mixer: Mixer,
    ancestors: Ancestors,
    contract: NumericContract,
    inexact: Inexact = None,
) -> Approx:
    """The output at every node of a tree (`mixer.verify_window`) with its bound.

    Raises: ShapeMismatch, PrecisionError, EmptyWindow, ParameterError.
    """
    errors = dict(inexact or {})
    before = {"M": errors.pop("M", np.zeros_like(state.M)), "u": errors.pop("pre", np.zeros_like(inputs.pre))}
    c = conv.tree(state.M, inputs.pre, ancestors, mixer.conv, contract, before)
    window, window_errors = _project(mixer, c, inputs.gates, errors, contract)
    return recurrence(mixer).tree(state.S, window, ancestors, mixer.params, contract, window_errors)


def recurrence(mixer: Mixer) -> ModuleType:
    """The module of bounds of the mixer's recurrence."""
    match mixer:
        case SSDMixer():
            return ssd
        case DeltaMixer():
            return delta
        case SelectiveMixer():
            return selective


def _project(
    mixer: Mixer, c: Approx, gates: Any, errors: dict[str, Array], contract: NumericContract
) -> tuple[Any, dict[str, Array]]:
    """What the recurrence reads, and what it is wrong by. Cutting and widening move errors as they move values."""
    state_error = {"S": errors.pop("S")} if "S" in errors else {}
    g = lift(contract, errors, gates)
    window: Any
    match mixer:
        case SSDMixer():
            plain = SSDGates(gates.dt)
            pairs = _moved(mixer.project(c.value, plain), mixer.project(c.error, plain), ("x", "B", "C"), contract)
            window, known = values(SSDWindow, **pairs, dt=g.dt, z=g.z)
        case DeltaMixer():
            pairs = _moved(mixer.project(c.value, gates), mixer.project(c.error, gates), ("q", "k", "v"), contract)
            window, known = values(DeltaWindow, **pairs, g=g.g, beta=g.beta)
        case SelectiveMixer():
            window, known = values(SelectiveWindow, x=c, z=g.z, **_selective(mixer, c))
    return window, known | state_error


def _moved(cut: Any, errors: Any, names: tuple[str, ...], contract: NumericContract) -> dict[str, Approx]:
    return {name: Approx(getattr(cut, name), getattr(errors, name), contract) for name in names}


def _selective(mixer: SelectiveMixer, c: Approx) -> dict[str, Approx]:
    """dt, B and C of Mamba-1: two projections, with norms between them where the layer has them."""
    form, rank, n = c.contract.io, mixer.dt_proj.shape[1], mixer.params.A.shape[1]
    whole = sum_of_products(("btd, od -> bto", c, constant(mixer.x_proj, c.contract)), matmuls=1).store(form)
    parts = whole[..., :rank], whole[..., rank : rank + n], whole[..., rank + n :]
    r, B, C = (_normed(part, layer) for part, layer in zip(parts, (mixer.dt_norm, mixer.B_norm, mixer.C_norm), strict=True))
    dt = sum_of_products(("btr, dr -> btd", r, constant(mixer.dt_proj, c.contract)), matmuls=1).store(form)
    return {"dt": dt, "B": B, "C": C}


def _normed(x: Approx, layer: Norm | None) -> Approx:
    return x if layer is None else norm(x, layer).store(x.contract.io)
