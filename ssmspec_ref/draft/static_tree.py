"""Trees of a fixed shape, filled level by level by a drafting model.

Tree A is the paper's (STree, figure 4a). Trees B to E are drawn in its figure 5; only their widths, depths and node counts
are given as numbers (its table 4). The shapes below match these and are ours.
"""

from collections.abc import Callable, Sequence

import numpy as np

from ..errors import NotTopological, ParameterError
from ..shapes import Array, Nodes, Probs
from ..tree import check_parents, depths
from .model import DraftModel, S, top
from .token_tree import TokenTree

Choose = Callable[[Probs, int], Array]
"""Chooses the children of a node, in draw order: takes p and count, returns distinct or repeated tokens."""

TREE_A = (-1, 0, 0, 0, 1, 1, 2, 4, 4, 5, 7, 7, 7)  # width 3, depth 4, 13 nodes


def children(choose: Choose, law: Probs, count: int) -> list[int]:
    """The chosen children of a node. Raises: ParameterError unless there are exactly `count`."""
    chosen = [int(token) for token in choose(law, count)]
    if len(chosen) != count:
        raise ParameterError(
            f"{count} children are needed, but only {len(chosen)} can be chosen from a vocabulary of "
            f"{len(law)}; ask for fewer"
        )
    return chosen


def tree_from_branches(branches: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The parents of a tree. `branches` gives, level by level, the number of children of each node of the level above.

    Raises: NotTopological unless each level lists one count per node of the level above.
    """
    parents, level = [-1], [0]
    for depth, counts in enumerate(branches):
        if len(counts) != len(level):
            raise NotTopological(
                f"level {depth} has {len(level)} nodes, but {len(counts)} counts of children; give one for each"
            )
        below = [node for node, count in zip(level, counts, strict=True) for _ in range(count)]
        level = list(range(len(parents), len(parents) + len(below)))
        parents += below
    return tuple(parents)


TREE_B = tree_from_branches([[4], [2, 2, 2, 2], [2, 2, 2, 2, 2, 2, 2, 2]])  # width 16, depth 3, 29 nodes; ours
TREE_C = tree_from_branches([[4], [2, 1, 1, 1], [2, 1, 1, 1, 1]])  # width 6, depth 3, 16 nodes; ours
TREE_D = tree_from_branches([[4], [2, 1, 0, 0], [2, 1, 0], [1, 1, 0]])  # width 4, depth 4, 13 nodes; ours
TREE_E = tree_from_branches([[3], [2, 1, 0], [2, 1, 0], [2, 1, 0], [2, 1, 0]])  # width 3, depth 5, 16 nodes; ours


def draft_tree(
    model: DraftModel[S], state: S, root: int, parents: Sequence[int], choose: Choose = top
) -> tuple[TokenTree, list[S]]:
    """Fill a tree with one forward pass per level that has children.

    For d = 0, 1 ..: feed the nodes of depth d that have children, each from its parent's state          (1)
                     give each its children: choose(distribution, how many)                              (2)

    Returns the tree and, for each level fed, the states after its nodes (`follow`), in node order.
    With `choose` = `top` the children are deterministic: verify them as point masses or by naive sampling, never as if they
    had been drawn from q.

    Raises: NotTopological, ParameterError (more children than the vocabulary has tokens).
    Source: STree, section 5.2 and figure 4a.
    """
    tree = np.array(parents, dtype=np.int64)
    check_parents(tree[None])
    depth = depths(tree[None])[0]
    tokens, q, states = np.zeros_like(tree), None, []
    tokens[0] = root
    above: list[int] = [-1]
    for d in range(int(depth.max())):
        level = [int(i) for i in np.flatnonzero(depth == d) if np.any(tree == i)]
        fed_from = np.array([above.index(int(tree[i])) for i in level])
        p, state = model.step(model.rows(state, fed_from), tokens[level])  # (1)
        q = np.zeros((len(tree), p.shape[1])) if q is None else q
        for i, law in zip(level, p, strict=True):
            below = np.flatnonzero(tree == i)
            tokens[below], q[i] = children(choose, law, len(below)), law  # (2)
        states.append(state)
        above = level
    return TokenTree(tokens, tree, np.zeros((len(tree), 1)) if q is None else q), states


def nodes_by_level(parents: Nodes) -> list[list[int]]:
    """The nodes that were fed, level by level, in the row order of `draft_tree`'s states."""
    depth = depths(parents[None])[0]
    return [[int(i) for i in np.flatnonzero(depth == d) if np.any(parents == i)] for d in range(int(depth.max()))]
