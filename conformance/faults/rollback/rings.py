"""Rings and checkpoints that are read with what does not belong to them."""

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from ssmspec_ref import ssd
from ssmspec_ref.layers import mixer
from ssmspec_ref.layers.mixer import MixerState
from ssmspec_ref.records import along, concat
from ssmspec_ref.shapes import Array, Lengths, Parents, Path

from ...adapters.reference_parts.backtracking import AT_ONCE
from ..fault import planted
from ..recurrences.size_limits import steps
from ..windows import Ring, prefix
from .windows import LIMITS

BLOCK = 4


class KeepsItsFill(Ring):
    """A reused slot has a new checkpoint, but its ring still holds tokens of the previous sequence.
    NVIDIA/TensorRT-LLM#13453."""

    before: ClassVar[Ring | None] = None

    def verify(self, window: Any, parents: Parents | None = None) -> Array:
        first, before = self.inner is None, KeepsItsFill.before
        y = super().verify(window, parents)
        inner = self.inner
        if first and before is not None and before.inner is not None and inner is not None and before.S.shape == self.S.shape:
            old = before.inner
            left, live = old._gather([list(old._last(b, min(3, len(held)))) for b, held in enumerate(old.accepted)])
            if left.pre.shape[2] == inner.mixer.conv.weight.shape[0] and left.pre.shape[1] > 0:
                begin = MixerState(np.zeros((len(self.S), left.pre.shape[2], 2)), self.S)
                there = np.arange(left.pre.shape[1]) < live[:, None]
                _, held = mixer.scan(begin, left, inner.mixer, there)
                self.inner, self.S = None, held.S
                y = super().verify(window, parents)
        KeepsItsFill.before = self
        return y


class DeadTimesZero(Ring):
    """Unused entries of the ring are multiplied by zero instead of skipped. NVIDIA/TensorRT-LLM#14509."""

    unused = 0.0

    def poison(self) -> None:
        self.unused = float("nan")

    def verify(self, window: Any, parents: Parents | None = None) -> Array:
        return super().verify(window, parents) + 0.0 * self.unused


class RunBehindTheBlock(Ring):
    """A checkpoint at a block boundary contains the whole accepted run, and the rest of the run is replayed again. Bug class
    PREFIX-CKPT."""

    def commit(self, advanced: Lengths, path: Path) -> None:
        super().commit(advanced, path)
        assert self.inner is not None
        total = np.array([len(held) for held in self.inner.accepted])
        crossed = total // BLOCK * BLOCK > total - advanced
        rest = np.where(crossed, total % BLOCK, 0)
        if rest.any():
            again, lengths = self.inner._gather([list(self.inner._last(b, count)) for b, count in enumerate(rest)])
            self.inner.verify(again)
            self.inner.commit(*prefix(lengths, np.zeros(again.pre.shape[:2])))


class CumulatedTwice:
    """Tokens in a partly filled block are stored with cumulated decays, which are cumulated again. Log-linear Mamba-2,
    fla-org/flash-linear-attention#1176."""

    def __init__(self, S: Array, params: Any) -> None:
        self.S, self.params = S, params
        self.held: Any = None
        self.live: Any = None

    def verify(self, window: Any, parents: Parents | None = None) -> Array:
        self.window, self.formed = steps(window, self.params, lambda dt: dt)
        if self.held is None:
            return ssd.scan(self.S, self.window, self.formed)[0]
        tokens = window.x.shape[1]
        live = np.concatenate([self.live, np.ones((len(self.S), tokens), dtype=bool)], axis=1)
        return ssd.scan(self.S, concat(self.twice(), self.window), self.formed, live)[0][:, -tokens:]

    def commit(self, advanced: Lengths, path: Path) -> None:
        taken, there = along(self.window, path), path >= 0
        self.live = there if self.held is None else np.concatenate([self.live, there], axis=1)
        self.held = taken if self.held is None else concat(self.held, taken)

    def state(self) -> Array:
        return ssd.scan(self.S, self.twice(), self.formed, self.live)[1]

    def twice(self) -> Any:
        """The held tokens; in the block that is not full, with steps summed. x is divided, so that dt x B stays."""
        dt, full = np.where(self.live[:, :, None], self.held.dt, 0.0), self.live.shape[1] // BLOCK * BLOCK
        summed = np.concatenate([dt[:, :full], np.cumsum(dt[:, full:], axis=1)], axis=1)
        ratio = np.divide(dt, summed, out=np.zeros_like(dt), where=summed > 0)
        return replace(self.held, dt=summed, x=self.held.x * ratio[..., None])


FAULTS = planted(
    (KeepsItsFill, "ssd.buffered_verify", "SLOT-REUSE", AT_ONCE, LIMITS),
    (DeadTimesZero, "ssd.buffered_verify", "REPLAY", AT_ONCE, LIMITS),
    (RunBehindTheBlock, "ssd.buffered_verify", "PREFIX-CKPT", AT_ONCE, LIMITS),
    (CumulatedTwice, "ssd.verify_replay", "CHUNK", AT_ONCE, LIMITS),
)
