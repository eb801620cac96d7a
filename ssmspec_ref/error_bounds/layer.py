"""Bounds for whole layers, residual stream in and out: projections, mixer, gate, norm, projection."""

from ..checks import checked
from ..contract import NumericContract
from ..layers.layer import RecurrentLayer
from ..layers.mixer import MixerInputs, MixerState
from ..shapes import Mask, Residual
from . import mixer
from .arithmetic import Approx, exact
from .inputs import Inexact
from .recurrences import BOUNDS


@checked
def scan(
    state: MixerState,
    u: Residual,
    layer: RecurrentLayer,
    contract: NumericContract,
    live: Mask | None = None,
    inexact: Inexact = None,
) -> tuple[Approx, Approx, Approx]:
    """Outputs, window of the convolution and state of `ssmspec_ref.layers.layer.scan` with their bounds.

    Values passed from one stage to the next are rounded to the output format. `inexact` may contain "u", "M" and "S".

    Raises: ShapeMismatch, PrecisionError, EmptyWindow, ParameterError.
    """
    errors = dict(inexact or {})
    x = exact(u, contract, errors.pop("u", None))
    around = BOUNDS[layer.mixer.kind].around
    pre, gates, known, gate = around.inputs(x, layer)
    known = {**known, "pre": pre.error, **errors}
    y, M, S = mixer.scan(state, MixerInputs(pre.value, gates), layer.mixer, contract, live, known)
    out = around.output(y, gate, layer).store(contract.io)
    return (out if live is None else out.where(live[..., None])), M, S
