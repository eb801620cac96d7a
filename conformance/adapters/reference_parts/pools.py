"""States in a pool of slots, or None: every row looks for its slot, and every slot for the row that writes it."""

from collections.abc import Callable
from dataclasses import fields
from typing import Any, get_type_hints

import numpy as np

from ssmspec_ref.contract import Capability, Limits
from ssmspec_ref.layers.recurrences import Recurrence
from ssmspec_ref.mamba3 import width
from ssmspec_ref.records import arrays
from ssmspec_ref.shapes import Array
from ssmspec_ref.slots import FarPool, FreshPool, Pool, is_far

from ...suite.options.far_inputs import LETTERS, dims, far_along

WAYS = Limits({"slots": ("rows", "shuffled", "padded", "apart", "far")})
FRESH = Limits({"slots": (*WAYS.options["slots"], "fresh")})
EVERY = Limits({"slots": (*FRESH.options["slots"], "none"), "far": ("none", *LETTERS)})


def over_pools(capability: Capability, zeros: Callable[..., Array] | None = None) -> Capability:
    """The capability of an operation that takes a pool for its states too, or None if `zeros` gives those of its inputs."""
    return Capability(pooled(capability.run, zeros), capability.contract, EVERY if zeros else FRESH)


def pooled(run: Callable[..., Any], zeros: Callable[..., Array] | None = None) -> Callable[..., Any]:
    """An operation over states, over a pool, or over None, which means zeros. The last of several outputs is the state;
    a single one is that of a tree."""

    def call(held: Any, *rest: Any) -> Any:
        if held is None and zeros is not None:
            return run(zeros(*rest), *rest)
        if not isinstance(held, Pool):
            return as_far(rest[0], run(held, *rest))
        read = np.where(held.fresh, -1, held.read) if isinstance(held, FreshPool) else held.read
        came = run(looked_up(held.states, read), *rest)
        return (*came[:-1], kept(held, entered(held, came[-1]))) if isinstance(came, tuple) else came

    return call


def no_states(kind: Recurrence) -> Callable[..., Array]:
    """A function of the inputs of a call and its weights: zeros for the states of a recurrence. The inputs have all of their
    axes but the columns of a short convolution and the packed pieces of Mamba-3, which its weights say."""
    axes = get_type_hints(kind.definition.scan)["S"].dim_str.split()

    def zeros(inputs: Any, *rest: Any) -> Array:
        sizes = {"q": getattr(rest[0], "columns", 0)}
        for field in fields(inputs):
            if (a := getattr(inputs, field.name)) is not None:
                sizes |= zip(dims(type(inputs), field.name, a.ndim), a.shape, strict=True)
        if "_" in axes:
            sizes["_"] = width(sizes["p"], rest[0].states, sizes["f"], rest[0].rank)
        return np.zeros([sizes[axis] for axis in axes])

    return zeros


def no_windows(u: Array, *rest: Any) -> Array:
    """Zeros for the windows of a convolution."""
    return np.zeros((u.shape[0], *rest[-1].weight.shape))


def as_far(inputs: Any, came: Any) -> Any:
    """The result of a call, with the elements of y far apart along the same axis as those of its inputs."""
    first = next(arrays(inputs))
    axis = next((n for n in range(first.ndim) if is_far(first, n)), None)
    return came if axis is None else (far_along(came[0], axis), *came[1:])


def kept(held: Pool, states: Array) -> Array:
    """The states in a pool of the kind that was given."""
    if not isinstance(held, FarPool):
        return states
    return far_along(states, 0)


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
