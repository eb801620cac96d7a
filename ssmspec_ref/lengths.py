"""Row lengths and masks: which tokens of a window are real, which were accepted."""

import numpy as np

from .errors import AcceptanceError, LengthError
from .shapes import Array, Lengths, Mask


def check_lengths(name: str, lengths: Lengths, longest: int) -> None:
    """Raise LengthError unless every entry of `lengths` lies in 0 .. longest."""
    bad = np.flatnonzero((lengths < 0) | (lengths > longest))
    if bad.size:
        row = int(bad[0])
        raise LengthError(f"{name}[{row}] is {int(lengths[row])}, but the window holds {longest} tokens; give 0 to {longest}")


def check_path(path: Array, tokens: int) -> None:
    """Raise AcceptanceError unless each row of `path` lists tokens of the window in ascending order, then pads with -1."""
    for b, row in enumerate(path):
        nodes = row[: int((row >= 0).sum())]
        if np.any(nodes < 0) or np.any(nodes >= tokens) or np.any(np.diff(nodes) <= 0) or np.any(row[len(nodes) :] != -1):
            raise AcceptanceError(
                f"row {b} has the path {row.tolist()} through {tokens} tokens; list nodes below {tokens} "
                "in rising order, root first, then -1"
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
