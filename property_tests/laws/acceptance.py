"""Acceptance, decision by decision: an implementation and the exact rule, with the same distributions and the same noise.

The exact rule uses fractions. An implementation in float64 decides the first child of a node exactly, and also a pick at a
node without rejections: products of two multiples of 2^-24 are float64 numbers. After a rejection quotients
are rounded; a decision there within 2^-40 of its threshold, 2^13 roundings, is not tested, nor is what follows.
"""

from fractions import Fraction
from typing import Any

import numpy as np

from ssmspec_ref.accept import UniformDice
from ssmspec_ref.accept.draft_tree import DraftTree
from ssmspec_ref.accept.emitted import Emitted
from ssmspec_ref.accept.sampled import sampled
from ssmspec_ref.contract import Capability

from ..drawing.distributions import Round

NEAR = Fraction(1, 2**40)


class Differs(AssertionError):
    """An implementation's decision differs from the exact rule's."""


class Exact(UniformDice):
    """Dice that note whether a decision after a rejection came too close to its threshold."""

    def __init__(self, coins: Any, picks: Any, tree: DraftTree) -> None:
        super().__init__(coins, picks)
        self.tree, self.rejected, self.clear = tree, set[int](), True

    def bern(self, p: Any, node: int) -> bool:
        above = self.tree.parents[node]
        if above in self.rejected and 0 < p < 1:
            self.clear &= abs(Fraction(p) - Fraction(self.coins[node])) > NEAR
        stands = super().bern(p, node)
        if not stands:
            self.rejected.add(above)
        return stands

    def pick(self, weights: Any, node: int) -> int:
        total = Fraction(0)
        for weight in weights if node in self.rejected else ():
            total += Fraction(weight)
            if 0 < total < 1:
                self.clear &= abs(total - Fraction(self.picks[node])) > NEAR
        return super().pick(weights, node)


def exact(round_: Round) -> tuple[Emitted, bool]:
    """What the exact rule emits, and whether every decision is clear of its threshold."""
    size = round_.tree.size
    tree = DraftTree(round_.tree.tokens[:size], round_.tree.parents[:size])
    p, q = round_.p[:size], round_.q[:size]
    dice = Exact(round_.coins, round_.picks, tree)
    return sampled(tree, round_.law, p, q, dice), dice.clear


def judge(capability: Capability, round_: Round) -> bool:
    """Whether the round could be tested. Raises: Differs."""
    run, clear = exact(round_)
    tokens, parents = (np.array([a], dtype=np.int64) for a in (round_.tree.tokens, round_.tree.parents))
    p, q = (np.array([[[float(x) for x in row] for row in rows]]) for rows in (round_.p, round_.q))
    coins, picks = (np.array([[float(u) for u in noise]]) for noise in (round_.coins, round_.picks))
    budget = np.array([len(round_.tree.tokens) + 1])
    said, path, advanced, ended = capability.run(tokens, parents, p, q, coins, picks, budget, (), round_.law)
    came = tuple(said[0][: advanced[0]].tolist()), tuple(path[0][: advanced[0]].tolist())
    if clear and (came != (run.tokens, run.path) or ended[0]):
        raise Differs(
            f"{round_.law}: emitted tokens {came[0]} on path {came[1]}, but the exact rule emits {run.tokens} on {run.path}"
        )
    return clear
