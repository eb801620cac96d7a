"""What fuzzing knows of a recurrence."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ssmspec_ref.model import Layer

from ..drawing.maker import Maker


@dataclass(frozen=True)
class Kind:
    """`layers` makes a layer of each name that has this recurrence. `forgetting(token, params)` is a first token as a window,
    under which no earlier state shows, and its parameters; None if some piece of a state never fades. Output and state are
    linear in the field `linear` and the state before ("": in none); `groups` says that B and C are shared by the heads of a
    group, `affine` that outputs and states are affine in the state before.
    """

    name: str
    layers: Mapping[str, Callable[[Maker], Layer]]
    forgetting: Callable[[Any, Any], tuple[Any, Any]] | None
    linear: str = ""
    groups: bool = False
    affine: bool = True
