"""Bounds of the projections around each recurrence: from the residual stream to its inputs, and from its outputs back."""

from typing import Any

from ...layers.mixer import Mixer
from ..arithmetic import Approx


def cut(mixer: Mixer, c: Approx, gates: Any, *names: str) -> dict[str, Approx]:
    """The parts that `mixer.project` slices from the convolution's outputs, with their errors."""
    values, errors = mixer.project(c.value, gates), mixer.project(c.error, gates)
    return {name: Approx(getattr(values, name), getattr(errors, name), c.contract) for name in names}
