"""The drafter's own state after acceptance: the state after the last accepted token, as if nothing else had been drafted."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from ..errors import AcceptanceError
from ..shapes import Nodes
from .model import DraftModel, S
from .static_tree import nodes_by_level


def catch_up(model: DraftModel[S], state: S, emitted: Sequence[int]) -> S:
    """Feed the emitted tokens, one by one, to the state before the root's window.

    `emitted` is the root and the accepted drafts: 1 to K + 1 tokens. The bonus token is the next root and is not fed.

    Source: STree's code, which keeps a verified draft state and advances it each round.
    """
    for token in emitted:
        _, state = model.step(state, np.array([token]))
    return state


def from_levels(model: DraftModel[S], states: Sequence[S], tokens: Nodes, parents: Nodes, path: Sequence[int]) -> S:
    """Take the state of the last accepted node that was fed while drafting a tree, and feed the remaining accepted nodes.

    fed   = the accepted nodes that were fed while drafting: a prefix of the path      (1)
    state = the row of the last of these                                               (2)
    then feed the accepted nodes after it (leaves), one by one                         (3)

    Equals `catch_up` over the tokens of the path.

    Raises: NotTopological; AcceptanceError for a path that does not start at the root and go from parent to child.
    Source: Mamba Drafters does not specify it; this follows from its state caches (section 3.1).
    """
    inside = all(0 <= node < len(parents) for node in path)
    if not (len(path) and path[0] == 0 and inside and all(parents[b] == a for a, b in pairwise(path))):
        raise AcceptanceError(
            f"path is {list(path)} in the tree {parents.tolist()}; "
            "an accepted path begins at the root, node 0, and leads from parent to child"
        )
    levels = nodes_by_level(parents)
    fed = [node for d, node in enumerate(path) if d < len(levels) and node in levels[d]]  # (1)
    if not fed:
        raise AcceptanceError("the tree holds the root alone, which was never fed; use catch_up")
    row = levels[len(fed) - 1].index(fed[-1])
    state = model.rows(states[len(fed) - 1], np.array([row]))  # (2)
    return catch_up(model, state, [int(tokens[node]) for node in path[len(fed) :]])  # (3)
