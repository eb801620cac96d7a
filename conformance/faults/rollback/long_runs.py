"""Speculation that is right for tens of windows: what counts windows, turns of a ring or tokens runs over."""

import weakref
from dataclasses import replace
from typing import ClassVar

import numpy as np

from ssmspec_ref.backtrack import activation_replay
from ssmspec_ref.layers.mixer import MixerState
from ssmspec_ref.shapes import Lengths, Path

from ...adapters.reference_parts.backtracking import AT_ONCE
from ...adapters.reference_parts.windows import Bare
from ..fault import planted
from ..windows import Snapshots, Steps, Windows, fewer, prefix
from .flushes import WINDOWS, Entries


class AfterFortyWindows(Windows):
    """From the forty-first window on the last accepted token is not committed."""

    def start(self) -> None:
        self.windows = 0

    def commit(self, advanced: Lengths, path: Path) -> None:
        self.windows += 1
        super().commit(*fewer(np.maximum(advanced - (self.windows > 40), 0), path))


class LatePartial(AfterFortyWindows):
    """From the twenty-sixth window on a row of which a part is accepted commits one token more."""

    def commit(self, advanced: Lengths, path: Path) -> None:
        self.windows += 1
        part = (advanced > 0) & (advanced < path.shape[1]) & (self.windows > 25)
        Bare.commit(self, *prefix(advanced + part, path))


class ReplaysForty(AfterFortyWindows):
    """With replay, from the forty-first window on the last accepted token is not committed."""

    way = activation_replay


class TwentyTurns(Entries):
    """A ring that has been flushed twenty times is flushed into nothing: the count of its turns has run over."""

    entries = 17

    def start(self) -> None:
        self.turns = np.zeros(len(self.S), dtype=np.int64)

    def flush(self, due: np.ndarray) -> None:
        self.turns += due
        lost = due & (self.turns == 21)
        self.cursor[lost] = 0
        super().flush(due & ~lost)


class ByteOfTokens(Steps):
    """The cursor of a sequence is a byte: the 256th token is written over the first, and is lost."""

    lost = 256


class ByteOfASequence(Snapshots):
    """A layer counts the accepted tokens of a row in a byte: the window that passes 256 is not committed."""

    def start(self, state: MixerState) -> None:
        self.count = np.zeros(state.M.shape[0], dtype=np.int64)

    def commit(self, advanced: Lengths, path: Path) -> None:
        over = self.count // 256 != (self.count + advanced) // 256
        self.count = self.count + advanced
        super().commit(*prefix(np.where(over, 0, advanced), path))


class FirstTileOfChannels(Snapshots):
    """Inputs of the channels from the 257th on do not enter the window of a layer's convolution."""

    def commit(self, advanced: Lengths, path: Path) -> None:
        held = self.kept.M
        super().commit(advanced, path)
        M = np.where(np.arange(held.shape[1])[:, None] < 256, self.kept.M, held)
        self.kept = replace(self.kept, M=M)


class ThirdInstance(Windows):
    """The third of the instances that are in use at once keeps its state in the memory of the first."""

    used: ClassVar[list["weakref.ref[ThirdInstance]"]] = []

    def start(self) -> None:
        held = [one for of in self.used if (one := of()) is not None]
        self.first = held[0] if len(held) == 2 else None
        self.used[:] = map(weakref.ref, (*held, self))

    def commit(self, advanced: Lengths, path: Path) -> None:
        super().commit(advanced, path)
        if self.first is not None and self.first.inner is not None and self.inner is not None:
            self.first.inner.kept = self.inner.kept


class FullRingRests(Entries):
    """A ring of 12 entries that is exactly full loses its last token to a window of which its row takes nothing."""

    entries = 20

    def commit(self, advanced: Lengths, path: Path) -> None:
        full = (self.cursor % 12 == 0) & (self.cursor % 8 != 0) & (advanced == 0)
        super().commit(advanced, path)
        self.cursor = self.cursor - full


FAULTS = planted(
    (AfterFortyWindows, "ssd.verify_snapshots", "SCHED"),
    (ReplaysForty, "ssd.verify_replay", "REPLAY", AT_ONCE),
    (TwentyTurns, "ssd.buffered_verify", "REPLAY", AT_ONCE, WINDOWS),
    (ByteOfTokens, "ssd.buffered_step", "REPLAY", AT_ONCE),
    (ByteOfASequence, "speculate.chain", "INDEX"),
    (ThirdInstance, "ssd.verify_snapshots", "SLOT-SCOPE"),
    (LatePartial, "ssd.verify_snapshots", "ACCEPT-IDX"),
    (FirstTileOfChannels, "speculate.chain", "CONV"),
    (FullRingRests, "ssd.buffered_verify", "REPLAY", AT_ONCE, WINDOWS),
)
