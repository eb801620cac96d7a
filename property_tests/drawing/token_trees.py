"""Trees of draft tokens: every shape up to 64 nodes, drawn so that they shrink to a root.

chain, star    one path; one level
comb           a chain with an additional leaf at every node
binary         two children each
vine           a parent among the last three nodes: paths of a third of the tree
random         any parent
"""

from collections.abc import Callable
from typing import NamedTuple

from hypothesis import strategies as st

from ssmspec_ref.tree import PADDING

SHAPES = ("chain", "star", "comb", "binary", "vine", "random")
MOST = 64


class TokenTree(NamedTuple):
    """Parents, -1 at the root and -2 at the padding nodes after the tree, and the token of each node."""

    parents: tuple[int, ...]
    tokens: tuple[int, ...]

    @property
    def size(self) -> int:
        return sum(parent >= -1 for parent in self.parents)

    def paths(self) -> list[list[int]]:
        """The path to every node, root first."""
        found: list[list[int]] = []
        for node in range(self.size):
            found.append([*(found[self.parents[node]] if node else []), node])
        return found


def parents(shape: str, nodes: int, picks: list[int] | None = None) -> tuple[int, ...]:
    """The parents of a tree; `picks` chooses those of a vine or a random tree.

    >>> parents("comb", 5)
    (-1, 0, 0, 2, 2)
    """
    picks = picks or [0] * nodes
    ways: dict[str, Callable[[int], int]] = {
        "chain": lambda i: i - 1,
        "star": lambda i: 0,
        "comb": lambda i: i - 1 if i % 2 else i - 2,
        "binary": lambda i: (i - 1) // 2,
        "vine": lambda i: max(0, i - 1 - picks[i] % 3),
        "random": lambda i: picks[i] % i,
    }
    return (-1, *(ways[shape](i) for i in range(1, nodes)))


@st.composite
def token_trees(
    draw: st.DrawFn,
    vocabulary: int = 4,
    most: int = MOST,
    width: int | None = None,
    root: int | None = None,
    twins: bool = True,
) -> TokenTree:
    """A tree of 1 to `most` nodes in a row of `width` (None: as many as nodes, and up to three more).

    With `twins`, siblings may have the same token.
    """
    count = most if draw(st.booleans()) else draw(st.integers(1, most))
    shape = draw(st.sampled_from(SHAPES))
    picks = draw(st.lists(st.integers(0, MOST), min_size=count, max_size=count))
    above = parents(shape, count, picks)
    tokens = draw(st.lists(st.integers(0, vocabulary - 1), min_size=count, max_size=count))
    if root is not None:
        tokens[0] = root
    if not twins:
        above, tokens = without_twins(above, tokens)
    behind = (count + draw(st.integers(0, 3)) if width is None else width) - len(above)
    return TokenTree((*above, *[PADDING] * behind), (*tokens, *[0] * behind))


def without_twins(above: tuple[int, ...], tokens: list[int]) -> tuple[tuple[int, ...], list[int]]:
    """The tree without later siblings of the same token, and without their descendants."""
    place: dict[int, int] = {0: 0}
    kept, seen = ([-1], [tokens[0]]), set[tuple[int, int]]()
    for node in range(1, len(above)):
        under = place.get(above[node])
        if under is None or (under, tokens[node]) in seen:
            continue
        seen.add((under, tokens[node]))
        place[node] = len(kept[0])
        kept[0].append(under)
        kept[1].append(tokens[node])
    return tuple(kept[0]), kept[1]
