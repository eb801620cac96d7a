"""Several sequences of different lengths in one run: their tokens are concatenated, and each sequence has its own state.

A packed window is a window of one row; `lengths[b]` of its tokens belong to sequence b, in order. States are returned after
the last token of each sequence, and at given boundaries inside (for a prefix cache: every multiple of a block).

    row b      = the tokens of sequence b, padded with no-ops        (1)
    run        = one masked scan over all rows                       (2)
    outputs    = the live tokens, concatenated again                 (3)
    boundaries = the state of a row after that many of its tokens    (4)

Source: the layout is that of variable-length kernels (cumulative lengths); the no-op is that of Snakes and Ladders, section
3.1.
"""

from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from . import conv
from .checks import checked
from .conv import ConvParams
from .errors import EmptyWindow, LengthError, ParameterError, ShapeMismatch
from .layers.mixer import Mixer, MixerInputs, MixerState, Recurrence
from .lengths import check_lengths, first
from .records import Record, arrays, each
from .shapes import Array, Lengths, Marks, Mask

T = TypeVar("T")


@dataclass(frozen=True)
class Boundaries(Record):
    """Where to return states: after the first `tokens[m]` tokens of sequence `sequence[m]`; 0 is the initial state."""

    sequence: Marks
    tokens: Marks


@checked
def every(lengths: Lengths, block: int) -> Boundaries:
    """The boundaries after every `block` tokens of each sequence, counted from its first token, and after its last.

    Raises: PrecisionError, ShapeMismatch, ParameterError (block < 1).
    """
    if block < 1:
        raise ParameterError(f"block is {block}; it must be at least 1 token")
    marks = [(b, t) for b, length in enumerate(lengths) for t in (*range(block, int(length), block), int(length))]
    sequence, tokens = np.array(marks, dtype=np.int64).reshape(-1, 2).T.copy()
    return Boundaries(sequence, tokens)


def scan(
    recurrence: Recurrence, S: Array, window: Any, lengths: Lengths, params: Any, boundaries: Boundaries | None = None
) -> tuple[Array, Array, Array]:
    """The packed outputs, the state after each sequence, and the states at the boundaries (default: after each sequence).

    `recurrence` is the module `ssd`, `delta` or `selective`.

    Raises: ShapeMismatch, PrecisionError, EmptyWindow, LengthError, ParameterError.
    """
    marks = _boundaries(lengths, boundaries)
    rows, live = unpack(window, lengths)  # (1)
    y, after = recurrence.states(S, rows, params, live)  # (2)
    run = np.concatenate([S[:, None], after], axis=1)
    return pack(y, live), run[np.arange(len(lengths)), lengths], run[marks.sequence, marks.tokens]  # (3) (4)


def scan_conv(
    M: Array, u: Array, lengths: Lengths, params: ConvParams, boundaries: Boundaries | None = None
) -> tuple[Array, Array, Array]:
    """The packed outputs of the convolution, the window after each sequence, and the windows at the boundaries.

    Raises: ShapeMismatch, PrecisionError, EmptyWindow, LengthError.
    """
    marks = _boundaries(lengths, boundaries)
    rows, live = unpack(u, lengths)  # (1)
    y, M_next = conv.scan_masked(M, rows, live, params)  # (2)
    return pack(y, live), M_next, conv.commit(M[marks.sequence], rows[marks.sequence], marks.tokens)  # (3) (4)


def scan_mixer(
    mixer: Mixer, state: MixerState, inputs: MixerInputs, lengths: Lengths, boundaries: Boundaries | None = None
) -> tuple[Array, MixerState, MixerState]:
    """The packed outputs of a recurrent layer, the state after each sequence, and the states at the boundaries.

    Raises: ShapeMismatch, PrecisionError, EmptyWindow, LengthError, ParameterError.
    """
    c, M, M_marked = scan_conv(state.M, inputs.pre, lengths, mixer.conv, boundaries)
    window = mixer.project(c, inputs.gates)
    y, S, S_marked = scan(mixer.recurrence, state.S, window, lengths, mixer.params, boundaries)
    return y, MixerState(M, S), MixerState(M_marked, S_marked)


def unpack(window: T, lengths: Lengths) -> tuple[T, Mask]:
    """A packed window as one row per sequence, and the mask of its tokens; padding repeats other tokens.

    Raises: ShapeMismatch (more than one row), PrecisionError, EmptyWindow, LengthError (lengths do not sum to the run's
    length).
    """
    for run in arrays(window):
        _check_run(run, lengths)
    begin = np.cumsum(lengths) - lengths
    longest = int(lengths.max())
    token = np.minimum(begin[:, None] + np.arange(longest), lengths.sum() - 1)
    return each(lambda a: a[0, token], window), first(lengths, longest)


def pack(rows: Array, live: Mask) -> Array:
    """The live tokens of all rows, concatenated: the inverse of `unpack`."""
    return rows[live][None]


@checked
def _check_lengths(lengths: Lengths) -> None:
    for b, length in enumerate(lengths):
        if length < 0:
            raise LengthError(f"lengths[{b}] is {length}; it must be 0 or more")


def _check_run(run: Array, lengths: Lengths) -> None:
    _check_lengths(lengths)
    if run.ndim < 2 or run.shape[0] != 1:
        raise ShapeMismatch(
            f"a packed array has shape {run.shape}; its axes must be (1 t ...), with all sequences in one row"
        )
    if run.shape[1] == 0:
        raise EmptyWindow("the packed run is empty; it needs at least one token")
    if lengths.sum() != run.shape[1]:
        raise LengthError(
            f"lengths sum to {lengths.sum()}, but the packed run holds {run.shape[1]} tokens; the two must be equal"
        )


def _boundaries(lengths: Lengths, boundaries: Boundaries | None) -> Boundaries:
    _check_lengths(lengths)
    if boundaries is None:
        return Boundaries(np.arange(len(lengths)), lengths)
    check_lengths("boundaries.sequence", boundaries.sequence, len(lengths) - 1)
    for m, (b, t) in enumerate(zip(boundaries.sequence, boundaries.tokens, strict=True)):
        if not 0 <= t <= lengths[b]:
            raise LengthError(
                f"boundary {m} is after {t} tokens of sequence {b}, which has {lengths[b]}; it must be 0 to {lengths[b]}"
            )
    return boundaries
