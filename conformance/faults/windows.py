"""Right windows, layers and speculation, and mistakes in what they read, what they return and what they take for accepted."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ssmspec_ref.backtrack import activation_replay, snapshots
from ssmspec_ref.layers import layer, mixer
from ssmspec_ref.layers.layer import RecurrentLayer
from ssmspec_ref.layers.mixer import Mixer, MixerState
from ssmspec_ref.shapes import Array, Lengths, Path

from ..adapters.reference_parts.backtracking import Backtracking
from ..adapters.reference_parts.windows import RING, Bare, Stepping
from ..mistakes.mistake import changed, inputs, put

Taken = tuple[Lengths, Path]


class Windows(Bare):
    """Windows over a recurrence, by snapshots or by another `way`."""

    way: Any = snapshots

    def __init__(self, S: Array, params: Any) -> None:
        super().__init__(type(self).way, S, params)
        self.start()

    def start(self) -> None:
        """What a fault keeps beside."""


class Replayed(Windows):
    """By replay of what was accepted."""

    way = activation_replay


class Ring(Windows):
    """By a checkpoint and the reference's ring."""

    way = RING


class Steps(Stepping):
    """Single tokens through a ring, which reads and does not keep the token with the number `lost`."""

    lost = 0

    def __init__(self, S: Array, params: Any) -> None:
        super().__init__("step_output_only", S, params)
        self.count = 0

    def verify(self, window: Any, parents: Any = None) -> Array:
        held, self.count = self.kept, self.count + 1
        y = super().verify(window, parents)
        self.kept = held if self.count == self.lost else self.kept
        return y


class Snapshots(Backtracking):
    """Correct: speculation in a layer by snapshots."""

    def __init__(self, mixer: Mixer, state: MixerState) -> None:
        super().__init__(snapshots, mixer, state)
        self.start(state)

    def start(self, state: MixerState) -> None:
        """What a fault keeps beside."""


class Right:
    """The oracle's layer with a cache; rollback by the states before each call, and the tokens of a call that is undone in
    part once more."""

    def __init__(self, record: RecurrentLayer, rows: int) -> None:
        self.record, self.held = record, mixer.new_state(record.mixer, rows)
        self.past: list[tuple[Array, Any, MixerState]] = []

    def forward(self, u: Array, live: Any = None) -> Array:
        self.past.append((u, live, self.held))
        out, self.held = layer.scan(self.held, u, self.record, live)
        return out

    def state(self) -> tuple[Array, Array]:
        return self.held.M.copy(), self.held.S.copy()

    def rollback(self, tokens: int) -> None:
        while tokens > 0:
            u, live, self.held = self.past.pop()
            kept = max(u.shape[1] - tokens, 0)
            tokens -= u.shape[1]
            if kept:
                Right.forward(self, u[:, :kept], None if live is None else live[:, :kept])


def prefix(advanced: Lengths, path: Path) -> Taken:
    """The first tokens of a window as what was accepted."""
    return fewer(advanced, np.broadcast_to(np.arange(path.shape[1]), path.shape))


def fewer(advanced: Lengths, path: Path) -> Taken:
    """The first tokens of a path as what was accepted."""
    return advanced, np.where(np.arange(path.shape[1]) < advanced[:, None], path, -1)


def commits(name: str, says: str, base: Any, taken: Callable[[Lengths, Path], Taken]) -> type[Any]:
    """Windows that take other tokens for the accepted ones."""

    def commit(self: Any, advanced: Lengths, path: Path) -> None:
        base.commit(self, *taken(advanced, path))

    return type(name, (base,), {"commit": commit, "__doc__": says})


def verifies(name: str, says: str, base: Any, **changes: Any) -> type[Any]:
    """Windows that read other inputs, by the names of their record and of the parameters, or give another `y` or `state`."""

    def verify(self: Any, window: Any, parents: Any = None) -> Array:
        given = inputs(("window", "parents", "params"), (window, parents, getattr(self, "params", None)))
        y = base.verify(self, *put(("window", "parents"), (window, parents), changed(changes, given)))
        return np.asarray(changed(changes, {**given, "y": y}).get("y", y))

    def state(self: Any) -> Any:
        S = base.state(self)
        return changed(changes, {"state": S}).get("state", S)

    return type(name, (base,), {"verify": verify, "state": state, "__doc__": says})


def forward(name: str, says: str, **changes: Any) -> type[Right]:
    """A layer that reads other inputs u, another mask `live` or another held M or S, or gives another `out`. A change reads
    these by their names, `tokens`, the number of a call, `past`, the calls before it, and the `width` of the window."""

    def run(self: Right, u: Array, live: Any = None) -> Array:
        given = {"u": u, "live": live, "M": self.held.M, "S": self.held.S, "past": list(self.past)}
        given |= {"tokens": u.shape[1], "width": self.record.mixer.conv.width}
        new = {**given, **changed(changes, given)}
        self.held = replace(self.held, M=new["M"], S=new["S"])
        out = Right.forward(self, new["u"], new["live"])
        return np.asarray(changed(changes, {**given, "out": out}).get("out", out))

    return type(name, (Right,), {"forward": run, "__doc__": says})


def records(name: str, says: str, change: Callable[[Any], Any]) -> type[Right]:
    """A layer with another record."""

    def start(self: Right, record: Any, rows: int) -> None:
        Right.__init__(self, change(record), rows)

    return type(name, (Right,), {"__init__": start, "__doc__": says})


def normed(**new: Any) -> Callable[[Any], Any]:
    """A record with another norm, if it has one."""

    def change(record: Any) -> Any:
        norm = getattr(record, "norm", None)
        return record if norm is None else replace(record, norm=replace(norm, **new))

    return change
