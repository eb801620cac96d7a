"""Memory that a later call uses again, old states that are multiplied by zero, and what is counted from call to call."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ssmspec_ref import conv, selective, ssd
from ssmspec_ref.contract import FLOAT64, Limits
from ssmspec_ref.shapes import Array, Lengths, Parents, Path
from ssmspec_ref.slots import FreshPool, Pool

from ...adapters.reference_parts.backtracking import AT_ONCE
from ...adapters.reference_parts.pools import entered, looked_up
from ...judge.draw import stored
from ...mistakes.mistake import after, instead
from ...mistakes.operators import of_rows
from ..fault import planted
from ..windows import Replayed, Windows, fewer

MANY = 100
"""Calls after which a count runs over."""
POOLS = Limits({"slots": ("rows", "fresh")})


def cleared_by_product(of: Callable[..., Any], S: Any, inputs: Any, params: Any) -> tuple[Array, Array]:
    """What a fresh row finds in its slot is multiplied by zero, and NaN stays NaN. Bug class SLOT-REUSE."""
    if not isinstance(S, FreshPool):
        found: tuple[Array, Array] = of(S, inputs, params)
        return found
    held = looked_up(S.states, S.read)
    y, rows = of(held * ~of_rows(S.fresh, held), inputs, params)
    return y, entered(Pool(S.states, S.read, S.write), rows)


class KeepsLongOutputs:
    """Outputs of more than 64 tokens are in one buffer per shape, which the next call overwrites. Bug class SCHED."""

    __name__ = "keeps_long_outputs"

    def __init__(self) -> None:
        self.buffers: dict[tuple[int, ...], Array] = {}

    def __call__(self, S: Array, window: Any, params: Any) -> tuple[Array, Array]:
        y, S_next = ssd.scan(S, window, params)
        if y.shape[1] <= 64:
            return y, S_next
        kept = self.buffers.setdefault(y.shape, y)
        kept[...] = y
        return kept, S_next


class CountsItsCalls:
    """After a hundred calls of one object dt is rounded to bf16, as where a count of calls runs over. Bug class SCHED."""

    __name__ = "counts_its_calls"

    def __init__(self) -> None:
        self.last, self.calls = 0, 0

    def __call__(self, S: Array, window: Any, params: Any) -> tuple[Array, Array]:
        same = hash(window.dt.tobytes())
        self.calls, self.last = (self.calls + 1 if same == self.last else 0), same
        if self.calls < MANY:
            return selective.scan(S, window, params)
        return selective.scan(S, replace(window, dt=stored(window.dt, "bf16")), params)


class HandsOutItsOutputs(Windows):
    """verify hands out a buffer that the next window overwrites. Bug class CONDUCT."""

    def start(self) -> None:
        self.buffers: dict[tuple[int, ...], Array] = {}

    def verify(self, window: Any, parents: Parents | None = None) -> Array:
        y = super().verify(window, parents)
        kept = self.buffers.setdefault(y.shape, y)
        kept[...] = y
        return kept


class HandsOutItsState(Windows):
    """state hands out the pool itself, which later windows change. Bug class CONDUCT."""

    def start(self) -> None:
        self.pool = np.array(self.S)

    def state(self) -> Array:
        self.pool[...] = super().state()
        return self.pool


class LogOfTheNextRow(Replayed):
    """A row's log of accepted tokens has room for 256: what is behind lies in the log of the next row. Bug class INDEX."""

    def start(self) -> None:
        self.total = np.zeros(len(self.S), dtype=np.int64)

    def commit(self, advanced: Lengths, path: Path) -> None:
        self.total += advanced
        taken = np.maximum(advanced - ((self.total > 256) & (np.arange(len(advanced)) + 1 < len(advanced))), 0)
        super().commit(*fewer(taken, path))


def empty_fresh_keeps(S: Array, S_next: Array, bounds: Array, fresh: Array) -> Array:
    """A fresh sequence without tokens keeps what its slot holds. Bug class SLOT-REUSE."""
    return np.where(of_rows(fresh & (np.diff(bounds) == 0), S), S, S_next)


def full_chunk_keeps(S: Array, S_next: Array, bounds: Array) -> Array:
    """The state after a sequence of exactly one chunk of 32 tokens is not written, unless it is the last. Bug class CHUNK."""
    return np.where(of_rows((np.diff(bounds) == 32) & (np.arange(len(S)) + 1 < len(S)), S), S, S_next)


FAULTS = planted(
    (
        instead(
            "step_cleared_by_product",
            "The old state of a fresh row is multiplied by zero. Bug class SLOT-REUSE.",
            partial(cleared_by_product, ssd.step),
        ),
        "ssd.step",
        "SLOT-REUSE",
        FLOAT64,
        POOLS,
    ),
    (
        instead(
            "inputs_cleared_by_product",
            "The old inputs of a fresh row are multiplied by zero. Bug class SLOT-REUSE.",
            partial(cleared_by_product, conv.scan),
        ),
        "conv.scan",
        "SLOT-REUSE",
        FLOAT64,
        POOLS,
    ),
    (KeepsLongOutputs(), "ssd.scan", "SCHED"),
    (CountsItsCalls(), "selective.scan", "SCHED"),
    (HandsOutItsOutputs, "delta.verify_snapshots", "CONDUCT"),
    (HandsOutItsState, "delta.verify_snapshots", "CONDUCT"),
    (LogOfTheNextRow, "ssd.verify_replay", "INDEX", AT_ONCE),
    (after(S_next=empty_fresh_keeps), "ssd.scan_packed", "SLOT-REUSE"),
    (after(S_next=full_chunk_keeps), "ssd.scan_packed", "CHUNK"),
)
