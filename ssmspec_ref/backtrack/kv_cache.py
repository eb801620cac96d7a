"""The attention layers of a hybrid, with the signature of the other paths: only a cache and a length have to be rolled back.

    y, cache' = the window, its keys and values after the committed slots    (1)
    commit    : the accepted ones move to the end of the committed slots     (2)

A rejected token is undone because its slot is past the length. If a recurrent path lags (`joint`), a window begins with
tokens that this cache holds already: it is read from the length minus the lag, and overwrites these slots.

Source: as `attention`.
"""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from .. import attention, tree
from ..attention import AttentionParams, AttentionWindow, KVState
from ..records import rows, where
from ..shapes import Array, Lengths, Query
from .protocol import Accepted, Draft

Kept: TypeAlias = KVState


@dataclass(frozen=True)
class AttentionDraft(Draft):
    """The window of an attention layer: queries, keys and values before the position embedding."""

    inputs: AttentionWindow  # type: ignore[assignment]

    @property
    def tokens(self) -> int:
        return int(self.inputs.q.shape[1])

    @property
    def rows(self) -> int:
        return int(self.inputs.q.shape[0])


@dataclass(frozen=True)
class Pending:
    """What was kept, the window, the cache of each row including the window, and the lag of the sequences."""

    kept: Kept
    draft: AttentionDraft
    appended: KVState
    lag: Lengths


def start(state: KVState) -> Kept:
    return attention.trim(state)


def verify(kept: Kept, draft: AttentionDraft, params: AttentionParams, lag: Lengths | None = None) -> tuple[Query, Pending]:
    """The outputs at every token of a window, or node of a tree (1). Each row begins with the `lag` tokens of its sequence.

    Raises: ShapeMismatch, PrecisionError, EmptyWindow, LengthError, NotTopological, ParameterError.
    """
    sequences = kept.length.shape[0]
    lag = np.zeros(sequences, dtype=np.int64) if lag is None else lag
    begun = rows(KVState(kept.K, kept.V, kept.length - lag), draft.continues(sequences))
    ancestors = tree.ancestors(np.where(draft.live(), draft.tree(), tree.PADDING))
    y, appended = attention.verify(begun, draft.inputs, ancestors, params)  # (1)
    return y, Pending(kept, draft, appended, lag)


def commit(pending: Pending, accepted: Accepted, params: AttentionParams) -> Kept:
    """Move the accepted slots to the end of the committed slots (2); the rest is dead.

    Raises: AcceptanceError.
    """
    kept, lag = pending.kept, pending.lag
    row, path = accepted.choose(pending.draft, kept.length.shape[0], lag)
    took = accepted.advanced > 0
    written = rows(pending.appended, row)
    from_length = np.where(path >= 0, path - lag[:, None], -1)
    K, V = (grown(cache, written.K.shape[1]) for cache in (kept.K, kept.V))
    before = where(took, KVState(written.K, written.V, kept.length), KVState(K, V, kept.length))
    return attention.trim(attention.compact(before, from_length))  # (2)


def grown(cache: Array, slots: int) -> Array:
    """The cache, extended to at least `slots` slots."""
    return np.pad(cache, ((0, 0), (0, max(0, slots - cache.shape[1])), (0, 0), (0, 0)))


def restore(kept: Kept, params: AttentionParams) -> KVState:
    return kept


def refeed(kept: Kept) -> Lengths:
    return np.zeros(kept.length.shape[0], dtype=np.int64)
