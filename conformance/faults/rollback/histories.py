"""Speculation that is right for one window, and wrong for what the window before it left behind."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ssmspec_ref.backtrack import Accepted, snapshots
from ssmspec_ref.contract import Adapter
from ssmspec_ref.layers.mixer import Mixer, MixerInputs, MixerState
from ssmspec_ref.shapes import Array, Lengths, Parents, Path

from ...adapters.reference_parts.windows import Bare
from ..single import single
from .speculation import Snapshots
from .windows import prefix


class FirstColumnOfStates(Snapshots):
    """A step without drafts starts from the state after the previous window's root. vllm-project/vllm#52942."""

    def __init__(self, mixer: Mixer, state: MixerState) -> None:
        super().__init__(mixer, state)
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

    def __init__(self, mixer: Mixer, state: MixerState) -> None:
        super().__init__(mixer, state)
        self.behind = np.zeros(state.M.shape[0], dtype=np.int64)

    def commit(self, advanced: Lengths, path: Path) -> None:
        fewer = np.maximum(advanced - self.behind, 0)
        rejected = np.where((advanced > 0) & (advanced < path.shape[1]), path.shape[1] - advanced, 0)
        self.behind = np.where(self.behind == 0, rejected, self.behind)
        super().commit(fewer, np.where(np.arange(path.shape[1]) < fewer[:, None], path, -1))


class AcceptanceOfTheWindowBefore(Snapshots):
    """A window is committed with the accepted counts of the previous window. Bug class SCHED."""

    def __init__(self, mixer: Mixer, state: MixerState) -> None:
        super().__init__(mixer, state)
        self.late: Lengths | None = None

    def commit(self, advanced: Lengths, path: Path) -> None:
        used = advanced if self.late is None else np.minimum(self.late, path.shape[1])
        self.late = advanced
        super().commit(*prefix(used, path))


class CountsInAnotherOrder(Snapshots):
    """Accepted counts are permuted into the row order of the previous batch. vllm-project/vllm#53919."""

    def commit(self, advanced: Lengths, path: Path) -> None:
        super().commit(*prefix(np.roll(advanced, 1), path))


class StepsAreVerified(Snapshots):
    """A row is given to the path of windows by the shape of the batch, where a single token has nothing to commit.
    Bug class CLASSIFY."""

    def commit(self, advanced: Lengths, path: Path) -> None:
        if path.shape[1] > 1:
            super().commit(advanced, path)


class SharesTheLayer(Snapshots):
    """The accepted count of one row is used for all rows."""

    def commit(self, advanced: Lengths, path: Path) -> None:
        super().commit(*prefix(np.full_like(advanced, advanced.max()), path))


class KeepsEveryDraft(Bare):
    """Acceptance is ignored: the state continues from the last draft. huggingface/transformers#49036."""

    def __init__(self, S: Array, params: Any) -> None:
        super().__init__(snapshots, S, params)

    def commit(self, advanced: Lengths, path: Path) -> None:
        super().commit(*prefix(np.full_like(advanced, path.shape[1]), path))


FAULTS: tuple[tuple[Callable[..., Any], str, str], ...] = (
    (FirstColumnOfStates, "speculate.chain", "ACCEPT-IDX"),
    (AdoptsTheUnwritten, "speculate.chain", "COMMIT"),
    (OtherSlot, "speculate.chain", "SLOT-SCOPE"),
    (TrailsForEver, "speculate.chain", "REPLAY"),
    (AcceptanceOfTheWindowBefore, "speculate.chain", "SCHED"),
    (CountsInAnotherOrder, "speculate.chain", "SCHED"),
    (StepsAreVerified, "speculate.chain", "CLASSIFY"),
    (SharesTheLayer, "speculate.chain", "SLOT-SCOPE"),
    (KeepsEveryDraft, "ssd.verify_snapshots", "ROLLBACK"),
    (KeepsEveryDraft, "delta.verify_snapshots", "ROLLBACK"),
)
"""Each with its operation and its bug class."""


def adapter() -> Adapter:
    return Adapter("faulty histories", "1", tuple(single(operation, build) for build, operation, _ in FAULTS))
