"""The shapes of draft trees, and the levels in which they are drafted; all on the host.

    level d = the nodes of depth d that have children, in order     (1)
    row     = a node's place in its level; it continues the row of its parent in the level above (2)

Trees A to E are those of `ssmspec_ref.draft.static_tree`. Source: STree, figures 4a and 5; Mamba Drafters, section 3.1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

from ssmspec_ref.errors import NotTopological, ParameterError

TREE_A = (-1, 0, 0, 0, 1, 1, 2, 4, 4, 5, 7, 7, 7)  # width 3, depth 4, 13 nodes


NODES = 4096
"""Most tokens of a window: ten times the largest tree of the papers."""


def check_nodes(count: int) -> None:
    """Raises: ParameterError for more tokens in a window than `NODES`, before any tree is built."""
    if count > NODES:
        raise ParameterError(f"the drafts make windows of {count} tokens; give fewer: {NODES} at most, the root included")


def chain(drafts: int) -> tuple[int, ...]:
    """The root and `drafts` drafts, one below the other. Raises: ParameterError."""
    if drafts < 1:
        raise ParameterError(f"drafts is {drafts}; it must be at least 1")
    check_nodes(1 + drafts)
    return tuple(range(-1, drafts))


def branches(counts: Sequence[int]) -> tuple[int, ...]:
    """The tree (N_1 .. N_g): every node of level i - 1 has N_i children. Raises: ParameterError."""
    if not counts or min(counts) < 1:
        raise ParameterError(f"branches are {tuple(counts)}; give at least one level, each with at least one child")
    check_nodes(sum(accumulate(counts, mul, initial=1)))
    parents, level = [-1], [0]
    for count in counts:
        below = [node for node in level for _ in range(count)]
        level = list(range(len(parents), len(parents) + len(below)))
        parents += below
    return tuple(parents)


@dataclass(frozen=True)
class Level:
    """`nodes` are fed as rows; row i continues row `above[i]` of the level before. `children[i]` are those of node i."""

    nodes: tuple[int, ...]
    above: tuple[int, ...]
    children: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Shape:
    """A tree by its parents, the root first. Raises: NotTopological, ParameterError (a root alone)."""

    parents: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.parents or self.parents[0] != -1 or any(not 0 <= p < i for i, p in enumerate(self.parents) if i):
            raise NotTopological(f"parents are {self.parents}; give -1 for the root, then an earlier node for each node")
        if len(self.parents) < 2:
            raise ParameterError("the tree has only its root; add a draft, or decode without a drafter")

    @property
    def chain(self) -> bool:
        return self.parents == tuple(range(-1, len(self.parents) - 1))

    @property
    def depths(self) -> tuple[int, ...]:
        found = [0]
        for parent in self.parents[1:]:
            found.append(found[parent] + 1)
        return tuple(found)

    def below(self, node: int) -> tuple[int, ...]:
        return tuple(i for i, parent in enumerate(self.parents) if parent == node)

    @property
    def levels(self) -> tuple[Level, ...]:
        """The levels (1), with their rows (2)."""
        found: list[Level] = []
        above: tuple[int, ...] = (-1,)
        for d in range(max(self.depths)):
            nodes = tuple(i for i, depth in enumerate(self.depths) if depth == d and self.below(i))
            rows = tuple(above.index(self.parents[i]) for i in nodes)
            found.append(Level(nodes, rows, tuple(self.below(i) for i in nodes)))
            above = nodes
        return tuple(found)

    @property
    def width(self) -> int:
        """Scratch rows of a sequence."""
        return max((len(level.nodes) for level in self.levels[1:]), default=0)

    @property
    def ancestors(self) -> tuple[tuple[bool, ...], ...]:
        rows: list[list[bool]] = []
        for i, parent in enumerate(self.parents):
            row = [*rows[parent]] if i else [False] * len(self.parents)
            row[i] = True
            rows.append(row)
        return tuple(map(tuple, rows))
