"""Trees: the closed forms compute every node from one state; the accepted path is replayed at commit.

    y  = the nodes of the packed tree, from M and S         (1)
    M <- conv window after the inputs of the path           (2)
    S <- S advanced by the tokens of the path               (3)

Between two windows only the state is kept. The paper defers (2) and (3) to the start of the next window, so that one launch
does both (`activation_replay` has that form); the results are the same. The values after the convolution can be used again
because every node of the path read only its own ancestors, and these are the path.

Source: STree, section 3 and algorithm 1.
"""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from .. import conv
from ..layers.mixer import Mixer, MixerState, RecurrenceWindow, verify_window
from ..records import along, rows, where
from ..shapes import Array, Lengths
from .protocol import Accepted, Draft

Kept: TypeAlias = MixerState


@dataclass(frozen=True)
class Pending:
    """The state that the window started from, the window, and the recurrence's inputs for it."""

    kept: Kept
    draft: Draft
    window: RecurrenceWindow


def start(state: MixerState) -> Kept:
    return state


def verify(kept: Kept, draft: Draft, mixer: Mixer) -> tuple[Array, Pending]:
    """The outputs at every node (1); a chain is a tree with one path. No state is written.

    Raises: ShapeMismatch, PrecisionError, EmptyWindow, LengthError, NotTopological, ParameterError.
    """
    y, window = verify_window(draft.begin(kept), draft.inputs, mixer, draft.live(), draft.tree())  # (1)
    return y, Pending(kept, draft, window)


def commit(pending: Pending, accepted: Accepted, mixer: Mixer) -> Kept:
    """Replay the accepted path: equations (2) and (3).

    Raises: AcceptanceError for a path that skips a node, jumps to another branch, repeats a node or begins below the root.
    """
    kept, draft = pending.kept, pending.draft
    row, path = accepted.choose(draft, kept.M.shape[0])
    M = conv.commit_path(kept.M, rows(draft.inputs.pre, row), path)  # (2)
    _, S = mixer.recurrence.scan(kept.S, along(rows(pending.window, row), path), mixer.params, path >= 0)  # (3)
    return where(accepted.advanced > 0, MixerState(M, S), kept)


def restore(kept: Kept, mixer: Mixer) -> MixerState:
    return kept


def refeed(kept: Kept) -> Lengths:
    return np.zeros(kept.M.shape[0], dtype=np.int64)
