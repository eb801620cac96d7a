"""Activation replay: keep the state before the last window and the window's inputs, and replay the accepted ones.

    M <- conv window after the accepted inputs        (1)
    S <- S advanced by the accepted tokens            (2)
    y  = the new window, from M and S                 (3)
    keep the new window's inputs                      (4)

The replay happens at the start of the next window, as in the paper, so that one launch does both. The cached values after the
convolution can be used again because an accepted prefix, or path, saw exactly the accepted context.

Source: Snakes and Ladders, section 3.1 and algorithm 2; along a tree path, STree, section 3.
"""

from dataclasses import dataclass

import numpy as np

from .. import conv
from ..layers.mixer import Mixer, MixerState, RecurrenceWindow, verify_window
from ..records import Record, along, rows
from ..shapes import Array, Channels, Lengths, Path
from .protocol import Accepted, Draft


@dataclass(frozen=True)
class Cache(Record):
    """The inputs of the last window: before the convolution for M, after it for S."""

    pre: Channels
    window: RecurrenceWindow
    path: Path


@dataclass(frozen=True)
class Kept(Record):
    """The state before the cached window, and the cache (None before the first window)."""

    state: MixerState
    cache: Cache | None = None


@dataclass(frozen=True)
class Pending:
    """The state that the window started from, the window, and the recurrence's inputs for it."""

    state: MixerState
    draft: Draft
    window: RecurrenceWindow


def start(state: MixerState) -> Kept:
    return Kept(state)


def restore(kept: Kept, mixer: Mixer) -> MixerState:
    """The state after everything committed, equations (1) and (2)."""
    if kept.cache is None:
        return kept.state
    cache = kept.cache
    M = conv.commit_path(kept.state.M, cache.pre, cache.path)  # (1)
    _, S = mixer.recurrence.scan(kept.state.S, along(cache.window, cache.path), mixer.params, cache.path >= 0)  # (2)
    return MixerState(M, S)


def verify(kept: Kept, draft: Draft, mixer: Mixer) -> tuple[Array, Pending]:
    """Replay the accepted tokens, then read the window: equations (1) to (3).

    Raises: ShapeMismatch, PrecisionError, EmptyWindow, LengthError, NotTopological, ParameterError.
    """
    state = restore(kept, mixer)  # (1) (2)
    y, window = verify_window(draft.begin(state), draft.inputs, mixer, draft.live(), draft.parents)  # (3)
    return y, Pending(state, draft, window)


def commit(pending: Pending, accepted: Accepted, mixer: Mixer) -> Kept:
    """Cache the accepted row of the window (4). Nothing is computed, and rejected tokens are never read again.

    Raises: AcceptanceError.
    """
    row, path = accepted.choose(pending.draft, pending.state.M.shape[0])
    return Kept(pending.state, Cache(rows(pending.draft.inputs.pre, row), rows(pending.window, row), path))  # (4)


def refeed(kept: Kept) -> Lengths:
    return np.zeros(kept.state.M.shape[0], dtype=np.int64)
