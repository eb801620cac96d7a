"""Every planted fault of acceptance moves the exact law, or is told where it does not."""

import pytest

from ssmspec_ref.accept import (
    draws,
    greedy,
    multi_step,
    processors,
    proposals,
    rejection,
)
from ssmspec_ref.accept.distribution import mass, point_mass
from ssmspec_ref.accept.emitted import Emitted
from ssmspec_ref.accept.exact_law import exact_law, law_of_rounds, rational_model
from ssmspec_ref.errors import ProbabilityError

from ..exact_rounds import (
    EXCLUDED,
    PAIRS,
    TREES,
    WITNESS,
    F,
    chain_round,
    constant,
    distance,
    excluded_first,
    sorted_draw,
    top_k,
    tree_round,
    trie_round,
)
from .refusals import refused


def test_planted_sorted_children_are_caught_with_the_exact_law_of_the_witness():
    p = q = constant(WITNESS)
    one_round = tree_round(p, q, (2,), sorted_draw, proposals.without_replacement)
    law = law_of_rounds(one_round, 1)
    # {0, 1} is drawn with 3/10 + 3/14 = 18/35, {0, 2} with 1/5 + 1/8 = 13/40, {1, 2} with 3/35 + 3/40 = 45/280. The first
    # child has p = q, so it is always accepted: the law is (18/35 + 13/40, 45/280, 0).
    assert law == {(0,): F(47, 56), (1,): F(9, 56)}
    assert [round(float(law.get((i,), 0)), 3) for i in range(3)] == [0.839, 0.161, 0]
    assert distance(one_round, p, 1) == F(19, 56)
    assert distance(tree_round(p, q, (2,), *TREES["without-replacement"]), p, 1) == 0


def unnormalised(p, q):
    owed = [max(a - b, F(0)) for a, b in zip(p, q, strict=True)]
    return owed if any(owed) else list(p)


class Multinomial:
    """A dice that divides the weights by their sum, as library routines do."""

    def __init__(self, dice):
        self.dice = dice

    def bern(self, p, node):
        return self.dice.bern(p, node)

    def pick(self, weights, node):
        return self.dice.pick([w / mass(weights) for w in weights], node)


class FallsOffTheEnd(Multinomial):
    """A dice that reads u against the running sum of the weights, and the last token with weight where the sum ends first."""

    def pick(self, weights, node):
        weights = list(weights)
        weights[max(i for i, w in enumerate(weights) if w > 0)] += 1 - mass(weights)
        return self.dice.pick(weights, node)


FAULT_PAIRS = [PAIRS[name] for name in ("v3-seed0", "v3-seed1", "v4-no-zeros", "mass-moves")]


def worst(make, length=3):
    """The largest distance over the fault models; `make` builds the round for one pair."""
    return max(distance(make(p, q), p, length) for p, q in FAULT_PAIRS)


def test_the_printed_residual_of_mamba_drafters_is_no_distribution(monkeypatch):
    p, q = WITNESS, [F(1, 10), F(4, 10), F(5, 10)]
    assert mass(unnormalised(p, q)) == 1 - sum(map(min, p, q)) == F(2, 5)
    monkeypatch.setattr(rejection, "residual", unnormalised)
    refused(
        ProbabilityError,
        "sums to 2/5; it must sum to exactly 1",
        exact_law,
        lambda dice: chain_round(constant(p), constant(q), 1)((), dice),
    )


def test_planted_unnormalised_residual_is_caught_on_a_chain_where_the_draw_does_not_divide(monkeypatch):
    monkeypatch.setattr(rejection, "residual", unnormalised)
    assert worst(lambda p, q: chain_round(p, q, 2, dice_from=Multinomial)) == 0  # why the slip goes unseen
    assert worst(lambda p, q: chain_round(p, q, 2, dice_from=FallsOffTheEnd)) > 0


def test_planted_raw_q_after_top_k_is_caught():
    kept = lambda q: lambda context: processors.top_k(q(context), 2)  # noqa: E731
    assert worst(lambda p, q: chain_round(p, kept(q), 2)) == 0
    assert worst(lambda p, q: chain_round(p, kept(q), 2, laws_from=q)) > 0


def test_planted_row_of_another_request_as_q_is_caught():
    other = rational_model("other", 3, zeros=0)
    p, q = PAIRS["v3-seed0"]
    assert distance(chain_round(p, q, 2, laws_from=other), p, 3) > 0


def test_planted_target_without_the_rejected_token_as_residual_is_caught_and_right_only_for_point_masses(monkeypatch):
    def masked(p, q):  # right only if the token was certain; the chain of one token makes it known
        return multi_step.residual(p, point_mass(int(max(range(len(q)), key=lambda i: q[i] - p[i])), len(q)))

    p, q = constant([F(1, 2), F(1, 4), F(1, 4)]), constant([F(1, 8), F(3, 4), F(1, 8)])
    monkeypatch.setattr(rejection, "residual", masked)
    assert distance(chain_round(p, q, 1), p, 2) > 0
    certain_q = constant(point_mass(1, 3))
    assert distance(chain_round(p, certain_q, 1), p, 2) == 0


