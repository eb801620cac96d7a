"""Multi-step speculative sampling: rejection sampling over the children of a node, one after the other, down a tree.

p_1 = p(. | n)                                                        (1)
accept child x_m with probability min(1, p_m(x_m) / q_m(x_m))         (2)
rejected: p_{m+1} = norm((p_m - q_m)+)                                (3)
all rejected, or no children: emit from the current p_m               (4)

Lossless only if x_m was drawn from q_m given x_1 .. x_{m-1}, and children are verified in that order (`proposals`). A child
with q_m(x_m) = 0 cannot have been drawn: it is skipped and changes neither p nor q (5). The normalisation in (3) is needed
even before the last draw, because (2) of the next child divides by it.

If sampled children are sorted by probability first, the emitted distribution is wrong: p = q = (.5, .3, .2) and two children
give (47/56, 9/56, 0), near (.839, .161, 0). Nor is the test valid for beam trees with the softmax as q: those children are
point masses.

Source: SpecInfer (arXiv:2305.09781), section 4.3; STree, section 5.2.
"""

from ..errors import ShapeMismatch
from .dice import Dice
from .distribution import Distributions, Number, acceptance, check_tokens, distribution, distributions, residual
from .draft_tree import DraftTree
from .emitted import Emitted
from .proposals import Proposals


def multi_step(tree: DraftTree, p_target: Distributions, q_draft: Proposals, dice: Dice) -> Emitted:
    """Walk down a tree by equations (1) to (5) of the module.

    `p_target[i]` is the target's distribution after node i; `q_draft[i]` the distribution that node i itself was drawn from
    (`proposals`), None for the root. The coin of node i decides on node i; the last token is picked at the last accepted
    node.

    Raises: ProbabilityError, PrecisionError, ShapeMismatch, ParameterError (a token outside the vocabulary).
    Source: as the module.
    """
    p_rows = distributions("p_target", p_target, len(tree))
    q_rows = _laws(q_draft, len(tree), len(p_rows[0]))
    check_tokens("tree.tokens", tree.tokens[1:], len(p_rows[0]))
    node: int | None = 0
    while node is not None:
        last = node
        node, p_left = _accept_child(tree, last, p_rows[last], q_rows, dice)
    return Emitted((*tree.drafted(last), dice.pick(p_left, last)), tree.path(last))  # (4)


def _accept_child(
    tree: DraftTree, node: int, p: list[Number], q_rows: list[list[Number]], dice: Dice
) -> tuple[int | None, list[Number]]:
    """The first accepted child of a node, or None, and the remaining p."""
    for child in tree.children(node):
        x, q = tree.tokens[child], q_rows[child]
        if q[x] == 0:
            continue  # (5)
        if dice.bern(acceptance(p[x], q[x]), child):  # (2)
            return child, p
        p = residual(p, q)  # (3)
    return None, p


def _laws(q_draft: Proposals, nodes: int, size: int) -> list[list[Number]]:
    if len(q_draft) != nodes:
        raise ShapeMismatch(f"q_draft has {len(q_draft)} rows, but the tree has {nodes} nodes; give one for each")
    rows: list[list[Number]] = [[]]
    for i, row in enumerate(q_draft[1:], start=1):
        if row is None or len(row) != size:
            raise ShapeMismatch(
                f"q_draft[{i}] is {row}, but node {i} was drawn from a distribution over {size} tokens; "
                "give that distribution"
            )
        rows.append(distribution(f"q_draft[{i}]", row))
    return rows
