"""Several drafts for one sequence, as rows that each begin after the same root.

Greedy: every row is judged alone, and the longest accepted prefix wins, the lowest row on ties. All rows agree with the
target as far as they are accepted, so the choice of the row is no choice of the text.

Sampled: the rows become a trie, and the trie is verified under tree rules. Judging the rows one by one and keeping the best
is biased: whoever picks the longest of several runs prefers the texts that are accepted easily. So does a draw from the
target for each row, where rows share a prefix.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import ParameterError, ShapeMismatch
from . import greedy
from .draft_tree import DraftTree
from .emitted import Emitted


def longest(drafts: Sequence[Sequence[int]], choices: Sequence[Sequence[int]]) -> tuple[int, Emitted]:
    """The row with the longest accepted prefix, the lowest on ties, and what it emits.

    `choices[m]` are the target's choices along row m, the root included.

    Raises: ParameterError (no row), ShapeMismatch.
    Source: Snakes and Ladders, section 3.1.
    """
    _check_rows(len(drafts))
    if len(choices) != len(drafts):
        raise ShapeMismatch(f"choices came with {len(choices)} rows, but there are {len(drafts)} drafts; give one for each")
    runs = [greedy.chain(draft, choice) for draft, choice in zip(drafts, choices, strict=True)]
    row = max(range(len(runs)), key=lambda m: (runs[m].advanced, -m))
    return row, runs[row]


@dataclass(frozen=True)
class Trie:
    """Drafts merged at their common prefixes. `nodes[m][t]` is the node of token t of row m's window, the root at t = 0."""

    tree: DraftTree
    nodes: tuple[tuple[int, ...], ...]

    def row(self, node: int) -> int:
        """The lowest row that passes through a node: whose window holds the path to it."""
        return next(m for m, path in enumerate(self.nodes) if node in path)

    def places(self) -> list[tuple[int, int]]:
        """For each node, a row and a place in its window where the target after it can be read."""
        return [(m := self.row(node), self.nodes[m].index(node)) for node in range(len(self.tree))]


def trie(root: int, drafts: Sequence[Sequence[int]]) -> Trie:
    """Merge drafts into a trie; siblings stand in the order of the first row that holds them.

    For acceptance, i.i.d. rows are children drawn without replacement, since a row that repeats a child adds none
    (`proposals.without_replacement`); the rows of an n-gram table are point masses. Rows may differ in length.

    Raises: ParameterError (no row).
    """
    _check_rows(len(drafts))
    tokens, parents, nodes = [int(root)], [-1], []
    for draft in drafts:
        path = [0]
        for token in draft:
            known = [i for i, parent in enumerate(parents) if parent == path[-1] and tokens[i] == token]
            if not known:
                tokens.append(int(token))
                parents.append(path[-1])
            path.append(known[0] if known else len(tokens) - 1)
        nodes.append(tuple(path))
    return Trie(DraftTree(tuple(tokens), tuple(parents)), tuple(nodes))


def _check_rows(count: int) -> None:
    if count == 0:
        raise ParameterError("no draft came; give at least one row, which may be empty")
