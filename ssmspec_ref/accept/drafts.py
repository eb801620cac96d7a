"""Several drafts for one sequence, one per row, all after the same root.

Greedy: each row is verified alone, and the longest accepted prefix wins, the lowest row on ties. Accepted tokens are the
target's own choices in every row, so the choice of the row does not change the text.

Sampled: the rows are merged into a trie, and the trie is verified with the tree rules. To verify each row alone and keep the
longest run is biased towards texts that are accepted easily. To draw from the target separately for each row is biased too,
if rows share a prefix.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import ParameterError, ShapeMismatch
from . import greedy
from .draft_tree import DraftTree
from .emitted import Emitted


def longest(drafts: Sequence[Sequence[int]], choices: Sequence[Sequence[int]]) -> tuple[int, Emitted]:
    """The row with the longest accepted prefix (the lowest row on ties), and what it emits.

    `choices[m]` are the target's choices along row m, starting with the one after the root.

    Raises: ParameterError (no row), ShapeMismatch.
    Source: Snakes and Ladders, section 3.1.
    """
    _check_rows(len(drafts))
    if len(choices) != len(drafts):
        raise ShapeMismatch(f"choices have {len(choices)} rows, but there are {len(drafts)} drafts; give one for each")
    runs = [greedy.chain(draft, choice) for draft, choice in zip(drafts, choices, strict=True)]
    row = max(range(len(runs)), key=lambda m: (runs[m].advanced, -m))
    return row, runs[row]


@dataclass(frozen=True)
class Trie:
    """Drafts merged at their common prefixes. `nodes[m][t]` is the node of token t of row m's window, the root at t = 0."""

    tree: DraftTree
    nodes: tuple[tuple[int, ...], ...]

    def row(self, node: int) -> int:
        """The lowest row whose window contains the path to a node."""
        return next(m for m, path in enumerate(self.nodes) if node in path)

    def places(self) -> list[tuple[int, int]]:
        """For each node, a row and a position in its window at which the target's output after this node is found."""
        return [(m := self.row(node), self.nodes[m].index(node)) for node in range(len(self.tree))]


def trie(root: int, drafts: Sequence[Sequence[int]]) -> Trie:
    """Merge drafts into a trie; siblings are in the order of the first row that holds them.

    For acceptance, i.i.d. rows count as children drawn without replacement, because a row that repeats a child adds none
    (`proposals.without_replacement`); rows from an n-gram table are point masses. Rows may differ in length.

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
        raise ParameterError("there is no draft; give at least one row, which may be empty")
