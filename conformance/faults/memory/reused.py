"""Memory that a later call uses again, old states that are multiplied by zero, and what is counted from call to call."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ssmspec_ref import conv, selective, ssd
from ssmspec_ref.backtrack import activation_replay, snapshots
from ssmspec_ref.contract import FLOAT64, Adapter, Limits
from ssmspec_ref.shapes import Array, Lengths, Parents, Path
from ssmspec_ref.slots import FreshPool, Pool

from ...adapters.reference_parts.backtracking import AT_ONCE
from ...adapters.reference_parts.pools import entered, looked_up
from ...adapters.reference_parts.windows import Bare
from ...judge.draw import stored
from ..recurrences.packed import right as right_packed
from ..single import EVERYTHING, Wrong, adapter_of

MANY = 100
"""Calls after which a count runs over."""
POOLS = Limits({"slots": ("rows", "fresh")})


def cleared_by_product(of: Callable[..., Any], S: Any, inputs: Any, params: Any) -> tuple[Array, Array]:
    """What a fresh row finds in its slot is multiplied by zero, and NaN stays NaN. Bug class SLOT-REUSE."""
    if not isinstance(S, FreshPool):
        found: tuple[Array, Array] = of(S, inputs, params)
        return found
    held = looked_up(S.states, S.read)
    y, rows = of(held * ~S.fresh.reshape(-1, *[1] * (held.ndim - 1)), inputs, params)
    return y, entered(Pool(S.states, S.read, S.write), rows)


def step_cleared_by_product(S: Any, token: Any, params: Any) -> tuple[Array, Array]:
    """The old state of a fresh row is multiplied by zero. Bug class SLOT-REUSE."""
    return cleared_by_product(ssd.step, S, token, params)


def inputs_cleared_by_product(M: Any, u: Array, params: Any) -> tuple[Array, Array]:
    """The old inputs of a fresh row are multiplied by zero. Bug class SLOT-REUSE."""
    return cleared_by_product(conv.scan, M, u, params)


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


class HandsOutItsOutputs(Bare):
    """verify hands out a buffer that the next window overwrites. Bug class CONDUCT."""

    def __init__(self, S: Array, params: Any) -> None:
        super().__init__(snapshots, S, params)
        self.buffers: dict[tuple[int, ...], Array] = {}

    def verify(self, window: Any, parents: Parents | None = None) -> Array:
        y = super().verify(window, parents)
        kept = self.buffers.setdefault(y.shape, y)
        kept[...] = y
        return kept


class HandsOutItsState(Bare):
    """state hands out the pool itself, which later windows change. Bug class CONDUCT."""

    def __init__(self, S: Array, params: Any) -> None:
        super().__init__(snapshots, S, params)
        self.pool = np.array(S)

    def state(self) -> Array:
        self.pool[...] = super().state()
        return self.pool


class LogOfTheNextRow(Bare):
    """A row's log of accepted tokens has room for 256: what is behind lies in the log of the next row. Bug class INDEX."""

    def __init__(self, S: Array, params: Any) -> None:
        super().__init__(activation_replay, S, params)
        self.total = np.zeros(len(S), dtype=np.int64)

    def commit(self, advanced: Lengths, path: Path) -> None:
        self.total += advanced
        fewer = np.maximum(advanced - ((self.total > 256) & (np.arange(len(advanced)) + 1 < len(advanced))), 0)
        super().commit(fewer, np.where(np.arange(path.shape[1]) < fewer[:, None], path, -1))


def empty_fresh_keeps(S: Array, run: Any, bounds: Array, fresh: Array, params: Any) -> tuple[Array, Array]:
    """A fresh sequence without tokens keeps what its slot holds. Bug class SLOT-REUSE."""
    y, after = right_packed("ssd", S, run, bounds, fresh, params)
    idle = (fresh & (np.diff(bounds) == 0)).reshape(-1, *[1] * (S.ndim - 1))
    return y, np.where(idle, S, after)


def full_chunk_keeps(S: Array, run: Any, bounds: Array, fresh: Array, params: Any) -> tuple[Array, Array]:
    """The state after a sequence of exactly one chunk of 32 tokens is not written, unless it is the last. Bug class CHUNK."""
    y, after = right_packed("ssd", S, run, bounds, fresh, params)
    lost = (np.diff(bounds) == 32) & (np.arange(len(S)) + 1 < len(S))
    return y, np.where(lost.reshape(-1, *[1] * (S.ndim - 1)), S, after)


FAULTS: tuple[Wrong, ...] = (
    (step_cleared_by_product, "ssd.step", "SLOT-REUSE", FLOAT64, POOLS),
    (inputs_cleared_by_product, "conv.scan", "SLOT-REUSE", FLOAT64, POOLS),
    (KeepsLongOutputs(), "ssd.scan", "SCHED", FLOAT64, EVERYTHING),
    (CountsItsCalls(), "selective.scan", "SCHED", FLOAT64, EVERYTHING),
    (HandsOutItsOutputs, "delta.verify_snapshots", "CONDUCT", FLOAT64, EVERYTHING),
    (HandsOutItsState, "delta.verify_snapshots", "CONDUCT", FLOAT64, EVERYTHING),
    (LogOfTheNextRow, "ssd.verify_replay", "INDEX", AT_ONCE, EVERYTHING),
    (empty_fresh_keeps, "ssd.scan_packed", "SLOT-REUSE", FLOAT64, EVERYTHING),
    (full_chunk_keeps, "ssd.scan_packed", "CHUNK", FLOAT64, EVERYTHING),
)
"""Each with its operation, its bug class, what it declares and what it takes."""


def adapter() -> Adapter:
    return adapter_of("reused", FAULTS)
