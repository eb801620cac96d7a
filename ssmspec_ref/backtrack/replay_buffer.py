"""ReplaySSM's replay buffer: a checkpoint that every window reads and few write, and a ring of the inputs since then.

Each row has a checkpoint S_0, a ring of L inputs (`ssd_buffered`, `delta_buffered` and `selective_buffered` say what is
stored per token), and two cursors: the origin of the ring, and h, the number of committed tokens in it. For a window of T
tokens

    entry h + s of the ring, at (origin + h + s) mod L, <- token s of the window   (1)
    y from S_0, the h entries, and the window up to s                              (2)
    a row that is due: S_0 <- S_0 advanced by the h entries; origin += h, h = 0    (3)
    commit: h += advanced; rejected entries lie past h and are overwritten later   (4)
    due at the next window iff h + 2T > L                                          (5)

The flush (3) folds committed tokens only. The current window may still be rejected, so it stays in the ring, where (1) put
it. History and window therefore share the L entries, and h + T <= L is needed whether a row is due or not. With (5) this
always holds, for L >= 2T: a row that is not due has h <= L - 2T, so h <= B = L - T after any commit, and one that was due
has h <= T <= B. With the simpler rule h + T > L it does not: h = L - T is not due, a full acceptance makes h = L, and the
flush comes one window too late, when no entry is free for the current window. The rule is applied to each row: rows accept
different numbers of tokens, so they are due at different windows. With L < 2T a row is always due, and if the next window
would not fit, the committed tokens must be flushed first (`flush`). L need not be a power of two; the published kernel's ring
of 32 for L = 20 has 12 entries that are never used.

Here (1) is done at commit, for the accepted draft only, because several drafts of a sequence share one ring; the published
kernel has one draft and writes it first. The entries are the same, and so is the space needed.

The convolution needs no ring: its window after each commit is w inputs, fewer than a ring would hold, and is stored directly.

Standard decode uses the same buffer with a window of one token that is already accepted: it is appended first, and the token
that fills the ring is folded with the others. The published kernel folds that token directly and never writes the L-th entry.

Source: ReplaySSM, algorithms 2, 4, 6 and 8, and the paragraphs on early flush and the ring.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from .. import conv
from ..errors import ParameterError, RingOverflow, Unsupported
from ..layers.mixer import Mixer, MixerInputs, MixerState, RecurrenceState, RecurrenceWindow, window
from ..lengths import first
from ..records import Record, along, arrays, each, masked, rows, where
from ..shapes import Array, ConvState, Lengths, Mask
from .protocol import Accepted, Draft

History: TypeAlias = Record


@dataclass(frozen=True)
class Kept(Record):
    """The window of the convolution, the checkpoint, the ring (None before the first window) and its cursors."""

    M: ConvState
    S_0: RecurrenceState
    origin: Lengths
    held: Lengths  # h
    ring: History | None = None


@dataclass(frozen=True)
class Pending:
    """What was kept, the same after flushing the rows that were due, the window, and its entries for the ring."""

    kept: Kept
    flushed: Kept
    draft: Draft
    entries: History


@dataclass(frozen=True)
class ReplayBuffer:
    """The path with rings of `capacity` L entries, for windows of up to `window` T tokens.

    Raises: ParameterError unless 1 <= T <= L.
    """

    capacity: int
    window: int

    def __post_init__(self) -> None:
        if not 1 <= self.window <= self.capacity:
            raise ParameterError(
                f"capacity and window are {self.capacity} and {self.window}; give 1 <= window <= capacity, "
                "and capacity >= 2 window for windows that always fit"
            )

    def start(self, state: MixerState) -> Kept:
        zeros = np.zeros(state.M.shape[0], dtype=np.int64)
        return Kept(state.M, state.S, zeros, zeros)

    def due(self, held: Lengths) -> Array:
        """Which rows the next window flushes: h + 2T > L (5)."""
        return held + 2 * self.window > self.capacity

    def verify(self, kept: Kept, draft: Draft, mixer: Mixer) -> tuple[Array, Pending]:
        """Flush the rows that are due and read the outputs of the window: equations (2) and (3). No state is written.

        Raises: RingOverflow for a window that does not fit after the history, before anything is computed; Unsupported for a
        tree, because the entries of an accepted path are not consecutive in the ring; ShapeMismatch, PrecisionError,
        EmptyWindow, LengthError, ParameterError.
        """
        if draft.parents is not None:
            raise Unsupported(
                "the replay buffer holds chains only: the accepted nodes of a tree are not neighbours in its ring"
            )
        sequence, live = draft.continues(len(kept.held)), draft.live()
        self._check_fit(kept.held[sequence], live.sum(axis=1))
        r, _ = window(kept.M[sequence], draft.inputs, mixer, live)
        kept = replace(kept, ring=self._ring(kept, masked(r, live), mixer))
        flushed = where(self.due(kept.held), self.flush(kept, mixer), kept)  # (3)
        history, held = in_order(rows(flushed, sequence))
        y, entries = mixer.buffered.output_only(flushed.S_0[sequence], history, held, r, mixer.params, live)  # (2)
        return y, Pending(kept, flushed, draft, entries)

    def commit(self, pending: Pending, accepted: Accepted, mixer: Mixer) -> Kept:
        """Write the accepted row of the window into the ring (1) and advance its cursor by the accepted tokens (4).

        Raises: AcceptanceError.
        """
        kept, draft, advanced = pending.flushed, pending.draft, accepted.advanced
        row, _ = accepted.choose(draft, len(kept.held))
        M = conv.commit(kept.M, draft.inputs.pre[row], advanced)
        ring = write(kept, rows(pending.entries, row), draft.live()[row])  # (1)
        took = Kept(M, kept.S_0, kept.origin, kept.held + advanced, ring)  # (4)
        return where(advanced > 0, took, pending.kept)

    def restore(self, kept: Kept, mixer: Mixer) -> MixerState:
        """The checkpoint advanced by the committed entries."""
        return MixerState(kept.M, fold(kept, mixer))

    def refeed(self, kept: Kept) -> Lengths:
        return np.zeros_like(kept.held)

    def flush(self, kept: Kept, mixer: Mixer) -> Kept:
        """Flush every row now, due or not: equation (3). Between windows the whole history is committed.

        For a state that leaves the buffer (prefix caching, preemption), or to make room for a longer window.
        """
        origin = (kept.origin + kept.held) % self.capacity
        return Kept(kept.M, fold(kept, mixer), origin, np.zeros_like(kept.held), kept.ring)

    def step_output_only(self, kept: Kept, inputs: MixerInputs, mixer: Mixer, live: Mask | None = None) -> tuple[Array, Kept]:
        """Standard decode of one token; its output is read from S_0 and the ring.

        Raises: RingOverflow, ShapeMismatch, PrecisionError, EmptyWindow.
        Source: ReplaySSM, algorithm 2.
        """
        return self._step(kept, inputs, mixer, mixer.buffered.output_only, live)

    def step_state_and_output(
        self, kept: Kept, inputs: MixerInputs, mixer: Mixer, live: Mask | None = None
    ) -> tuple[Array, Kept]:
        """Standard decode of one token; its output is read from the rebuilt state.

        Raises: RingOverflow, ShapeMismatch, PrecisionError, EmptyWindow.
        Source: ReplaySSM, algorithm 6, and its outer-product route for Mamba-2.
        """
        return self._step(kept, inputs, mixer, mixer.buffered.state_and_output, live)

    def _step(
        self, kept: Kept, inputs: MixerInputs, mixer: Mixer, route: Callable[..., tuple[Array, History]], live: Mask | None
    ) -> tuple[Array, Kept]:
        live = np.ones(inputs.pre.shape[:2], dtype=bool) if live is None else live
        count = live.sum(axis=1)
        self._check_fit(kept.held, count)
        r, M = window(kept.M, inputs, mixer, live)
        kept = replace(kept, ring=self._ring(kept, masked(r, live), mixer))
        history, held = in_order(kept)
        y, entries = route(kept.S_0, history, held, r, mixer.params, live)
        appended = Kept(M, kept.S_0, kept.origin, kept.held + count, write(kept, entries, live))
        return y, where(appended.held == self.capacity, self.flush(appended, mixer), appended)

    def _check_fit(self, held: Lengths, lengths: Lengths) -> None:
        """Raise RingOverflow unless every window fits after its history: h + T <= L."""
        for r in np.flatnonzero(held + lengths > self.capacity):
            raise RingOverflow(
                f"row {r} adds {lengths[r]} tokens to a ring of {self.capacity} that holds {held[r]}; "
                f"give at most {self.capacity - held[r]}, or flush before the window"
            )

    def _ring(self, kept: Kept, window: RecurrenceWindow, mixer: Mixer) -> History:
        """The ring, created at the first window with the shapes of its entries."""
        if kept.ring is not None:
            return kept.ring
        like = mixer.buffered.entries(window, mixer.params)
        return each(lambda a: np.zeros((len(kept.held), self.capacity, *a.shape[2:])), like)


def in_order(kept: Kept) -> tuple[History, Array]:
    """The entries of the ring from its origin on, and which of them are in use."""
    assert kept.ring is not None
    capacity = ring_size(kept.ring)
    return along(kept.ring, (kept.origin[:, None] + np.arange(capacity)) % capacity), first(kept.held, capacity)


def fold(kept: Kept, mixer: Mixer) -> RecurrenceState:
    """The checkpoint advanced by the held entries, in order."""
    if kept.ring is None:
        return kept.S_0
    history, held = in_order(kept)
    return mixer.buffered.fold(kept.S_0, history, held, mixer.params)


def write(kept: Kept, entries: History, live: Mask) -> History:
    """The ring with a window's real tokens after the committed ones, at (origin + h + s) mod L (1)."""
    assert kept.ring is not None
    b, s = np.nonzero(live)
    place = (kept.origin[b] + kept.held[b] + s) % ring_size(kept.ring)
    return each(lambda ring, new: put(ring, (b, place), new[b, s]), kept.ring, entries)


def put(array: Array, index: tuple[Array, Array], values: Array) -> Array:
    """A copy of an array with some of its elements replaced."""
    changed = array.copy()
    changed[index] = values
    return changed


def ring_size(ring: History) -> int:
    return int(next(arrays(ring)).shape[1])
