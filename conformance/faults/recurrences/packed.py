"""Packed prompts that read each other's tokens or states, over the reference's plain scan."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ssmspec_ref import contract, packed
from ssmspec_ref.contract import FLOAT64, Adapter, Capability, Subject
from ssmspec_ref.layers.recurrences import RECURRENCES
from ssmspec_ref.shapes import Array


def right(rule: str, S: Array, run: Any, bounds: Array, fresh: Array, params: Any) -> tuple[Array, Array]:
    """Correct: every sequence from its own state."""
    begin = np.where(fresh.reshape(-1, *[1] * (S.ndim - 1)), 0.0, S)
    y, S_next, _ = packed.scan(RECURRENCES[rule].definition, begin, run, np.diff(bounds), params)
    return y, S_next


def one_sequence(rule: str, S: Array, run: Any, bounds: Array, fresh: Array, params: Any) -> tuple[Array, Array]:
    """The run is scanned as one sequence: no boundary resets the state. Bug class SLOT-SCOPE."""
    y, _ = RECURRENCES[rule].definition.scan(S[:1], run, params)
    return y, right(rule, S, run, bounds, fresh, params)[1]


def never_fresh(rule: str, S: Array, run: Any, bounds: Array, fresh: Array, params: Any) -> tuple[Array, Array]:
    """A new sequence starts from its slot's previous state."""
    return right(rule, S, run, bounds, np.zeros_like(fresh), params)


def empty_is_cleared(rule: str, S: Array, run: Any, bounds: Array, fresh: Array, params: Any) -> tuple[Array, Array]:
    """The state of an empty sequence is set to zero."""
    y, S_next = right(rule, S, run, bounds, fresh, params)
    empty = np.diff(bounds) == 0
    return y, np.where(empty.reshape(-1, *[1] * (S.ndim - 1)), 0.0, S_next)


def states_in_order_of_length(rule: str, S: Array, run: Any, bounds: Array, fresh: Array, params: Any) -> tuple[Array, Array]:
    """Final states are returned in the order of computation, longest sequence first."""
    y, S_next = right(rule, S, run, bounds, fresh, params)
    return y, S_next[np.argsort(-np.diff(bounds), kind="stable")]


WRONG: tuple[Callable[..., Any], ...] = (one_sequence, never_fresh, empty_is_cleared, states_in_order_of_length)


def subject(rule: str, run: Callable[..., Any]) -> Subject:
    operation = f"{rule}.scan_packed"
    return Subject(
        run.__name__, {operation: Capability(partial(run, rule), FLOAT64)}, absent={"": "a fault of one operation"}
    )


def windowed() -> list[str]:
    """The recurrences that have packed prompts."""
    return [kind.name for kind in contract.RECURRENCES.values() if kind.windows]


def adapter() -> Adapter:
    return Adapter("faulty prompts", "1", tuple(subject(rule, run) for run in WRONG for rule in windowed()))
