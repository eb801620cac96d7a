"""Bounds of what runs token by token: the reference's own function, on pairs (`pairs`)."""

from typing import Any

from ...contract import NumericContract
from ...shapes import Array, Mask
from ..arithmetic import Approx
from ..inputs import Inexact, paired
from ..stored_state import stored_state


def run(
    definition: Any,
    S: Array,
    window: Any,
    params: Any,
    contract: NumericContract,
    live: Mask | None = None,
    inexact: Inexact = None,
) -> tuple[Approx, Approx]:
    """Outputs and the state after every token of `definition.states` with their bounds."""
    y, after = definition.states(*paired(contract, inexact, window, params, S=S), live)
    return output(y, live), after


def states(*given: Any) -> tuple[Approx, Approx]:
    """As `run`, each state as it is read after it was stored."""
    y, after = run(*given)
    return y, after if after.contract.stored_every_token else stored_state(after)


def output(y: Approx, live: Mask | None) -> Approx:
    """Outputs (b t ..) in their format; of a no-op exactly 0."""
    y = y.store(y.contract.io)
    return y if live is None else y.where(live.reshape(live.shape + (1,) * (y.ndim - 2)))
