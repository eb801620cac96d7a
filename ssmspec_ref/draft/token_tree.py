"""A drafted tree of one sequence: tokens, parents, and the distribution that each node's children were drawn from."""

from dataclasses import dataclass

from ..records import Record
from ..shapes import NodeProbs, Nodes
from ..tree import check_parents


@dataclass(frozen=True)
class TokenTree(Record):
    """Node 0 is the root. The children of a node are in draw order, the order in which multi-step sampling must try them.

    `q[i]` is the drafter's distribution after node i, from which its children were drawn; at a leaf it is 0.

    Raises: NotTopological.
    """

    tokens: Nodes
    parents: Nodes
    q: NodeProbs

    def __post_init__(self) -> None:
        super().__post_init__()
        check_parents(self.parents[None])

    def children(self, node: int) -> list[int]:
        """The children of a node, in draw order."""
        return [i for i, parent in enumerate(self.parents) if parent == node]
