"""Rings, snapshots and replay that lose or keep what they should not, over the reference's paths."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ssmspec_ref.backtrack import activation_replay, snapshots
from ssmspec_ref.contract import Adapter, Capability, Limits, Subject
from ssmspec_ref.shapes import Array, Lengths, Parents, Path

from ...adapters.reference_parts.backtracking import AT_ONCE
from ...adapters.reference_parts.windows import RING, Bare, Stepping
from ...judge.draw import stored
from ..recurrences.packed import windowed


class Ring(Bare):
    """The reference's ring; what follows changes one thing."""

    def __init__(self, S: Array, params: Any) -> None:
        super().__init__(RING, S, params)


class KeepsOneMore(Ring):
    """The ring holds the first rejected token too. Bug class ACCEPT-IDX."""

    def commit(self, advanced: Lengths, path: Path) -> None:
        super().commit(*prefix(np.minimum(advanced + 1, path.shape[1]), path))


class LosesAtTheFlush(Ring):
    """Tokens accepted in the window before a flush are lost. ReplaySSM, algorithm 4."""

    def commit(self, advanced: Lengths, path: Path) -> None:
        full = np.array([len(held) > 12 for held in self.inner.accepted]) if self.inner else np.zeros(len(advanced), bool)
        super().commit(*prefix(np.where(full, 0, advanced), path))


class OneCursor(Ring):
    """Every row advances by what the first accepted. Bug class SLOT-SCOPE."""

    def commit(self, advanced: Lengths, path: Path) -> None:
        super().commit(*prefix(np.full_like(advanced, advanced[0]), path))


class NarrowCheckpoint(Ring):
    """The checkpoint is rounded to bf16 when it is flushed. ReplaySSM, its own kernels."""

    def state(self) -> Array:
        return stored(super().state(), "bf16")


class DropsTheLast(Stepping):
    """The sixteenth token, which fills a ring, is read and not kept. Bug class REPLAY, capacity."""

    def __init__(self, S: Array, params: Any) -> None:
        super().__init__("step_output_only", S, params)
        self.count = 0

    def verify(self, window: Any, parents: Parents | None = None) -> Array:
        held, self.count = self.kept, self.count + 1
        y = super().verify(window, parents)
        if self.count == 16:
            self.kept = held
        return y


class RestingRowsAdvance(Bare):
    """A row without a window gets the state after its root. Bug class ROLLBACK."""

    def __init__(self, S: Array, params: Any) -> None:
        super().__init__(snapshots, S, params)

    def commit(self, advanced: Lengths, path: Path) -> None:
        super().commit(*prefix(np.maximum(advanced, 1), path))


class ReplaysThePrefix(Bare):
    """The first nodes of a tree are replayed instead of the accepted path. STree, section 3."""

    def __init__(self, S: Array, params: Any) -> None:
        super().__init__(activation_replay, S, params)

    def commit(self, advanced: Lengths, path: Path) -> None:
        super().commit(*prefix(advanced, path))


class KeepsTheFirstWindow(Bare):
    """A window that is verified twice is committed with the tokens of the first time. Bug class SCHED."""

    def __init__(self, S: Array, params: Any) -> None:
        super().__init__(snapshots, S, params)
        self.first: Any = None

    def verify(self, window: Any, parents: Parents | None = None) -> Array:
        y = super().verify(window, parents)
        assert self.inner is not None
        self.first = self.first or self.inner.pending
        return y

    def commit(self, advanced: Lengths, path: Path) -> None:
        assert self.inner is not None
        self.inner.pending, self.first = self.first, None
        super().commit(advanced, path)


class ReplaysWhenVerified(Bare):
    """What was accepted is replayed by each verification, so that a second one replays it twice. Bug class REPLAY."""

    def __init__(self, S: Array, params: Any) -> None:
        super().__init__(activation_replay, S, params)

    def verify(self, window: Any, parents: Parents | None = None) -> Array:
        y = super().verify(window, parents)
        assert self.inner is not None
        self.inner.kept = replace(self.inner.kept, state=self.inner.pending.state)
        return y


def prefix(advanced: Lengths, path: Path) -> tuple[Lengths, Path]:
    """The first tokens of a window as what was accepted."""
    first = np.arange(path.shape[1])
    return advanced, np.where(first < advanced[:, None], first, -1)


WRONG: tuple[tuple[str, Callable[..., Any]], ...] = (
    ("buffered_verify", KeepsOneMore),
    ("buffered_verify", LosesAtTheFlush),
    ("buffered_verify", OneCursor),
    ("buffered_verify", NarrowCheckpoint),
    ("buffered_step", DropsTheLast),
    ("verify_snapshots", RestingRowsAdvance),
    ("verify_replay", ReplaysThePrefix),
    ("verify_snapshots", KeepsTheFirstWindow),
    ("verify_replay", ReplaysWhenVerified),
)
"""The operation of each."""
LIMITS = Limits({"verify": ("once", "twice")}, sizes={"t": (1, RING.window)}, reason="as the ring of the reference")


def subject(operation: str, build: Any, rule: str = "ssd") -> Subject:
    name = f"{rule}.{operation}"
    return Subject(build.__name__, {name: Capability(build, AT_ONCE, LIMITS)}, absent={"": "a fault of one operation"})


def adapter() -> Adapter:
    return Adapter("faulty windows", "1", tuple(subject(*wrong, rule) for wrong in WRONG for rule in windowed()))
