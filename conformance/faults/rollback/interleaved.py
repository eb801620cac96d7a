"""Wrong where two take turns: two subjects at once, trees and chains, calls on calls, a ring full to the last entry."""

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from ssmspec_ref.backtrack import activation_replay, snapshots
from ssmspec_ref.contract import FLOAT64, Adapter, Limits
from ssmspec_ref.layers.mixer import Mixer, MixerInputs, MixerState
from ssmspec_ref.shapes import Array, Lengths, Parents, Path

from ...adapters.reference_parts.backtracking import AT_ONCE
from ...adapters.reference_parts.windows import Bare
from ..single import EVERYTHING, Wrong, adapter_of
from ..whole_layers.layers import Right
from .speculation import Snapshots
from .windows import LIMITS, Ring


class OnePending(Snapshots):
    """The data kept between verify and commit are in one buffer for all layers. Bug class SLOT-SCOPE."""

    last: ClassVar[Snapshots | None] = None

    def verify(self, inputs: MixerInputs, parents: Parents | None = None) -> Array:
        y = super().verify(inputs, parents)
        OnePending.last = self
        return y

    def commit(self, advanced: Lengths, path: Path) -> None:
        assert OnePending.last is not None
        self.pending = OnePending.last.pending
        super().commit(advanced, path)


class OnePendingWindow(Bare):
    """The data that a recurrence keeps between verify and commit are in one buffer for all. Bug class SLOT-SCOPE."""

    last: ClassVar[Bare | None] = None

    def __init__(self, S: Array, params: Any) -> None:
        super().__init__(snapshots, S, params)

    def verify(self, window: Any, parents: Parents | None = None) -> Array:
        y = super().verify(window, parents)
        OnePendingWindow.last = self
        return y

    def commit(self, advanced: Lengths, path: Path) -> None:
        last = OnePendingWindow.last
        assert last is not None
        assert last.inner is not None
        assert self.inner is not None
        self.inner.pending = last.inner.pending
        super().commit(advanced, path)


class OneCache(Right):
    """Layers of the same shape share one cache, which holds the state of the last one called.
    fla-org/flash-linear-attention#477."""

    last: ClassVar[Right | None] = None

    def forward(self, u: Array, live: Any = None) -> Array:
        last = OneCache.last
        if last is not None and self.past and last.held.S.shape == self.held.S.shape:
            self.held = last.held
        OneCache.last = self
        return super().forward(u, live)


class OneCacheForRuns(OneCache):
    """Layers of the same shape share one cache, also for several tokens at once."""


class TreeStays(Snapshots):
    """A chain after a tree of the same size is verified as that tree."""

    def __init__(self, mixer: Mixer, state: MixerState) -> None:
        super().__init__(mixer, state)
        self.tree: Parents | None = None

    def verify(self, inputs: MixerInputs, parents: Parents | None = None) -> Array:
        self.tree, seen = held_tree(self.tree, inputs.pre.shape[1], parents)
        y = super().verify(inputs, seen)
        super().verify(inputs, parents)
        return y


class TreeStaysInReplay(Bare):
    """A chain after a tree of the same size is replayed as that tree."""

    def __init__(self, S: Array, params: Any) -> None:
        super().__init__(activation_replay, S, params)
        self.tree: Parents | None = None

    def verify(self, window: Any, parents: Parents | None = None) -> Array:
        self.tree, seen = held_tree(self.tree, window.x.shape[1], parents)
        y = super().verify(window, seen)
        super().verify(window, parents)
        return y


def held_tree(held: Parents | None, tokens: int, parents: Parents | None) -> tuple[Parents | None, Parents | None]:
    """The tree that stays, and the one that a window is verified as."""
    if parents is not None:
        return parents, parents
    return held, held if held is not None and held.shape[1] == tokens else None


class LatestWindows(Snapshots):
    """From the thirteenth window on only the root is committed: a table of windows is full."""

    def __init__(self, mixer: Mixer, state: MixerState) -> None:
        super().__init__(mixer, state)
        self.windows = 0

    def commit(self, advanced: Lengths, path: Path) -> None:
        self.windows += 1
        taken = advanced if self.windows < 13 else np.minimum(advanced, 1)
        super().commit(taken, np.where(np.arange(path.shape[1]) < taken[:, None], path, -1))


class Counted(Ring):
    """A ring of some entries that counts, row by row, how many are taken; it is flushed where a window does not fit."""

    entries = 64

    def __init__(self, S: Array, params: Any) -> None:
        super().__init__(S, params)
        self.taken = np.zeros(len(S), dtype=np.int64)

    def commit(self, advanced: Lengths, path: Path) -> None:
        self.taken = np.where(self.taken + path.shape[1] > self.entries, 0, self.taken)
        kept = np.where(self.lost(advanced), np.maximum(advanced - 1, 0), advanced)
        self.taken = self.taken + advanced
        super().commit(kept, np.where(np.arange(path.shape[1]) < kept[:, None], path, -1))

    def lost(self, advanced: Lengths) -> Array:
        """Rows whose last token is lost."""
        raise NotImplementedError


