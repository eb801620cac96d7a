"""Row lengths and masks: which tokens of a window are real, which were accepted."""

import numpy as np

from .errors import LengthError
from .shapes import Array, Lengths, Mask


def check_lengths(name: str, lengths: Lengths, longest: int) -> None:
    """Raise LengthError unless every entry of `lengths` lies in 0 .. longest."""
    bad = np.flatnonzero((lengths < 0) | (lengths > longest))
    if bad.size:
        row = int(bad[0])
        raise LengthError(
            f"{name}[{row}] came as {int(lengths[row])}, but the window holds {longest} tokens; give 0 to {longest}"
        )


def first(lengths: Lengths, tokens: int) -> Mask:
    """The mask of the first `lengths[b]` of `tokens` tokens."""
    return np.arange(tokens) < lengths[:, None]


def last(lengths: Lengths, tokens: int) -> Mask:
    """The mask of the last `lengths[b]` of `tokens` tokens."""
    return np.arange(tokens) >= tokens - lengths[:, None]


def chain_path(advanced: Lengths, tokens: int) -> Array:
    """The path 0, 1 .. advanced-1 of an accepted chain, padded with -1."""
    return np.where(first(advanced, tokens), np.arange(tokens), -1)
