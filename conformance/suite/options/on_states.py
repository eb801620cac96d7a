"""The options of an operation on states."""

from collections.abc import Mapping

from ..graph.replayed import ReplayedOverSlots
from .far_inputs import Far
from .option import Option
from .repeats import Repeat
from .slots import Slots


def on_states(axes: str | None, tiny: Mapping[str, int]) -> tuple[Option, ...]:
    """In the order in which they are applied: each changes what those before it have drawn. `axes` are those of the state,
    None for a window; `tiny` are small sizes."""
    return Far(), Slots(axes), Repeat(tiny), ReplayedOverSlots()
