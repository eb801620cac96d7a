"""Speculation that is right for tens of windows: what counts windows, turns of a ring or tokens runs over."""

import weakref
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from ssmspec_ref.backtrack import activation_replay, snapshots
from ssmspec_ref.contract import FLOAT64, Adapter
from ssmspec_ref.layers.mixer import Mixer, MixerState
from ssmspec_ref.shapes import Array, Lengths, Parents, Path

from ...adapters.reference_parts.backtracking import AT_ONCE
from ...adapters.reference_parts.windows import Bare, Stepping
from ..single import EVERYTHING, Wrong, adapter_of
from .flushes import WINDOWS, Entries
from .speculation import Snapshots
from .windows import prefix


class AfterFortyWindows(Bare):
    """From the forty-first window on the last accepted token is not committed."""

    path: Any = snapshots

    def __init__(self, S: Array, params: Any) -> None:
        super().__init__(type(self).path, S, params)
        self.windows = 0

    def commit(self, advanced: Lengths, path: Path) -> None:
        self.windows += 1
        fewer = np.maximum(advanced - (self.windows > 40), 0)
        super().commit(fewer, np.where(np.arange(path.shape[1]) < fewer[:, None], path, -1))


class LatePartial(AfterFortyWindows):
    """From the twenty-sixth window on a row of which a part is accepted commits one token more."""

    def commit(self, advanced: Lengths, path: Path) -> None:
        self.windows += 1
        part = (advanced > 0) & (advanced < path.shape[1]) & (self.windows > 25)
        Bare.commit(self, *prefix(advanced + part, np.where(part[:, None], np.arange(path.shape[1]), path)))


class ReplaysForty(AfterFortyWindows):
    """With replay, from the forty-first window on the last accepted token is not committed."""

    path = activation_replay


class TwentyTurns(Entries):
    """A ring that has been flushed twenty times is flushed into nothing: the count of its turns has run over."""

    entries = 17

    def __init__(self, S: Array, params: Any) -> None:
        super().__init__(S, params)
        self.turns = np.zeros(len(S), dtype=np.int64)

    def flush(self, due: np.ndarray) -> None:
        self.turns += due
        lost = due & (self.turns == 21)
        self.cursor[lost] = 0
        super().flush(due & ~lost)


class ByteOfTokens(Stepping):
    """The cursor of a sequence is a byte: the 256th token is written over the first, and is lost."""

    def __init__(self, S: Array, params: Any) -> None:
        super().__init__("step_output_only", S, params)
        self.count = 0

    def verify(self, window: Any, parents: Parents | None = None) -> Array:
        held, self.count = self.kept, self.count + 1
        y = super().verify(window, parents)
        if self.count == 256:
            self.kept = held
        return y


class ByteOfASequence(Snapshots):
    """A layer counts the accepted tokens of a row in a byte: the window that passes 256 is not committed."""

    def __init__(self, mixer: Mixer, state: MixerState) -> None:
        super().__init__(mixer, state)
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


class ThirdInstance(Bare):
    """The third of the instances that are in use at once keeps its state in the memory of the first."""

    used: ClassVar[list["weakref.ref[ThirdInstance]"]] = []

    def __init__(self, S: Array, params: Any) -> None:
        super().__init__(snapshots, S, params)
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


FAULTS: tuple[Wrong, ...] = (
    (AfterFortyWindows, "ssd.verify_snapshots", "SCHED", FLOAT64, EVERYTHING),
    (ReplaysForty, "ssd.verify_replay", "REPLAY", AT_ONCE, EVERYTHING),
    (TwentyTurns, "ssd.buffered_verify", "REPLAY", AT_ONCE, WINDOWS),
    (ByteOfTokens, "ssd.buffered_step", "REPLAY", AT_ONCE, EVERYTHING),
    (ByteOfASequence, "speculate.chain", "INDEX", FLOAT64, EVERYTHING),
    (ThirdInstance, "ssd.verify_snapshots", "SLOT-SCOPE", FLOAT64, EVERYTHING),
    (LatePartial, "ssd.verify_snapshots", "ACCEPT-IDX", FLOAT64, EVERYTHING),
    (FirstTileOfChannels, "speculate.chain", "CONV", FLOAT64, EVERYTHING),
    (FullRingRests, "ssd.buffered_verify", "REPLAY", AT_ONCE, WINDOWS),
)
"""Each with its operation, its bug class, what it declares, and the windows that it takes."""


def adapter() -> Adapter:
    return adapter_of("long runs", FAULTS)