class OneUniform:
    """One uniform decides every coin of a window: given what it has decided, it is uniform on what is left."""

    def __init__(self, dice):
        self.dice, self.low, self.high = dice, F(0), F(1)

    def pick(self, weights, node):
        return self.dice.pick(weights, node)

    def bern(self, p, node):
        cut = min(max(F(p), self.low), self.high)
        yes = self.dice.bern((cut - self.low) / (self.high - self.low), node)
        self.low, self.high = (self.low, cut) if yes else (cut, self.high)
        return yes


def test_planted_uniform_used_for_the_whole_window_is_caught_beyond_the_first_token():
    make = lambda p, q: chain_round(p, q, 2, dice_from=OneUniform)  # noqa: E731
    assert worst(make, 1) == 0  # the first token looks perfect
    assert worst(make, 3) > 0
    assert worst(lambda p, q: tree_round(p, q, (2,), *TREES["iid"], dice_from=OneUniform), 2) > 0


def test_planted_bonus_from_the_wrong_row_is_caught():
    make = lambda rows_from: lambda p, q: chain_round(p, q, 2, rows_from=rows_from)  # noqa: E731
    assert worst(make(lambda rows: rows)) == 0
    assert worst(make(lambda rows: [*rows[:-1], rows[-2]])) > 0
    assert worst(make(lambda rows: [*rows[:-1], rows[0]])) > 0


def test_planted_softmax_q_for_children_that_were_certain_is_caught():
    for laws in (proposals.iid, proposals.without_replacement):
        assert worst(lambda p, q, laws=laws: tree_round(p, q, (2,), top_k, laws), 2) > 0


def test_planted_laws_of_another_way_of_drawing_are_caught():
    assert worst(lambda p, q: tree_round(p, q, (2,), draws.without_replacement, proposals.iid), 2) > 0
    assert worst(lambda p, q: trie_round(p, q, 2, 1, proposals.iid), 2) > 0


def judged_row_by_row(p, q, judge):
    """Every row alone, the longest run wins."""

    def one_round(context, dice):
        runs = []
        for _ in range(2):
            draft, laws = draws.grow_chain(q, context, 1, dice)
            runs.append(judge(draft, [p((*context, *draft[:t])) for t in range(2)], laws, dice))
        return max(runs, key=lambda run: run.advanced).tokens

    return one_round


def matched(draft, rows, laws, dice):
    return greedy.chain(draft, [dice.pick(row, t) for t, row in enumerate(rows)])


@pytest.mark.parametrize("judge", [rejection.rejection, matched], ids=["rejection", "naive"])
def test_planted_best_of_several_rows_is_caught(judge):
    assert worst(lambda p, q: judged_row_by_row(p, q, judge), 2) > 0


def test_planted_rejection_of_an_excluded_child_is_caught(monkeypatch):
    def accept_child(tree, node, p, q_rows, dice):
        for child in tree.children(node):
            x, q = tree.tokens[child], q_rows[child]
            if q[x] > 0 and dice.bern(multi_step.acceptance(p[x], q[x]), child):
                return child, p
            p = multi_step.residual(p, q)
        return None, p

    p, q = EXCLUDED
    monkeypatch.setattr(multi_step, "_accept_child", accept_child)
    assert distance(tree_round(p, q, (3,), excluded_first, proposals.iid), p, 2) > 0


def rejection_with_gaps(draft, p_rows, q_rows, dice):
    """Acceptances after a rejection count."""
    kept = [x for t, x in enumerate(draft) if dice.bern(rejection.acceptance(p_rows[t][x], q_rows[t][x]), t + 1)]
    return Emitted((*kept, dice.pick(p_rows[len(kept)], len(kept))), tuple(range(len(kept) + 1)))


def chain_of_two(p, q):
    return chain_round(p, q, 2)


def children(name, **options):
    """A round with two children of a root."""
    return lambda p, q: tree_round(p, q, (2,), *TREES[name], **options)


REPLACED = {
    "the rejected token stays in the residual": (rejection, "residual", lambda p, q: p, chain_of_two, 3),
    "a residual of the next token": (
        rejection,
        "residual",
        lambda p, q: processors.normalised([*p[1:], p[0]]),
        chain_of_two,
        3,
    ),
    "acceptance iff p >= q": (rejection, "acceptance", lambda p, q: int(p >= q), chain_of_two, 3),
    "acceptance with p": (rejection, "acceptance", lambda p, q: p, chain_of_two, 3),
    "acceptance of all": (rejection, "acceptance", lambda p, q: 1, chain_of_two, 3),
    "acceptances after a rejection": (rejection, "rejection", rejection_with_gaps, chain_of_two, 3),
    "a rejected child is not removed": (multi_step, "residual", lambda p, q: p, children("top-k"), 2),
    # the draw divides, and yet the second child shows it
    "an unnormalised residual, iid": (multi_step, "residual", unnormalised, children("iid", dice_from=Multinomial), 2),
    "an unnormalised residual, without replacement": (
        multi_step,
        "residual",
        unnormalised,
        children("without-replacement", dice_from=Multinomial),
        2,
    ),
}


@pytest.mark.parametrize("fault", REPLACED)
def test_planted_rule_is_caught(monkeypatch, fault):
    module, attribute, wrong, make, length = REPLACED[fault]
    assert worst(make, length) == 0
    monkeypatch.setattr(module, attribute, wrong)
    assert worst(make, length) > 0
