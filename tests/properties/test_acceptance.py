"""Acceptance on drawn laws, trees and noise: the exact law by enumeration, and decision for decision."""

from collections import Counter
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from conformance.run.load import load
from property_tests.drawing.distributions import GRID, Law, Round, pairs, rounds
from property_tests.drawing.token_trees import TokenTree
from property_tests.laws.acceptance import Differs, judge
from ssmspec_ref.accept import Dice, multi_step, proposals
from ssmspec_ref.accept.draws import after_nodes, grow_tree, iid, without_replacement
from ssmspec_ref.accept.exact_law import law_of_model, law_of_rounds
from ssmspec_ref.accept.sampled import LAWS
from ssmspec_ref.contract import Capability

DRAWS: dict[str, tuple[Any, Any]] = {
    "iid": (iid, proposals.iid),
    "without_replacement": (without_replacement, proposals.without_replacement),
}
SAMPLED = "acceptance.sampled"


def capability(name: str) -> Capability:
    return next(s.capabilities[SAMPLED] for s in load(name).subjects if SAMPLED in s.capabilities)


@settings(max_examples=12, derandomize=True, deadline=None, database=None)
@given(st.data(), st.sampled_from(sorted(DRAWS)), st.lists(st.integers(1, 2), min_size=1, max_size=2))
def test_what_is_emitted_has_exactly_the_targets_law(data: st.DataObject, law: str, branching: list[int]) -> None:
    """Two tokens, by enumeration of the draws of the draft and of the decisions: as fractions, equal."""
    models: dict[tuple[int, ...], tuple[Law, Law]] = {}

    def both(context: tuple[int, ...]) -> tuple[Law, Law]:
        """Of the last token; another law for each."""
        return models.setdefault(context[-1:], data.draw(pairs(3)) if context[-1:] not in models else models[context[-1:]])

    draw, laws_of = DRAWS[law]

    def one_round(context: tuple[int, ...], dice: Dice) -> tuple[int, ...]:
        tree, q = grow_tree(lambda c: both(c)[1], context, branching, draw, dice)
        p = after_nodes(lambda c: both(c)[0], context, tree)
        return multi_step.multi_step(tree, p, laws_of(tree, q), dice).tokens

    assert law_of_rounds(one_round, 2) == law_of_model(lambda c: both(c)[0], 2)


@pytest.mark.parametrize(
    ("name", "examples"), [("reference", 200), ("ssmspec_fast", 200), ("ssmspec_fast.adapters.kernels:adapter", 8)]
)
def test_every_decision_is_the_exact_rules(name: str, examples: int) -> None:
    rule, seen = capability(name), Counter[tuple[str, bool]]()

    @settings(max_examples=examples, derandomize=True, deadline=None, database=None)
    @given(rounds())
    def check(drawn: Round) -> None:
        if name != "reference" or drawn.law != "without_replacement":
            seen[drawn.law, judge(rule, drawn)] += 1

    check()
    assert sum(count for (_, judged), count in seen.items() if judged) >= 0.7 * sum(seen.values())
    if examples >= 60:
        assert {law for law, judged in seen if judged} >= set(LAWS) - {"without_replacement"}


def at(u: Fraction, p: Fraction, law: str = "iid") -> Round:
    """A root with one child, token 0, of probability p where it was drawn with 1/2."""
    half, rest = Fraction(1, 2), 1 - p
    tree, laws = TokenTree((-1, 0), (1, 0)), ((p, rest), (half, half))
    return Round(tree, (laws[0],) * 2, (laws[1],) * 2, (Fraction(0), u), (Fraction(0),) * 2, law)


@pytest.mark.parametrize("name", ["reference", "ssmspec_fast", "ssmspec_fast.adapters.kernels:adapter"])
def test_coins_at_zero_at_the_edge_and_at_the_last_number(name: str) -> None:
    """p / q = 1/2: a coin of 1/2 - 2^-24 accepts, 1/2 does not; at p = 0 not even 0 does; at p = q even 1 - 2^-24."""
    rule, step = capability(name), Fraction(1, GRID)
    for u in (Fraction(0), Fraction(1, 2) - step, Fraction(1, 2), 1 - step):
        for p in (Fraction(0), Fraction(1, 4), Fraction(1, 2), Fraction(1)):
            assert judge(rule, at(u, p))


@pytest.mark.parametrize("fault", ["accepts at the edge", "skips the residual"])
def test_planted_rules_differ(fault: str) -> None:
    right = capability("ssmspec_fast").run

    def wrong(*given: Any) -> Any:
        tokens, parents, p, q, coins, picks, budget, eos, law = given
        if fault == "accepts at the edge":
            return right(tokens, parents, p, q, (coins - 2.0**-24).clip(0), picks, budget, eos, law)
        return right(tokens, parents, p, 0 * q + 1 / q.shape[2], coins, picks, budget, eos, law)

    planted = Capability(wrong, capability("ssmspec_fast").contract)

    @settings(max_examples=200, derandomize=True, deadline=None, database=None, phases=[Phase.generate])
    @given(rounds())
    def check(drawn: Round) -> None:
        judge(planted, drawn)

    with pytest.raises(Differs):
        check()
