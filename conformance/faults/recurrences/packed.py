"""Packed prompts that read each other's tokens or states, over the reference's plain scan."""

from typing import Any

import numpy as np

from ssmspec_ref import contract
from ssmspec_ref.layers.recurrences import RECURRENCES
from ssmspec_ref.shapes import Array

from ...mistakes.mistake import after, before
from ...mistakes.operators import of_rows, zero
from ..fault import Row, planted


def faults(rule: str) -> tuple[Row, ...]:
    """Those of one recurrence."""

    def one_sequence(S: Array, run: Any, params: Any) -> Array:
        """The run is scanned as one sequence: no boundary resets the state. Bug class SLOT-SCOPE."""
        y: Array = RECURRENCES[rule].definition.scan(S[:1], run, params)[0]
        return y

    operation = f"{rule}.scan_packed"
    return (
        (after(y=one_sequence), operation, "SLOT-SCOPE"),
        (
            before("never_fresh", "A new sequence starts from its slot's previous state.", fresh=zero),
            operation,
            "SLOT-REUSE",
        ),
        (
            after(
                "empty_is_cleared",
                "The state of an empty sequence is set to zero.",
                S_next=lambda S_next, bounds: np.where(of_rows(np.diff(bounds) == 0, S_next), 0.0, S_next),
            ),
            operation,
            "CHUNK",
        ),
        (
            after(
                "states_in_order_of_length",
                "Final states are returned in the order of computation, longest sequence first.",
                S_next=lambda S_next, bounds: S_next[np.argsort(-np.diff(bounds), kind="stable")],
            ),
            operation,
            "SLOT-SCOPE",
        ),
    )


def windowed() -> list[str]:
    """The recurrences that have packed prompts."""
    return [kind.name for kind in contract.RECURRENCES.values() if kind.windows]


FAULTS = planted(*(row for rule in windowed() for row in faults(rule)))
