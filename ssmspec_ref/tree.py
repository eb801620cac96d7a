"""Trees of draft tokens: parents in topological order, node 0 the root, -2 padding.

mask[i, j] = 1 iff j lies on the path from the root to i, i included. A padding node has an all-zero row and column.
"""

import numpy as np

from .checks import checked
from .errors import NotTopological
from .shapes import Ancestors, Lengths, Parents

PADDING = -2


@checked
def check_parents(parents: Parents) -> None:
    """Raise NotTopological unless each row is a tree: parents[0] = -1, then 0 <= parents[i] < i, then padding.

    Raises: NotTopological.
    """
    for b, row in enumerate(parents):
        if row[0] != -1:
            raise NotTopological(f"row {b}: node 0 has parent {row[0]}; the root is node 0 and its parent is -1")
        real = row != PADDING
        size = int(real.sum())
        if not real[:size].all():
            raise NotTopological(
                f"row {b}: padding stands between nodes, parents {row.tolist()}; put it behind the last node"
            )
        for i in range(1, size):
            if not 0 <= row[i] < i:
                raise NotTopological(f"row {b}: node {i} has parent {row[i]}; a parent precedes its child, give 0 to {i - 1}")


@checked
def ancestors(parents: Parents) -> Ancestors:
    """The tree mask: L[0] = e_0 (1), L[i] = L[parent(i)] or e_i (2).

    Raises: NotTopological.
    Source: STree, section 3 (tree mask).
    """
    check_parents(parents)
    rows, nodes = parents.shape
    mask = np.zeros((rows, nodes, nodes), dtype=bool)
    for b in range(rows):
        for i in range(nodes):
            if parents[b, i] == PADDING:
                continue
            if i > 0:
                mask[b, i] = mask[b, parents[b, i]]  # (2)
            mask[b, i, i] = True  # (1) (2)
    return mask


@checked
def depths(parents: Parents) -> Parents:
    """The depth of every node, the root at 0; padding is at -1. Raises: NotTopological."""
    return ancestors(parents).sum(axis=2) - 1


def sizes(parents: Parents) -> Lengths:
    """The number of nodes of each row, padding left out."""
    return (parents != PADDING).sum(axis=1)
