"""The window of one sequence: the root and its drafts as a tree of tokens. A chain is a tree with one path.

Siblings are verified in their order in the tree. If they were sampled, this must be the order in which they were drawn.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import ShapeMismatch
from ..shapes import Array
from ..tree import PADDING, check_parents


@dataclass(frozen=True)
class DraftTree:
    """Node i holds `tokens[i]` and its parent is `parents[i]`; node 0 is the root. No padding: use `unpadded` for padded
    rows.

    Raises: ShapeMismatch, NotTopological, EmptyWindow.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.parents) or PADDING in self.parents:
            raise ShapeMismatch(
                f"a tree has tokens {self.tokens} and parents {self.parents}; give each token a parent, and no padding"
            )
        check_parents(np.array([self.parents], dtype=np.int64))

    def __len__(self) -> int:
        return len(self.tokens)

    def children(self, node: int) -> list[int]:
        """The children of a node, in the order in which they are verified."""
        return [i for i, parent in enumerate(self.parents) if parent == node]

    def child(self, node: int, token: int) -> int | None:
        """The first child that holds `token`."""
        return next((i for i in self.children(node) if self.tokens[i] == token), None)

    def path(self, node: int) -> tuple[int, ...]:
        """The nodes from the root to `node`, both included."""
        above = () if node == 0 else self.path(self.parents[node])
        return (*above, node)

    def drafted(self, node: int) -> tuple[int, ...]:
        """The draft tokens on the path to `node`: the tokens that the target reads after the root."""
        return tuple(self.tokens[i] for i in self.path(node)[1:])


def chain(root: int, draft: Sequence[int]) -> DraftTree:
    """The root and one draft as a tree with one path."""
    return DraftTree((int(root), *map(int, draft)), tuple(range(-1, len(draft))))


def unpadded(tokens: Array, parents: Array) -> DraftTree:
    """One row of a padded batch of trees. Raises: ShapeMismatch, NotTopological."""
    check_parents(parents[None])
    real = parents != PADDING
    return DraftTree(tuple(tokens[real].tolist()), tuple(parents[real].tolist()))
