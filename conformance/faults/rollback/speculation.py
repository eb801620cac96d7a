"""Speculation that commits wrongly or reads the wrong ancestors, over the reference's snapshots."""

from dataclasses import replace
from typing import Any

import numpy as np

from ssmspec_ref.layers.mixer import Mixer, MixerInputs, MixerState, SSDMixer, scan
from ssmspec_ref.records import where
from ssmspec_ref.shapes import Array, Lengths, Parents, Path

from ..fault import planted
from ..windows import Snapshots, Taken, commits, fewer


class KeepsConvWindow(Snapshots):
    """Rejected inputs stay in the window of the convolution; the state is rolled back. vllm-project/vllm#50272."""

    def commit(self, advanced: Lengths, path: Path) -> None:
        whole = scan(self.kept, self.pending.draft.inputs, self.mixer)[1]
        super().commit(advanced, path)
        self.kept = replace(self.kept, M=whole.M)


class TreeAsChain(Snapshots):
    """Every node reads all earlier nodes: a lower-triangular mask."""

    def verify(self, inputs: MixerInputs, parents: Parents | None = None) -> Array:
        y = super().verify(inputs, parents)
        return y if parents is None else scan(self.kept, inputs, self.mixer, self.pending.draft.live())[0]


class RollsBackToStart(Snapshots):
    """A rejected window restores the state of the first window, not of the last commit."""

    def start(self, state: MixerState) -> None:
        self.first = state

    def commit(self, advanced: Lengths, path: Path) -> None:
        super().commit(advanced, path)
        self.kept = where(advanced == 0, self.first, self.kept)


class FirstColumnWithoutDrafts(Snapshots):
    """A step without drafts reads the previous step's window of the convolution. vllm, bug class ACCEPT-IDX."""

    def start(self, state: MixerState) -> None:
        self.before = state

    def verify(self, inputs: MixerInputs, parents: Parents | None = None) -> Array:
        held = self.kept
        if inputs.pre.shape[1] == 1:
            self.kept = replace(held, M=self.before.M)
        self.before = held
        return super().verify(inputs, parents)


class SettlesWhenRead(Snapshots):
    """Accepted tokens are committed when the state is read; the next verification ignores them."""

    def start(self, state: MixerState) -> None:
        self.due = state

    def commit(self, advanced: Lengths, path: Path) -> None:
        held = self.kept
        super().commit(advanced, path)
        self.due, self.kept = self.kept, held

    def state(self) -> tuple[Array, Array]:
        self.kept = self.due
        return super().state()


class ForgetsPast32(Snapshots):
    """A full ring of 32 tokens is not flushed: tokens accepted later are lost."""

    def start(self, state: MixerState) -> None:
        self.room = np.full(state.M.shape[0], 32)

    def commit(self, advanced: Lengths, path: Path) -> None:
        fitting = np.minimum(advanced, self.room)
        self.room = self.room - fitting
        super().commit(*fewer(fitting, path))


class TilesGroups(Snapshots):
    """The groups of B are repeated one after the other instead of each beside itself. Bug class GROUP-MAP."""

    def __init__(self, mixer: Mixer, state: MixerState) -> None:
        super().__init__(Tiled(**vars(mixer)) if isinstance(mixer, SSDMixer) else mixer, state)


class Tiled(SSDMixer):
    """B of several groups widened in the wrong order."""

    def project(self, c: Array, gates: Any) -> Any:
        window = super().project(c, gates)
        few = self.B_groups or self.groups
        order = np.tile(np.arange(few) * (self.groups // few), self.groups // few)
        return replace(window, B=window.B[:, :, order])


def with_the_root(advanced: Lengths, path: Path) -> Taken:
    path = path.copy()
    path[advanced == 0, 0] = 0
    return np.maximum(advanced, 1), path


BOTH = ("speculate.chain", "speculate.tree")
WRONG = planted(
    (KeepsConvWindow, BOTH, "ROLLBACK"),
    (
        commits("RestingRowsAdvance", "A row without a window commits its root.", Snapshots, with_the_root),
        BOTH,
        "PAD-SLOT",
    ),
    (
        commits(
            "LosesLastToken",
            "The last accepted token is not committed.",
            Snapshots,
            lambda advanced, path: fewer(np.maximum(advanced - 1, 0), path),
        ),
        BOTH,
        "COMMIT",
    ),
    (TreeAsChain, "speculate.tree", "TREE-MASK"),
    (RollsBackToStart, BOTH, "ROLLBACK"),
)
REACH = planted(
    (FirstColumnWithoutDrafts, BOTH, "ACCEPT-IDX"),
    (SettlesWhenRead, BOTH, "COMMIT"),
    (ForgetsPast32, BOTH, "REPLAY"),
    (
        commits(
            "EightTokensAtMost",
            "The array of accepted tokens has only eight entries. Bug class REPLAY, capacity.",
            Snapshots,
            lambda advanced, path: fewer(np.minimum(advanced, 8), path),
        ),
        BOTH,
        "REPLAY",
    ),
    (TilesGroups, BOTH, "GROUP-MAP"),
)
"""Faults that only long runs, varied windows, wide groups or an unobserved state show."""
FAULTS = (*WRONG, *REACH)
