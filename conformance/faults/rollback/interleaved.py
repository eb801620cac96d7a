"""Wrong where two take turns: two subjects at once, trees and chains, calls on calls, a ring full to the last entry."""

from typing import Any, ClassVar

import numpy as np

from ssmspec_ref.contract import Limits
from ssmspec_ref.layers.mixer import MixerInputs, MixerState
from ssmspec_ref.shapes import Array, Lengths, Parents, Path

from ...adapters.reference_parts.backtracking import AT_ONCE
from ...adapters.reference_parts.windows import Bare
from ..fault import planted
from ..windows import Replayed, Right, Ring, Snapshots, Windows, fewer, forward
from .windows import LIMITS


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


class OnePendingWindow(Windows):
    """The data that a recurrence keeps between verify and commit are in one buffer for all. Bug class SLOT-SCOPE."""

    last: ClassVar[Bare | None] = None

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

    def start(self, state: MixerState) -> None:
        self.tree: Parents | None = None

    def verify(self, inputs: MixerInputs, parents: Parents | None = None) -> Array:
        self.tree, seen = held_tree(self.tree, inputs.pre.shape[1], parents)
        y = super().verify(inputs, seen)
        super().verify(inputs, parents)
        return y


class TreeStaysInReplay(Replayed):
    """A chain after a tree of the same size is replayed as that tree."""

    def start(self) -> None:
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

    def start(self, state: MixerState) -> None:
        self.windows = 0

    def commit(self, advanced: Lengths, path: Path) -> None:
        self.windows += 1
        taken = advanced if self.windows < 13 else np.minimum(advanced, 1)
        super().commit(*fewer(taken, path))


class Counted(Ring):
    """A ring of some entries that counts, row by row, how many are taken; it is flushed where a window does not fit."""

    entries = 64

    def start(self) -> None:
        self.taken = np.zeros(len(self.S), dtype=np.int64)

    def commit(self, advanced: Lengths, path: Path) -> None:
        self.taken = np.where(self.taken + path.shape[1] > self.entries, 0, self.taken)
        kept = np.where(self.lost(advanced), np.maximum(advanced - 1, 0), advanced)
        self.taken = self.taken + advanced
        super().commit(*fewer(kept, path))

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


class GoesOnOnce(Right):
    """The second call with several tokens starts from the state of the first such call."""

    def forward(self, u: Array, live: Any = None) -> Array:
        if len(self.past) == 2 and u.shape[1] > 1:
            self.held = self.past[-1][2]
        return super().forward(u, live)


FAULTS = planted(
    (OnePending, "speculate.chain", "SLOT-SCOPE"),
    (OnePendingWindow, "ssd.verify_snapshots", "SLOT-SCOPE"),
    (OneCache, "layer.step", "SLOT-SCOPE"),
    (OneCacheForRuns, "layer.continue", "SLOT-SCOPE"),
    (TreeStays, "speculate.tree", "TREE-MASK"),
    (TreeStaysInReplay, "ssd.verify_replay", "TREE-MASK", AT_ONCE),
    (LatestWindows, "speculate.chain", "REPLAY"),
    (FullRingLosesTheLast, "ssd.buffered_verify", "REPLAY", AT_ONCE, LIMITS),
    (FullSmallRing, "ssd.buffered_verify", "REPLAY", AT_ONCE, Limits(sizes={"t": (1, 8)}, reason="fits its ring")),
    (WindowPastTheEnd, "ssd.buffered_verify", "REPLAY", AT_ONCE, LIMITS),
    (
        forward(
            "ForgetsInLongRuns",
            "A run of more than 64 tokens from a cache starts from a zero state.",
            S=lambda S, past, tokens: np.zeros_like(S) if past and tokens > 64 else S,
        ),
        "layer.continue",
        "INIT-DROP",
    ),
    (GoesOnOnce, "layer.continue", "INIT-DROP"),
    (
        forward(
            "TurnsAfterEight",
            "From the ninth call on the window of the convolution is shifted by one column: a ring of columns wraps around.",
            M=lambda M, past: np.roll(M, 1, axis=2) if len(past) > 8 else M,
        ),
        "layer.step",
        "CONV",
    ),
    (
        forward(
            "EightPadsAtMost",
            "Only the last eight tokens of left padding are masked.",
            live=lambda live, tokens: live | (np.arange(tokens) < np.argmax(live, axis=1)[:, None] - 8),
        ),
        "layer.left_pad",
        "PAD-LEAK",
    ),
    (
        forward(
            "OneTokenIsNotMasked",
            "The mask of a row with one token is not applied.",
            live=lambda live: live | (live.sum(axis=1) == 1)[:, None],
        ),
        "layer.right_pad",
        "PAD-LEAK",
    ),
)
