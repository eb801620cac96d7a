"""Verify a tree of drafts by the name of the distribution that its nodes were drawn from, as kernels and engines name it.

iid, without_replacement   `multi_step` with q from `proposals`
point_mass                 `multi_step`; the children are deterministic, and q is not needed
naive                      `naive`; q is not needed
"""

from ..errors import ParameterError
from . import multi_step, naive, proposals
from .dice import Dice
from .distribution import Distributions
from .draft_tree import DraftTree
from .emitted import Emitted
from .proposals import Proposals

DRAWN = {"iid": proposals.iid, "without_replacement": proposals.without_replacement}
LAWS = (*DRAWN, "point_mass", "naive")


def sampled(tree: DraftTree, law: str, p_target: Distributions, q_after: Proposals, dice: Dice) -> Emitted:
    """What a tree emits. `p_target[i]` and `q_after[i]` are the target's and the draft's distributions after node i.

    Raises: ParameterError (an unknown law), and what the rule for this law raises.
    """
    if law not in LAWS:
        raise ParameterError(f"law is {law!r}; it must be one of {', '.join(LAWS)}")
    if law == "naive":
        return naive.naive(tree, p_target, dice)
    drawn = DRAWN[law](tree, q_after) if law in DRAWN else proposals.point_masses(tree, len(p_target[0]))
    return multi_step.multi_step(tree, p_target, drawn, dice)