class FullRingLosesTheLast(Counted):
    """A ring of 64 entries loses the last one when it is full: a remainder of 0 counts as empty. Bug class REPLAY."""

    def lost(self, advanced: Lengths) -> Array:
        return np.asarray(self.taken + advanced == self.entries)


class FullSmallRing(FullRingLosesTheLast):
    """A ring of 17 entries loses the last one when it is full."""

    entries = 17


class WindowPastTheEnd(Counted):
    """If a window is one token too long for a ring of 64 entries, the last token overwrites the first entry. Bug class
    REPLAY."""

    def commit(self, advanced: Lengths, path: Path) -> None:
        self.past = self.taken + path.shape[1] == self.entries + 1
        super().commit(advanced, path)

    def lost(self, advanced: Lengths) -> Array:
        return self.past


class ForgetsInLongRuns(Right):
    """A run of more than 64 tokens from a cache starts from a zero state."""

    def forward(self, u: Array, live: Any = None) -> Array:
        if self.past and u.shape[1] > 64:
            self.held = replace(self.held, S=np.zeros_like(self.held.S))
        return super().forward(u, live)


class GoesOnOnce(Right):
    """The second call with several tokens starts from the state of the first such call."""

    def forward(self, u: Array, live: Any = None) -> Array:
        if len(self.past) == 2 and u.shape[1] > 1:
            self.held = self.past[-1][2]
        return super().forward(u, live)


class TurnsAfterEight(Right):
    """From the ninth call on the window of the convolution is shifted by one column: a ring of columns wraps around."""

    def forward(self, u: Array, live: Any = None) -> Array:
        if len(self.past) > 8:
            self.held = replace(self.held, M=np.roll(self.held.M, 1, axis=2))
        return super().forward(u, live)


class EightPadsAtMost(Right):
    """Only the last eight tokens of left padding are masked."""

    def forward(self, u: Array, live: Any = None) -> Array:
        if live is not None:
            live = live | (np.arange(u.shape[1]) < np.argmax(live, axis=1)[:, None] - 8)
        return super().forward(u, live)


class OneTokenIsNotMasked(Right):
    """The mask of a row with one token is not applied."""

    def forward(self, u: Array, live: Any = None) -> Array:
        if live is not None:
            live = live | (live.sum(axis=1) == 1)[:, None]
        return super().forward(u, live)


FAULTS: tuple[Wrong, ...] = (
    (OnePending, "speculate.chain", "SLOT-SCOPE", FLOAT64, EVERYTHING),
    (OnePendingWindow, "ssd.verify_snapshots", "SLOT-SCOPE", FLOAT64, EVERYTHING),
    (OneCache, "layer.step", "SLOT-SCOPE", FLOAT64, EVERYTHING),
    (OneCacheForRuns, "layer.continue", "SLOT-SCOPE", FLOAT64, EVERYTHING),
    (TreeStays, "speculate.tree", "TREE-MASK", FLOAT64, EVERYTHING),
    (TreeStaysInReplay, "ssd.verify_replay", "TREE-MASK", AT_ONCE, EVERYTHING),
    (LatestWindows, "speculate.chain", "REPLAY", FLOAT64, EVERYTHING),
    (FullRingLosesTheLast, "ssd.buffered_verify", "REPLAY", AT_ONCE, LIMITS),
    (FullSmallRing, "ssd.buffered_verify", "REPLAY", AT_ONCE, Limits(sizes={"t": (1, 8)}, reason="fits its ring")),
    (WindowPastTheEnd, "ssd.buffered_verify", "REPLAY", AT_ONCE, LIMITS),
    (ForgetsInLongRuns, "layer.continue", "INIT-DROP", FLOAT64, EVERYTHING),
    (GoesOnOnce, "layer.continue", "INIT-DROP", FLOAT64, EVERYTHING),
    (TurnsAfterEight, "layer.step", "CONV", FLOAT64, EVERYTHING),
    (EightPadsAtMost, "layer.left_pad", "PAD-LEAK", FLOAT64, EVERYTHING),
    (OneTokenIsNotMasked, "layer.right_pad", "PAD-LEAK", FLOAT64, EVERYTHING),
)
"""Each with its operation, its bug class, what it declares, and the windows that it takes."""


def adapter() -> Adapter:
    return adapter_of("turns", FAULTS)
