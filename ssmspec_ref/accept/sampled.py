"""A tree of drafts under the law that its nodes were drawn from, by the name that kernels and engines give it.

iid, without_replacement   `multi_step`, by what `proposals` makes of q
point_mass                 `multi_step`; the children were certain, and no q is needed
naive                      `naive`; nor is one here
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
    """What a tree emits; `p_target[i]` and `q_after[i]` are the laws after node i.

    Raises: ParameterError (no such law), and as the rule of the law.
    """
    if law not in LAWS:
        raise ParameterError(f"law came as {law!r}; give one of {', '.join(LAWS)}")
    if law == "naive":
        return naive.naive(tree, p_target, dice)
    drawn = DRAWN[law](tree, q_after) if law in DRAWN else proposals.point_masses(tree, len(p_target[0]))
    return multi_step.multi_step(tree, p_target, drawn, dice)
