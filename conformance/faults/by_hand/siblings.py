"""Trees whose siblings are tested or computed after what a sibling left, or whose nodes walk to the root by another way."""

from typing import Any

import numpy as np

from ssmspec_ref import delta, ssd
from ssmspec_ref import tree as trees
from ssmspec_ref.accept import UniformDice
from ssmspec_ref.accept.distribution import acceptance, normalised
from ssmspec_ref.accept.draft_tree import DraftTree, unpadded
from ssmspec_ref.accept.emitted import Emitted
from ssmspec_ref.accept.proposals import Proposals
from ssmspec_ref.accept.sampled import DRAWN
from ssmspec_ref.records import each
from ssmspec_ref.shapes import Ancestors, Array, Parents

from ...adapters.reference_parts.acceptance import Runs, accept_sampled, padded
from ..fault import planted
from .chunks import named
from .trees import gathered


def siblings_in_place(rule: Any, S: Array, window: Any, ancestors: Ancestors, params: Any) -> Array:
    """A child updates its parent's state in place: the next sibling starts from the first child's state."""
    parents, made = trees.parents(ancestors), dict[tuple[int, int], tuple[Array, Array]]()
    for b, node in np.argwhere(parents != trees.PADDING):
        parent = int(parents[b, node])
        begin = S[b : b + 1] if parent < 0 else made[b, parent][1]
        token = each(lambda a, b=b, node=node: a[b : b + 1, node : node + 1], window)
        y, after = rule.scan(begin, token, params)
        made[b, node] = y[0, 0], after
        if parent >= 0:
            made[b, parent] = made[b, parent][0], after
    like = window.x if rule is ssd else window.v
    outputs = np.zeros(like.shape)
    for (b, node), (y, _) in made.items():
        outputs[b, node] = y
    return outputs


def second_step_to_the_node_before(M: Array, u: Array, parents: Parents, params: Any) -> Array:
    """The first step towards the root goes to the parent, every further one to the node before."""

    def columns(path: Array, node: int, width: int) -> Array:
        walked = [*range(path[-2] + 1), node] if node else [0]
        return np.concatenate([np.arange(width), width + np.array(walked)])[-width:]

    return gathered(M, u, parents, params, columns)


def residual_is_not_normalised(tokens: Array, parents: Array, p: Array, q: Array, *rest: Any) -> Runs:
    """The residual of the target after a rejected child is not normalised before the next sibling is tested."""
    coins, picks, budget, eos, law = rest
    if law not in DRAWN:
        return accept_sampled(tokens, parents, p, q, *rest)
    runs = []
    for b, row in enumerate(zip(tokens, parents, strict=True)):
        tree = unpadded(*row)
        dice = UniformDice(coins[b].tolist(), picks[b].tolist())
        runs.append(_walk(tree, p[b].tolist(), DRAWN[law](tree, q[b, : len(tree)].tolist()), dice))
    return padded(runs, tokens.shape[1], budget, eos)


def _walk(tree: DraftTree, p: list[list[float]], laws: Proposals, dice: UniformDice) -> Emitted:
    node, found = 0, True
    while found:
        found, left = False, p[node]
        for child in tree.children(node):
            token, own = tree.tokens[child], laws[child]
            if own is None or own[token] == 0:
                continue
            if dice.bern(acceptance(left[token], own[token]), child):
                node, found = child, True
                break
            owed = [max(float(a - b), 0.0) for a, b in zip(left, own, strict=True)]
            left = owed if any(owed) else left
    return Emitted((*tree.drafted(node), dice.pick(normalised(left), node)), tree.path(node))


FAULTS = planted(
    *(
        (named(siblings_in_place, rule), f"{name}.verify_tree", "TREE-TOPO")
        for name, rule in (("ssd", ssd), ("delta", delta))
    ),
    (second_step_to_the_node_before, "conv.verify_tree", "TREE-TOPO"),
    (residual_is_not_normalised, "acceptance.sampled", "ACCEPT-RULE"),
)
