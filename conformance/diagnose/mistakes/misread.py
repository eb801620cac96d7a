"""Arrays read with the stride of another array, or of padded rows, and first tokens of chunks read late."""

from collections.abc import Iterator
from functools import partial

import numpy as np

from ssmspec_ref.shapes import Array

from ..leaves import Change, Leaf

PADDED = (16, 32, 64, 8, 4)
"""Tokens to whose multiples rows may be padded, and tokens of a chunk."""


def misread(every: list[Leaf]) -> Iterator[tuple[Leaf, str, Change]]:
    """Each way to misread one input, in words."""
    groups = next((leaf.value.shape[leaf.axes.index("g")] for leaf in every if "g" in leaf.axes), 0)
    for leaf in every:
        if not isinstance(leaf.value, np.ndarray) or leaf.axes[:2] != ("b", "t"):
            continue
        rows, tokens = leaf.value.shape[:2]
        for block in PADDED if leaf.value.dtype.kind == "f" else ():
            if tokens > block:
                says = f"the first token of every {block} read {leaf.name} of the token before it"
                yield leaf, says, partial(_before, block)
        for block in PADDED if leaf.value.ndim == 2 and rows > 1 else ():
            if tokens % block:
                says = f"rows of {leaf.name} lay {{}} tokens apart, as if padded to a multiple of {block}"
                yield leaf, says.format(-(-tokens // block) * block), partial(_padded, block)
        if leaf.axes[2:3] == ("h",) and 0 < groups < leaf.value.shape[2]:
            says = f"tokens of {leaf.name} lay {groups} entries apart, one for each group, and not {leaf.value.shape[2]}"
            yield leaf, says, partial(_apart, groups)


def _before(block: int, a: Array) -> Array:
    made = a.copy()
    made[:, block::block] = a[:, block - 1 : -1 : block][:, : made[:, block::block].shape[1]]
    return made


def _padded(block: int, a: Array) -> Array:
    """What rows that are rounded up to whole blocks would read of the array; 0 beyond its end."""
    rows, tokens = a.shape
    at = np.arange(rows)[:, None] * (-(-tokens // block) * block) + np.arange(tokens)
    flat = a.reshape(-1)
    return np.where(at < flat.size, flat[np.minimum(at, flat.size - 1)], np.zeros((), a.dtype))


def _apart(groups: int, a: Array) -> Array:
    """Token t and head h read entry t groups + h of the row."""
    at = np.arange(a.shape[1])[:, None] * groups + np.arange(a.shape[2])
    made: Array = a.reshape(a.shape[0], -1, *a.shape[3:])[:, at]
    return made
