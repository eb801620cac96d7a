"""Speculation in a layer that commits one part of a state wrongly: all drafts, nothing, or all but the last token."""

from dataclasses import replace
from typing import ClassVar

from ssmspec_ref.backtrack import snapshots
from ssmspec_ref.layers.mixer import MixerState, scan
from ssmspec_ref.records import where
from ssmspec_ref.shapes import Lengths, Path

from ..fault import planted
from ..windows import Snapshots


class OtherCommit(Snapshots):
    """Commits a state of which one part may be of another place in the window."""

    parts: ClassVar[tuple[str, ...]] = ("M", "S")

    def other(self, held: MixerState, advanced: Lengths, path: Path) -> MixerState:
        """The state that these parts are taken from."""
        raise NotImplementedError

    def commit(self, advanced: Lengths, path: Path) -> None:
        other = self.other(self.kept, advanced, path)
        super().commit(advanced, path)
        self.kept = replace(self.kept, **{part: getattr(other, part) for part in self.parts})


class AllDrafts(OtherCommit):
    """A row that accepts a token commits all drafts."""

    def other(self, held: MixerState, advanced: Lengths, path: Path) -> MixerState:
        return where(advanced > 0, scan(held, self.pending.draft.inputs, self.mixer)[1], held)


class StateOfEveryRow(OtherCommit):
    """The state takes all drafts of every row, also of one that accepts nothing; the window of the convolution is right."""

    parts = ("S",)

    def other(self, held: MixerState, advanced: Lengths, path: Path) -> MixerState:
        return scan(held, self.pending.draft.inputs, self.mixer)[1]


class Whole(OtherCommit):
    """What is taken otherwise if a window is accepted whole."""

    def before(self, held: MixerState) -> MixerState:
        return held

    def other(self, held: MixerState, advanced: Lengths, path: Path) -> MixerState:
        right = snapshots.pick(self.pending.snapshots, path.max(axis=1) + 1)
        return where(advanced == path.shape[1], self.before(held), where(advanced > 0, right, held))


class WholeLosesTheLast(Whole):
    """A window that is accepted whole is committed without its last token."""

    def before(self, held: MixerState) -> MixerState:
        found: MixerState = self.pending.snapshots[-2]
        return found


def part(name: str, says: str, base: type[OtherCommit], *parts: str) -> type[OtherCommit]:
    """The same mistake in one part of a state."""
    return type(name, (base,), {"parts": parts, "__doc__": says})


WindowOfAllDrafts = part(
    "WindowOfAllDrafts",
    "The window of the convolution takes all drafts of a row that accepts a token; the state is right.",
    AllDrafts,
    "M",
)
StateOfAllDrafts = part(
    "StateOfAllDrafts",
    "The state takes all drafts of a row that accepts a token; the window of the convolution is right.",
    AllDrafts,
    "S",
)
FAULTS = planted(
    (AllDrafts, "speculate.chain", "ROLLBACK"),
    (WindowOfAllDrafts, "speculate.chain", "ROLLBACK"),
    (StateOfAllDrafts, "speculate.chain", "ROLLBACK"),
    (StateOfEveryRow, "speculate.chain", "ROLLBACK"),
    (WindowOfAllDrafts, "speculate.tree", "ROLLBACK"),
    (StateOfAllDrafts, "speculate.tree", "ROLLBACK"),
    (
        part(
            "WholeKeepsTheWindow",
            "A window that is accepted whole leaves the window of the convolution as it was; the state is right.",
            Whole,
            "M",
        ),
        "speculate.chain",
        "COMMIT",
    ),
    (
        part(
            "WholeKeepsTheState",
            "A window that is accepted whole leaves the state as it was; the window of the convolution is right.",
            Whole,
            "S",
        ),
        "speculate.chain",
        "COMMIT",
    ),
    (WholeLosesTheLast, "speculate.chain", "ACCEPT-IDX"),
    (
        part(
            "WholeStateLosesTheLast",
            "A window that is accepted whole leaves the state before its last token; the window of the convolution is right.",
            WholeLosesTheLast,
            "S",
        ),
        "speculate.chain",
        "ACCEPT-IDX",
    ),
)
