"""Bounds for a recurrent layer between its projections: convolution, then recurrence. The error of the first enters the
second, and values passed between them are rounded to the output format."""

from typing import Any

import numpy as np

from ..checks import checked
from ..contract import NumericContract
from ..layers.mixer import Mixer, MixerInputs, MixerState
from ..shapes import Ancestors, Array, Mask
from . import conv
from .arithmetic import Approx
from .inputs import Inexact, lift
from .recurrences import BOUNDS


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

    `inexact` may contain the arrays of `inputs` ("pre", "dt", "z", "g", "beta") and of `state` ("M", "S").

    Raises: ShapeMismatch, PrecisionError, EmptyWindow, ParameterError.
    """
    errors = dict(inexact or {})
    before = {"M": errors.pop("M", np.zeros_like(state.M)), "u": errors.pop("pre", np.zeros_like(inputs.pre))}
    c, M = conv.scan(state.M, inputs.pre, mixer.conv, contract, live, before)
    window, window_errors = _project(mixer, c, inputs.gates, errors, contract)
    y, S = BOUNDS[mixer.kind].recurrence.scan(state.S, window, mixer.params, contract, live, window_errors)
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
    return BOUNDS[mixer.kind].recurrence.tree(state.S, window, ancestors, mixer.params, contract, window_errors)


def _project(
    mixer: Mixer, c: Approx, gates: Any, errors: dict[str, Array], contract: NumericContract
) -> tuple[Any, dict[str, Array]]:
    """The recurrence's inputs, and their errors."""
    state_error = {"S": errors.pop("S")} if "S" in errors else {}
    window, known = BOUNDS[mixer.kind].around.project(mixer, c, lift(contract, errors, gates))
    return window, known | state_error
