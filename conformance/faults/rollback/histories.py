"""Speculation that is right for one window, and wrong for what the window before it left behind."""

from dataclasses import replace

import numpy as np

from ssmspec_ref.backtrack import Accepted
from ssmspec_ref.layers.mixer import MixerInputs, MixerState
from ssmspec_ref.shapes import Array, Lengths, Parents, Path

from ..fault import planted
from ..windows import Snapshots, Windows, commits, fewer, prefix


class FirstColumnOfStates(Snapshots):
    """A step without drafts starts from the state after the previous window's root. vllm-project/vllm#52942."""

    def start(self, state: MixerState) -> None:
        self.column = state

    def verify(self, inputs: MixerInputs, parents: Parents | None = None) -> Array:
        if inputs.pre.shape[1] == 1:
            self.kept = replace(self.kept, S=self.column.S)
        return super().verify(inputs, parents)

    def commit(self, advanced: Lengths, path: Path) -> None:
        root = prefix(np.minimum(advanced, 1), path)
        self.column = self.path.commit(self.pending, Accepted(root[0], path=root[1]), self.mixer)
        super().commit(advanced, path)


class AdoptsTheUnwritten(Snapshots):
    """After a window with all drafts rejected, a row uses a snapshot that was never written. Bug class COMMIT."""

    def commit(self, advanced: Lengths, path: Path) -> None:
        super().commit(advanced, path)
        S = self.kept.S.copy()
        S[advanced == 1] = 0.0
        self.kept = replace(self.kept, S=S)


class OtherSlot(Snapshots):
    """States are written by slot and read by row. flashinfer-ai/flashinfer#3145."""

    def commit(self, advanced: Lengths, path: Path) -> None:
        super().commit(advanced, path)
        rows = len(advanced)
        S = np.roll(self.kept.S, 1, axis=0) if rows > 1 else np.zeros_like(self.kept.S)
        self.kept = replace(self.kept, S=S)


class TrailsForEver(Snapshots):
    """The tokens undone by a partial rejection are undone again in every later window. TheTom/llama-cpp-turboquant#352."""

    def start(self, state: MixerState) -> None:
        self.behind = np.zeros(state.M.shape[0], dtype=np.int64)

    def commit(self, advanced: Lengths, path: Path) -> None:
        taken = np.maximum(advanced - self.behind, 0)
        rejected = np.where((advanced > 0) & (advanced < path.shape[1]), path.shape[1] - advanced, 0)
        self.behind = np.where(self.behind == 0, rejected, self.behind)
        super().commit(*fewer(taken, path))


class AcceptanceOfTheWindowBefore(Snapshots):
    """A window is committed with the accepted counts of the previous window. Bug class SCHED."""

    def start(self, state: MixerState) -> None:
        self.late: Lengths | None = None

    def commit(self, advanced: Lengths, path: Path) -> None:
        used = advanced if self.late is None else np.minimum(self.late, path.shape[1])
        self.late = advanced
        super().commit(*prefix(used, path))


class StepsAreVerified(Snapshots):
    """A row is given to the path of windows by the shape of the batch, where a single token has nothing to commit.
    Bug class CLASSIFY."""

    def commit(self, advanced: Lengths, path: Path) -> None:
        if path.shape[1] > 1:
            super().commit(advanced, path)


KeepsEveryDraft = commits(
    "KeepsEveryDraft",
    "Acceptance is ignored: the state continues from the last draft. huggingface/transformers#49036.",
    Windows,
    lambda advanced, path: prefix(np.full_like(advanced, path.shape[1]), path),
)
FAULTS = planted(
    (FirstColumnOfStates, "speculate.chain", "ACCEPT-IDX"),
    (AdoptsTheUnwritten, "speculate.chain", "COMMIT"),
    (OtherSlot, "speculate.chain", "SLOT-SCOPE"),
    (TrailsForEver, "speculate.chain", "REPLAY"),
    (AcceptanceOfTheWindowBefore, "speculate.chain", "SCHED"),
    (
        commits(
            "CountsInAnotherOrder",
            "Accepted counts are permuted into the row order of the previous batch. vllm-project/vllm#53919.",
            Snapshots,
            lambda advanced, path: prefix(np.roll(advanced, 1), path),
        ),
        "speculate.chain",
        "SCHED",
    ),
    (StepsAreVerified, "speculate.chain", "CLASSIFY"),
    (
        commits(
            "SharesTheLayer",
            "The accepted count of one row is used for all rows.",
            Snapshots,
            lambda advanced, path: prefix(np.full_like(advanced, advanced.max()), path),
        ),
        "speculate.chain",
        "SLOT-SCOPE",
    ),
    (KeepsEveryDraft, "ssd.verify_snapshots", "ROLLBACK"),
    (KeepsEveryDraft, "delta.verify_snapshots", "ROLLBACK"),
)
