"""Naive sampling: draw from the target, and keep the draft if it is the token drawn.

t ~ p(. | n)                                                            (1)
go to the first child of n that holds t; else emit t and stop           (2)

Every emitted token is drawn from the target at its own node, so the distribution is the target's for any children, sampled or
not, and q is not needed. Each node has one draw: drafts that share a prefix must share its draws (`drafts.trie`), or the
distribution is wrong.

Source: SpecInfer (arXiv:2305.09781), section 4.3; SpecExec (arXiv:2406.02532).
"""

from .dice import Dice
from .distribution import Distributions, check_tokens, distributions
from .draft_tree import DraftTree
from .emitted import Emitted


def naive(tree: DraftTree, p_target: Distributions, dice: Dice) -> Emitted:
    """Walk down a tree by equations (1) and (2) of the module; `p_target[i]` is the target's distribution after node i.

    If noise is indexed by node, this equals `greedy.walk` on the tokens drawn at every node.

    Raises: ProbabilityError, PrecisionError, ShapeMismatch, ParameterError (a token outside the vocabulary).
    Source: as the module.
    """
    p_rows = distributions("p_target", p_target, len(tree))
    check_tokens("tree.tokens", tree.tokens[1:], len(p_rows[0]))
    node, tokens = 0, [dice.pick(p_rows[0], 0)]  # (1)
    while (child := tree.child(node, tokens[-1])) is not None:  # (2)
        node = child
        tokens.append(dice.pick(p_rows[node], node))  # (1)
    return Emitted(tuple(tokens), tree.path(node))
