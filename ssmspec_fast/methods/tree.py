"""Trees: every node is computed from the state before the window; the accepted path enters the state after the verdict.

States are handled as in activation replay, with a path instead of the first tokens. Positions follow the depth, attention
sees ancestors only, and the accepted path of keys and values moves to the front.
Source: STree, section 3.
"""

from .activation_replay import ActivationReplay


class Tree(ActivationReplay):
    """A packed tree for each sequence."""

    name = "tree"
    trees = True

    def __init__(self) -> None:
        super().__init__(drafts=1)
