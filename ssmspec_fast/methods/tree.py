"""Trees: every node from the state before the window; the accepted path enters the state at the next one.

What is between two windows is activation replay's, with a path for the first tokens. Positions are by depth, attention sees
ancestors only, and the accepted path of keys and values moves to the front.
Source: STree, section 3.
"""

from .activation_replay import ActivationReplay


class Tree(ActivationReplay):
    """A packed tree for each sequence."""

    name = "tree"
    trees = True

    def __init__(self) -> None:
        super().__init__(drafts=1)
