"""Snapshots: keep the state before the window and after each of its tokens; commit selects one.

    (M, S)_-1 = the state before the window          (1)
    (M, S)_t  = step of (M, S)_parent(t) by token t  (2)
    commit: the state after the last accepted token  (3)

The parent of a token of a chain is the token before it. This costs a whole state per token of a window. The other paths avoid
this cost, and are compared with this one.

Source: ReplaySSM, algorithm 3 (standard speculative decode, as in vLLM); Snakes and Ladders, section 3.1, calls the cost
prohibitive.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from ..layers.mixer import Mixer, MixerState, scan
from ..records import each, where
from ..shapes import Array, Lengths
from .protocol import Accepted, Draft

Kept: TypeAlias = MixerState


@dataclass(frozen=True)
class Pending:
    """The state before the window, and the states (1) and (2) of each of its rows."""

    kept: Kept
    draft: Draft
    snapshots: Sequence[MixerState]


def start(state: MixerState) -> Kept:
    return state


def verify(kept: Kept, draft: Draft, mixer: Mixer) -> tuple[Array, Pending]:
    """Step through the tokens and keep every state: equations (1) and (2).

    Raises: ShapeMismatch, PrecisionError, EmptyWindow, LengthError, NotTopological, ParameterError.
    """
    live, before = draft.live(), draft.tree() + 1
    snapshots, outputs = [draft.begin(kept)], []  # (1)
    for t in range(draft.tokens):
        token = each(lambda a, t=t: a[:, t : t + 1], draft.inputs)
        y, after = scan(pick(snapshots, before[:, t]), token, mixer, live[:, t : t + 1])  # (2)
        outputs.append(y)
        snapshots.append(after)
    return np.concatenate(outputs, axis=1), Pending(kept, draft, snapshots)


def pick(snapshots: Sequence[MixerState], index: Array, row: Array | None = None) -> MixerState:
    """Snapshot `index[b]` of row `row[b]` (default: row b). A negative index is padding and selects the first."""
    row = np.arange(len(index)) if row is None else row
    return each(lambda *arrays: np.stack(arrays)[np.maximum(index, 0), row], *snapshots)


def commit(pending: Pending, accepted: Accepted, mixer: Mixer) -> Kept:
    """The snapshot after the last accepted token (3).

    Raises: AcceptanceError.
    """
    row, path = accepted.choose(pending.draft, pending.kept.M.shape[0])
    picked = pick(pending.snapshots, path.max(axis=1) + 1, row)  # (3); a parent precedes its child
    return where(accepted.advanced > 0, picked, pending.kept)


def restore(kept: Kept, mixer: Mixer) -> MixerState:
    return kept


def refeed(kept: Kept) -> Lengths:
    return np.zeros(kept.M.shape[0], dtype=np.int64)
