"""The distribution that each node of a sampled tree was drawn from, given the siblings before it. Acceptance divides by it.

how children were drawn             distribution of the m-th child x_m
i.i.d.                              q_m = q
without replacement, in draw order  q_1 = q,  q_{m+1} = norm(q_m without x_m)
any (top-k, beam, n-gram, or drawn) q_m = the point mass at x_m

`q_after[n]` is the draft distribution after node n, exactly as it was sampled from; nodes without children need none. Entry 0
of the result, the root's, is None.

Point masses are right for any children, because children are fixed once they are known; they accept as often as naive
sampling. The first two are right only if the children were drawn in that way and are verified in that order. Neither fits
children drawn without replacement and then sorted by probability, nor top-k children: the emitted tokens would not have the
target's distribution.
"""

from collections.abc import Sequence
from typing import TypeAlias

from ..errors import ShapeMismatch
from .distribution import Distribution, Distributions, Number, distribution, point_mass, without
from .draft_tree import DraftTree

Proposals: TypeAlias = Sequence[Distribution | None] | Distributions


def iid(tree: DraftTree, q_after: Proposals) -> list[list[Number] | None]:
    """Siblings drawn independently, duplicates allowed. Raises: ProbabilityError, PrecisionError, ShapeMismatch."""
    rows = _rows(tree, q_after)
    return [None, *(rows[parent] for parent in tree.parents[1:])]


def without_replacement(tree: DraftTree, q_after: Proposals) -> list[list[Number] | None]:
    """Siblings drawn one after the other, each then removed from q. Raises: ProbabilityError, PrecisionError, ShapeMismatch.

    Also valid for i.i.d. siblings, and for i.i.d. rows merged into a trie: a duplicate is skipped, and a new token has the
    distribution q without the earlier ones.

    Source: arXiv:2402.14160 (recursive speculative decoding), section 3.
    """
    rows = _rows(tree, q_after)
    laws: list[list[Number] | None] = [None] * len(tree)
    for node, q in rows.items():
        for child in tree.children(node):
            laws[child] = q
            q = without(q, tree.tokens[child])
    return laws


def point_masses(tree: DraftTree, size: int) -> list[list[Number] | None]:
    """Children chosen deterministically, as point masses over a vocabulary of `size` tokens."""
    return [None, *(point_mass(token, size) for token in tree.tokens[1:])]


def _rows(tree: DraftTree, q_after: Proposals) -> dict[int, list[Number]]:
    if len(q_after) != len(tree):
        raise ShapeMismatch(f"q_after has {len(q_after)} rows, but the tree has {len(tree)} nodes; give one for each")
    rows = {}
    for node in sorted(set(tree.parents[1:])):
        row = q_after[node]
        if row is None:
            raise ShapeMismatch(
                f"q_after[{node}] is missing, but node {node} has children; give the distribution they were drawn from"
            )
        rows[node] = distribution(f"q_after[{node}]", row)
    return rows
