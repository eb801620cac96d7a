"""Rows without an initial state that start from one: from what their slot holds, or from what an earlier call left."""

from typing import Any

import numpy as np

from ssmspec_ref import conv, delta, selective
from ssmspec_ref.contract import FLOAT64, Limits
from ssmspec_ref.shapes import Array, Mask
from ssmspec_ref.slots import FreshPool, Pool

from ...adapters.reference_parts.pools import entered, looked_up, no_windows
from ...mistakes.mistake import before
from ...mistakes.operators import zero
from ..fault import planted

BEGINS = Limits({"slots": ("rows", "fresh", "none")})
POOLS = Limits({"slots": ("rows", "fresh")})
ROWS_OR_NONE = Limits({"slots": ("rows", "none")})


def rows_of(held: FreshPool, fresh: Array) -> Array:
    """The states that rows start from, of which some are fresh."""
    return looked_up(held.states, np.where(fresh, -1, held.read))


def one_flag_for_all(M: Any, u: Array, params: Any) -> tuple[Array, Array]:
    """If any row has an initial state, all rows are read from their slots. Bug class SLOT-REUSE."""
    if M is None or not isinstance(M, FreshPool):
        return conv.scan(no_windows(u, params) if M is None else M, u, params)
    y, rows = conv.scan(rows_of(M, M.fresh & M.fresh.all()), u, params)
    return y, entered(M, rows)


def clears_the_slot_of_its_row(S: Any, token: Any, params: Any) -> tuple[Array, Array]:
    """Before the step the slots of fresh rows are cleared, taking the row for the slot. Bug class SLOT-SCOPE."""
    if not isinstance(S, FreshPool):
        return delta.step(S, token, params)
    states = S.states.copy()
    states[np.flatnonzero(S.fresh)] = 0.0
    y, rows = delta.step(looked_up(states, S.read), token, params)
    return y, entered(Pool(states, S.read, S.write), rows)


class GoesOnFromTheLastCall:
    """Without states a buffer is taken that is cleared when it is made, and not again. Bug class SLOT-REUSE."""

    __name__ = "goes_on_from_the_last_call"

    def __init__(self) -> None:
        self.kept: dict[tuple[int, ...], Array] = {}

    def __call__(self, M: Any, u: Array, params: Any) -> tuple[Array, Array]:
        if M is None:
            M = self.kept.setdefault(u.shape, no_windows(u, params))
        y, after = conv.scan(M, u, params)
        self.kept[u.shape] = after.copy()
        return y, after


def no_state_comes_back(S: Any, window: Any, params: Any, live: Mask) -> tuple[Array, Array]:
    """The final state is stored only if there was one to begin with. Bug class INIT-DROP."""
    if S is not None:
        return selective.scan(S, window, params, live)
    zero = np.zeros((window.x.shape[0], window.x.shape[2], window.B.shape[2]))
    return selective.scan(zero, window, params, live)[0], zero


FAULTS = planted(
    (
        before(
            "reads_what_the_slot_holds",
            "That a row has no initial state is not read: it continues with what its slot holds. Bug class SLOT-REUSE.",
            fresh=zero,
        ),
        "ssd.scan",
        "SLOT-REUSE",
        FLOAT64,
        POOLS,
    ),
    (one_flag_for_all, "conv.scan", "SLOT-REUSE", FLOAT64, BEGINS),
    (clears_the_slot_of_its_row, "delta.step", "SLOT-SCOPE", FLOAT64, POOLS),
    (GoesOnFromTheLastCall(), "conv.scan", "SLOT-REUSE", FLOAT64, ROWS_OR_NONE),
    (no_state_comes_back, "selective.scan_masked", "INIT-DROP", FLOAT64, ROWS_OR_NONE),
)
