"""Draw the children of a node, and whole drafts, from a draft model.

iid                   x_m ~ q                                                 duplicates are possible
without_replacement   x_m ~ norm(q without x_1 .. x_{m-1}), in this order     at most as many as q has tokens with mass
top_k                 the k most probable tokens, ties by index               deterministic: a point mass for acceptance

An equivalent way to draw without replacement, suited to devices: the first k by log q + Gumbel noise, in descending order
(`gumbel_top_k`). Given the winner x, the order of the others is distributed as if x had weight zero, which is
norm(q without x). Any other order of the k winners does not have the right distribution.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from ..errors import ParameterError
from .dice import Dice, race
from .distribution import Distribution, distribution, without
from .draft_tree import DraftTree

Context: TypeAlias = tuple[int, ...]
Model: TypeAlias = Callable[[Context], Distribution]
Draw: TypeAlias = Callable[[Distribution, int, Dice, int], list[int]]


def iid(q: Distribution, count: int, dice: Dice, first: int = 1) -> list[int]:
    """`count` independent children. The first uses the noise of node `first`, the next ones that of the nodes after it.

    Raises: ProbabilityError, PrecisionError, ParameterError (a negative count).
    """
    _check_count(count)
    return [dice.pick(q, first + m) for m in range(count)]


def without_replacement(q: Distribution, count: int, dice: Dice, first: int = 1) -> list[int]:
    """Up to `count` different children in the order drawn; fewer if q has fewer tokens with mass.

    Raises: ProbabilityError, PrecisionError, ParameterError (a negative count).
    """
    _check_count(count)
    left = distribution("q", q)
    support = sum(x > 0 for x in left)
    drawn: list[int] = []
    for m in range(min(count, support)):
        drawn.append(dice.pick(left, first + m))
        left = without(left, drawn[-1])
    return drawn


def gumbel_top_k(q: Distribution, count: int, gumbel: Sequence[float]) -> list[int]:
    """`without_replacement` by Gumbel top-k: the first `count` tokens by log q + noise, in descending order.

    Raises: ProbabilityError, PrecisionError, ParameterError.
    Source: arXiv:1903.06059 (Gumbel top-k), section 2.
    """
    _check_count(count)
    return race(q, gumbel)[:count]


def top_k(q: Distribution, count: int) -> list[int]:
    """The `count` most probable tokens with nonzero mass, most probable first, ties by index.

    Raises: ProbabilityError, PrecisionError, ParameterError (a negative count).
    """
    _check_count(count)
    row = distribution("q", q)
    return [i for i in sorted(range(len(row)), key=lambda i: -row[i]) if row[i] > 0][:count]


def grow_chain(q_model: Model, context: Context, count: int, dice: Dice) -> tuple[list[int], list[Distribution]]:
    """A chain of `count` tokens after `context`, and the distribution that each was drawn from."""
    _check_count(count)
    draft: list[int] = []
    laws: list[Distribution] = []
    for t in range(count):
        laws.append(q_model((*context, *draft)))
        draft.append(dice.pick(laws[-1], t + 1))
    return draft, laws


def grow_tree(
    q_model: Model, context: Context, branching: Sequence[int], draw: Draw, dice: Dice, root: int = 0
) -> tuple[DraftTree, list[Distribution]]:
    """A tree grown level by level, and the draft distribution after each node. A node of level d has up to `branching[d]`
    children.

    `context` is everything emitted so far; its last token is the root. If it is empty, the root is `root`.
    """
    tree = DraftTree((context[-1] if context else root,), (-1,))
    level = [0]
    for count in branching:
        below: list[int] = []
        for node in level:
            tokens = draw(q_model((*context, *tree.drafted(node))), count, dice, len(tree))
            below += range(len(tree), len(tree) + len(tokens))
            tree = DraftTree((*tree.tokens, *tokens), (*tree.parents, *[node] * len(tokens)))
        level = below
    return tree, after_nodes(q_model, context, tree)


def after_nodes(model: Model, context: Context, tree: DraftTree) -> list[Distribution]:
    """The model's distribution after each node of a tree."""
    return [model((*context, *tree.drafted(node))) for node in range(len(tree))]


def _check_count(count: int) -> None:
    if count < 0:
        raise ParameterError(f"count is {count}; it must be 0 or more")
