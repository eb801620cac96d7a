"""Rings, snapshots and replay that lose or keep what they should not, over the reference's paths."""

from dataclasses import replace
from typing import Any

import numpy as np

from ssmspec_ref.contract import Limits
from ssmspec_ref.shapes import Array, Lengths, Parents, Path

from ...adapters.reference_parts.backtracking import AT_ONCE
from ...adapters.reference_parts.windows import RING
from ...mistakes.operators import rounded_to
from ..fault import planted
from ..recurrences.packed import windowed
from ..windows import Replayed, Ring, Steps, Windows, commits, prefix, verifies


class LosesAtTheFlush(Ring):
    """Tokens accepted in the window before a flush are lost. ReplaySSM, algorithm 4."""

    def commit(self, advanced: Lengths, path: Path) -> None:
        full = np.array([len(held) > 12 for held in self.inner.accepted]) if self.inner else np.zeros(len(advanced), bool)
        super().commit(*prefix(np.where(full, 0, advanced), path))


class DropsTheLast(Steps):
    """The sixteenth token, which fills a ring, is read and not kept. Bug class REPLAY, capacity."""

    lost = 16


class KeepsTheFirstWindow(Windows):
    """A window that is verified twice is committed with the tokens of the first time. Bug class SCHED."""

    first: Any = None

    def verify(self, window: Any, parents: Parents | None = None) -> Array:
        y = super().verify(window, parents)
        assert self.inner is not None
        self.first = self.first or self.inner.pending
        return y

    def commit(self, advanced: Lengths, path: Path) -> None:
        assert self.inner is not None
        self.inner.pending, self.first = self.first, None
        super().commit(advanced, path)


class ReplaysWhenVerified(Replayed):
    """What was accepted is replayed by each verification, so that a second one replays it twice. Bug class REPLAY."""

    def verify(self, window: Any, parents: Parents | None = None) -> Array:
        y = super().verify(window, parents)
        assert self.inner is not None
        self.inner.kept = replace(self.inner.kept, state=self.inner.pending.state)
        return y


LIMITS = Limits({"verify": ("once", "twice")}, sizes={"t": (1, RING.window)}, reason="as the ring of the reference")
WRONG: tuple[tuple[str, Any, str], ...] = (
    (
        "buffered_verify",
        commits(
            "KeepsOneMore",
            "The ring holds the first rejected token too. Bug class ACCEPT-IDX.",
            Ring,
            lambda advanced, path: prefix(np.minimum(advanced + 1, path.shape[1]), path),
        ),
        "ACCEPT-IDX",
    ),
    ("buffered_verify", LosesAtTheFlush, "REPLAY"),
    (
        "buffered_verify",
        commits(
            "OneCursor",
            "Every row advances by what the first accepted. Bug class SLOT-SCOPE.",
            Ring,
            lambda advanced, path: prefix(np.full_like(advanced, advanced[0]), path),
        ),
        "SLOT-SCOPE",
    ),
    (
        "buffered_verify",
        verifies(
            "NarrowCheckpoint",
            "The checkpoint is rounded to bf16 when it is flushed. ReplaySSM, its own kernels.",
            Ring,
            state=rounded_to("bf16"),
        ),
        "NUMERIC",
    ),
    ("buffered_step", DropsTheLast, "REPLAY"),
    (
        "verify_snapshots",
        commits(
            "RestingRowsAdvance",
            "A row without a window gets the state after its root. Bug class ROLLBACK.",
            Windows,
            lambda advanced, path: prefix(np.maximum(advanced, 1), path),
        ),
        "PAD-SLOT",
    ),
    (
        "verify_replay",
        commits(
            "ReplaysThePrefix",
            "The first nodes of a tree are replayed instead of the accepted path. STree, section 3.",
            Replayed,
            prefix,
        ),
        "TREE-COMMIT",
    ),
    ("verify_snapshots", KeepsTheFirstWindow, "SCHED"),
    ("verify_replay", ReplaysWhenVerified, "REPLAY"),
)
FAULTS = planted(
    *(
        (build, f"{rule}.{operation}", bug_class, AT_ONCE, LIMITS)
        for rule in windowed()
        for operation, build, bug_class in WRONG
    )
)
