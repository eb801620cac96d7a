"""A tree drafted as a growing batch: each row is copied once per child."""

from collections.abc import Sequence

import numpy as np

from ..errors import ParameterError
from ..shapes import Probs
from .model import DraftModel, S, top
from .static_tree import Choose, children
from .token_tree import TokenTree


def batch_sizes(branches: Sequence[int]) -> list[int]:
    """B_i = N_1 N_2 .. N_i: the rows at each level; the last level is drafted but not fed.

    Raises: ParameterError (no level, or a level without children).
    """
    if not branches or min(branches) < 1:
        raise ParameterError(f"branches are {tuple(branches)}; give at least one level, each with at least one child")
    return [int(n) for n in np.cumprod(branches)]


def batch_tree(
    model: DraftModel[S], state: S, root: int, branches: Sequence[int], choose: Choose = top
) -> tuple[TokenTree, list[S]]:
    """The tree (N_1 .. N_g): every node of level i - 1 gets N_i children; g forwards of 1, B_1 .. B_{g-1} rows.

    p, state = step(state, level)                   one row for each node of the level           (1)
    child r of the next level hangs under row r // N_i                                           (2)
    state = each row of state copied N_i times, so that child r continues row r // N_i           (3)

    Returns the tree and the states after each level that was fed (`follow`). The paper does not say whether children are
    drawn with or without replacement: `choose` decides, and verification must use the matching rule.

    Raises: ParameterError (no level, a level without children, or more children than the vocabulary has tokens).
    Source: Mamba Drafters, section 3.1.
    """
    batch_sizes(branches)
    laws: dict[int, Probs] = {}
    tokens, parents, states = [root], [-1], []
    level = np.array([0])
    for count in branches:
        p, state = model.step(state, np.array([tokens[i] for i in level]))  # (1)
        states.append(state)
        laws.update(zip(level.tolist(), p, strict=True))
        first = len(tokens)
        for law in p:
            tokens += children(choose, law, count)
        parents += np.repeat(level, count).tolist()  # (2)
        state = model.rows(state, np.repeat(np.arange(len(level)), count))  # (3)
        level = np.arange(first, len(tokens))
    q = np.array([laws.get(i, np.zeros(p.shape[1])) for i in range(len(tokens))])
    return TokenTree(np.array(tokens), np.array(parents), q), states
