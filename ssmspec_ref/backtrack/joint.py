"""Joint attainment and advancement: the next window repeats the accepted tokens, in an extra row.

v holds the tokens that the last window emitted, c = |v|, and the last of them is the root; S and M are the states before v. A
window of K drafts is one call over rows of c + K tokens, K+1 to 2K+1 of them, all from the same S and M:

    backtracking row  = K no-ops, then v           its last state is the next S, M  (1)
    draft rows        = v, then the drafts         their states are discarded       (2)
    outputs           = those of the draft rows                                     (3)
    commit            : the next v is the accepted drafts and the token after them  (4)

A no-op must have no effect in three places: it does not enter the window of the convolution (`conv.scan_masked`), its decay
is 1, and its update is 0 (`states` of the recurrence; for the delta rule g = 0 and beta = 0). The paper masks the second by
A, the third by B and C after the convolution, because the convolution's bias and SiLU make any input nonzero.

Between two windows one state is kept, c - 1 committed tokens in the past (`refeed`): a window must repeat these before its
root. The first window is not special: c = 1. If sequences differ in c, the shorter rows are padded with no-ops on the left,
so that all rows end together; `verify` does this itself, and takes and returns rows that begin together.

Source: Snakes and Ladders, section 3.1 and figure 3. There S is "the last verified state at t - 2": the root's window counts
as one. The lag is the cost of keeping one state; activation replay stores a cache of activations instead.
"""

from dataclasses import dataclass

import numpy as np

from ..errors import LengthError, Unsupported
from ..layers.mixer import Mixer, MixerInputs, MixerState, scan
from ..lengths import first, last
from ..records import Record, along, masked, rows, where
from ..shapes import Array, Lengths
from .protocol import Accepted, Draft


@dataclass(frozen=True)
class Kept(Record):
    """The state before v, and the number of committed tokens of v: all but the root."""

    state: MixerState
    lag: Lengths


@dataclass(frozen=True)
class Pending:
    """What was kept, the window, and the final state of the backtracking rows."""

    kept: Kept
    draft: Draft
    attained: MixerState


def start(state: MixerState) -> Kept:
    return Kept(state, np.zeros(state.M.shape[0], dtype=np.int64))


def verify(kept: Kept, draft: Draft, mixer: Mixer) -> tuple[Array, Pending]:
    """Advance the kept state by v, and read the draft rows, in one call: equations (1) to (3).

    Every row of `draft` begins with the `refeed` tokens of its sequence. Outputs are in the order of the tokens given.

    Raises: ShapeMismatch, PrecisionError, EmptyWindow, LengthError, ParameterError, Unsupported (a tree).
    """
    if draft.parents is not None:
        raise Unsupported("joint attainment verifies rows, not trees; give each path of the tree as a row of draft.sequence")
    sequences, tokens = kept.lag.shape[0], draft.tokens
    sequence, lengths = draft.continues(sequences), draft.live().sum(axis=1)
    check_refed(kept.lag[sequence], lengths)
    c, source = backtracking(kept.lag, sequence, lengths)
    counts = np.concatenate([c, lengths])
    inputs = end_together(rows(draft.inputs, np.concatenate([source, np.arange(draft.rows)])), counts)
    states = rows(kept.state, np.concatenate([np.arange(sequences), sequence]))
    y, after = scan(states, inputs, mixer, last(counts, tokens))  # (1) (2)
    attained = rows(after, np.arange(sequences))  # (1)
    return begin_together(y[sequences:], lengths), Pending(kept, draft, attained)  # (3)


def check_refed(lag: Lengths, lengths: Lengths) -> None:
    """Raise LengthError for a row too short for the repeated tokens and the root; a length of 0 means no window."""
    for r in np.flatnonzero((lengths > 0) & (lengths <= lag)):
        raise LengthError(
            f"row {r} holds {lengths[r]} tokens, but its sequence lags by {lag[r]}; "
            f"feed these {lag[r]} again, then the root, then the drafts"
        )


def backtracking(lag: Lengths, sequence: Lengths, lengths: Lengths) -> tuple[Lengths, Lengths]:
    """c, the number of tokens of each backtracking row (0: no window), and the draft row that begins with them."""
    c, source = np.zeros_like(lag), np.zeros_like(lag)
    for r in np.flatnonzero(lengths > 0)[::-1]:
        c[sequence[r]], source[sequence[r]] = lag[sequence[r]] + 1, r
    return c, source


def end_together(window: MixerInputs, lengths: Lengths) -> MixerInputs:
    """Shift the rows right, so that their first `lengths` tokens come last; the no-ops before them repeat the first token."""
    tokens = window.pre.shape[1]
    return along(window, np.arange(tokens) - (tokens - lengths)[:, None])


def begin_together(y: Array, lengths: Lengths) -> Array:
    """Shift the outputs of right-aligned rows back to the order of the tokens given; 0 after them."""
    tokens = y.shape[1]
    index = np.minimum(np.arange(tokens) + (tokens - lengths)[:, None], tokens - 1)
    return masked(np.take_along_axis(y, index.reshape(index.shape + (1,) * (y.ndim - 2)), axis=1), first(lengths, tokens))


def commit(pending: Pending, accepted: Accepted, mixer: Mixer) -> Kept:
    """Keep the state of the backtracking row; it lacks all tokens accepted now but the root (4).

    A sequence that did not advance keeps both its state and its lag, and its backtracking row is discarded.

    Raises: AcceptanceError.
    """
    kept, advanced = pending.kept, accepted.advanced
    accepted.choose(pending.draft, kept.lag.shape[0], kept.lag)
    took = advanced > 0
    return Kept(where(took, pending.attained, kept.state), np.where(took, advanced - 1, kept.lag))  # (4)


def restore(kept: Kept, mixer: Mixer) -> MixerState:
    """The state of plain decoding `refeed` committed tokens ago. To hand a row over, scan these tokens."""
    return kept.state


def refeed(kept: Kept) -> Lengths:
    return kept.lag
