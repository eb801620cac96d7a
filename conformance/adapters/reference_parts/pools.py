"""States in a pool of slots: every row looks for its slot, and every slot for the row that writes it."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ssmspec_ref.contract import Capability, Limits
from ssmspec_ref.shapes import Array
from ssmspec_ref.slots import FarPool, Pool, far

WAYS = Limits({"slots": ("rows", "shuffled", "padded", "apart", "far")})


def over_pools(capability: Capability) -> Capability:
    """The capability of an operation that takes a pool for its states too."""
    return Capability(pooled(capability.run), capability.contract, WAYS)


def pooled(run: Callable[..., Any]) -> Callable[..., Any]:
    """An operation over states, or over a pool. The last of several outputs is the state; a single one is that of a tree."""

    def call(held: Any, *rest: Any) -> Any:
        if not isinstance(held, Pool):
            return run(held, *rest)
        came = run(looked_up(held.states, held.read), *rest)
        return (*came[:-1], kept(held, entered(held, came[-1]))) if isinstance(came, tuple) else came

    return call


def kept(held: Pool, states: Array) -> Array:
    """The states in a pool of the kind that was given."""
    if not isinstance(held, FarPool):
        return states
    pool = far(states.shape, states.dtype)
    pool[:] = states
    return pool


def looked_up(states: Array, slots: Array) -> Array:
    """The state of each row, by a comparison with every slot."""
    mine = slots[:, None] == np.arange(len(states))
    rows = states[mine.argmax(axis=1)]
    return np.where(mine.any(axis=1).reshape(-1, *[1] * (states.ndim - 1)), rows, 0.0)


def entered(held: Pool, rows: Array) -> Array:
    """The state of each slot: that of the row that writes it, or its own."""
    writer = np.arange(len(held.states))[:, None] == held.write
    taken = writer.any(axis=1).reshape(-1, *[1] * (rows.ndim - 1))
    return np.where(taken, rows[writer.argmax(axis=1)], held.states)
