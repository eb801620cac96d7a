"""Every acceptance algorithm emits the target's law exactly, as fractions, and every planted fault does not.

The draft's draws and the acceptance's decisions are enumerated together. The models are rational, differ in every
context, and have zeros, so that some supports are disjoint.
"""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ssmspec_ref.accept import (
    DraftTree,
    UniformDice,
    drafts,
    draws,
    greedy,
    multi_step,
    naive,
    processors,
    proposals,
    rejection,
)
from ssmspec_ref.accept.distribution import mass, point_mass
from ssmspec_ref.accept.emitted import Emitted
from ssmspec_ref.accept.exact_law import exact_law, law_of_model, law_of_rounds, rational_model, total_variation
from ssmspec_ref.errors import BudgetError, EmptyWindow, PrecisionError, ProbabilityError

F = Fraction
WITNESS = [F(5, 10), F(3, 10), F(2, 10)]
PAIRS = {
    **{f"v3-seed{s}": (rational_model(f"p{s}", 3), rational_model(f"q{s}", 3)) for s in range(2)},
    "v4-seed0": (rational_model("p", 4), rational_model("q", 4)),
    "v4-no-zeros": (rational_model("p", 4, zeros=0), rational_model("q", 4, zeros=0)),
    "equal": (rational_model("p", 3), rational_model("p", 3)),
    "disjoint": (lambda context: [F(1, 3), F(2, 3), 0, 0], lambda context: [0, 0, F(1, 4), F(3, 4)]),
    "mass-moves": (lambda context: [F(9, 20), F(9, 20), F(1, 10)], lambda context: [F(1, 20), F(3, 20), F(4, 5)]),
    "certain-target": (lambda context: point_mass(len(context) % 3, 3), rational_model("q", 3)),
    "certain-draft": (rational_model("p", 3), lambda context: point_mass(len(context) % 3, 3)),
}
pairs = pytest.mark.parametrize(("p", "q"), PAIRS.values(), ids=PAIRS)


def constant(row):
    return lambda context: row


def chain_round(p, q, count, *, laws_from=None, rows_from=None, dice_from=lambda dice: dice):
    """A window of a sampled chain. `laws_from` and `rows_from` are for faults: another q, other target rows."""

    def one_round(context, dice):
        dice = dice_from(dice)
        draft, laws = draws.grow_chain(q, context, count, dice)
        rows = [p((*context, *draft[:t])) for t in range(count + 1)]
        laws = laws if laws_from is None else [laws_from((*context, *draft[:t])) for t in range(count)]
        rows = rows if rows_from is None else rows_from(rows)
        return rejection.rejection(draft, rows, laws, dice).tokens

    return one_round


def tree_round(p, q, branching, draw, laws, *, dice_from=lambda dice: dice):
    """A window of a sampled tree: children by `draw`, accepted by the `laws` of `proposals`."""

    def one_round(context, dice):
        dice = dice_from(dice)
        tree, q_after = draws.grow_tree(q, context, branching, draw, dice)
        return multi_step.multi_step(tree, draws.after_nodes(p, context, tree), laws(tree, q_after), dice).tokens

    return one_round


def naive_round(p, q, branching, draw):
    def one_round(context, dice):
        tree, _ = draws.grow_tree(q, context, branching, draw, dice)
        return naive.naive(tree, draws.after_nodes(p, context, tree), dice).tokens

    return one_round


def trie_round(p, q, rows, count, laws):
    """A window of several i.i.d. chains, merged into a trie."""

    def one_round(context, dice):
        merged = drafts.trie(0, [draws.grow_chain(q, context, count, dice)[0] for _ in range(rows)]).tree
        after_p, after_q = (draws.after_nodes(model, context, merged) for model in (p, q))
        if laws is None:
            return naive.naive(merged, after_p, dice).tokens
        return multi_step.multi_step(merged, after_p, laws(merged, after_q), dice).tokens

    return one_round


def certain(tree, q_after):
    return proposals.point_masses(tree, len(q_after[0]))


def top_k(q, count, dice, first):
    return draws.top_k(q, count)


def sorted_draw(q, count, dice, first):
    return sorted(draws.without_replacement(q, count, dice, first), key=lambda token: -q[token])


def distance(one_round, p, length):
    """Total variation between one window, followed by plain decoding, and plain decoding alone."""

    def begin(context, dice):
        return one_round(context, dice) if not context else (dice.pick(p(context), 0),)

    return total_variation(law_of_rounds(begin, length), law_of_model(p, length))


# --- Lossless ----------------------------------------------------------------------------------------------------------


@pairs
@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_chain_emits_the_law_of_the_target_over_several_windows(p, q, count):
    law = law_of_rounds(chain_round(p, q, count), 3)
    assert sum(law.values()) == 1
    assert law == law_of_model(p, 3)


TREES = {
    "iid": (draws.iid, proposals.iid),
    "iid-twins-skipped": (draws.iid, proposals.without_replacement),
    "without-replacement": (draws.without_replacement, proposals.without_replacement),
    "top-k": (top_k, certain),
    "sorted-as-point-masses": (sorted_draw, certain),
}
trees = pytest.mark.parametrize(("draw", "laws"), TREES.values(), ids=TREES)


@pairs
@trees
@pytest.mark.parametrize("branching", [(3,), (2, 1), (1, 2)], ids=str)
def test_a_tree_emits_the_law_of_the_target(p, q, draw, laws, branching):
    assert distance(tree_round(p, q, branching, draw, laws), p, len(branching) + 1) == 0


@pytest.mark.parametrize("draw", [draws.iid, draws.without_replacement])
@pytest.mark.parametrize("size", [3, 4])
def test_a_full_binary_tree_of_depth_two_emits_the_law_of_the_target(draw, size):
    p, q = rational_model("p", size), rational_model("q", size)
    assert distance(tree_round(p, q, (2, 2), draw, getattr(proposals, draw.__name__)), p, 3) == 0


@trees
def test_several_windows_of_a_tree_emit_the_law_of_the_target(draw, laws):
    p, q = PAIRS["v3-seed1"]
    assert law_of_rounds(tree_round(p, q, (2,), draw, laws), 3) == law_of_model(p, 3)


@pairs
@pytest.mark.parametrize("draw", [draws.iid, draws.without_replacement, top_k, sorted_draw])
def test_naive_sampling_emits_the_law_of_the_target_for_any_children(p, q, draw):
    assert distance(naive_round(p, q, (2, 1), draw), p, 3) == 0


@pairs
@pytest.mark.parametrize("laws", [proposals.without_replacement, None], ids=["multi-step", "naive"])
def test_iid_rows_merged_into_a_trie_emit_the_law_of_the_target(p, q, laws):
    assert distance(trie_round(p, q, 2, 2, laws), p, 3) == 0


def test_three_short_rows_merged_into_a_trie_emit_the_law_of_the_target():
    p, q = PAIRS["v4-no-zeros"]
    assert distance(trie_round(p, q, 3, 1, proposals.without_replacement), p, 2) == 0


@pairs
def test_rows_that_were_looked_up_emit_the_law_of_the_target_as_point_masses(p, q):
    merged = drafts.trie(0, [[1, 2], [1, 0], [2], []]).tree

    def one_round(context, dice):
        return multi_step.multi_step(merged, draws.after_nodes(p, context, merged), certain(merged, [p(())]), dice).tokens

    assert distance(one_round, p, 3) == 0


@pairs
@pytest.mark.parametrize("keep", [lambda row: processors.top_k(row, 2), lambda row: processors.top_p(row, F(3, 5))])
def test_filtering_both_sides_alike_emits_the_filtered_law(p, q, keep):
    p_kept, q_kept = (lambda context: keep(p(context))), (lambda context: keep(q(context)))
    assert law_of_rounds(chain_round(p_kept, q_kept, 2), 3) == law_of_model(p_kept, 3)
    assert distance(tree_round(p_kept, q_kept, (2, 1), *TREES["without-replacement"]), p_kept, 3) == 0


def excluded_first(q, count, dice, first):
    """A slot filled with a token that q excludes, then the draws: what a static tree does when a filter empties it."""
    return [list(q).index(0), *draws.iid(q, count - 1, dice, first + 1)]


EXCLUDED = (constant([F(1, 2), F(1, 3), F(1, 6)]), constant([F(1, 4), 0, F(3, 4)]))


def test_a_child_that_its_law_excludes_is_skipped_and_changes_nothing():
    p, q = EXCLUDED
    assert distance(tree_round(p, q, (3,), excluded_first, proposals.iid), p, 2) == 0
    tree = DraftTree((0, 1, 0), (-1, 0, 0))  # the sibling behind it is accepted for sure: p / q = 2
    run = multi_step.multi_step(tree, [p(())] * 3, [None, q(()), q(())], UniformDice([F(1, 2)] * 3, [F(1, 2)] * 3))
    assert run.path == (0, 2)


def test_a_chain_token_that_its_law_excludes_ends_the_window_with_the_target():
    p, q = EXCLUDED

    def one_round(context, dice):
        return rejection.rejection([1], [p(()), p(())], [q(())], dice).tokens

    assert distance(one_round, p, 2) == 0


# --- Identities --------------------------------------------------------------------------------------------------------


@given(seed=st.integers(0, 10**6), size=st.integers(2, 7))
@settings(deadline=None, derandomize=True, max_examples=40)
def test_a_chain_accepts_with_probability_sum_of_min_p_q(seed, size):
    p, q = rational_model(f"p{seed}", size)(()), rational_model(f"q{seed}", size)(())

    def accepts(dice):
        draft, laws = draws.grow_chain(constant(q), (), 1, dice)
        return rejection.rejection(draft, [p, p], laws, dice).accepted == 1

    assert exact_law(accepts).get(True, 0) == sum(min(a, b) for a, b in zip(p, q, strict=True))
    assert exact_law(accepts).get(True, 0) == 1 - sum(abs(a - b) for a, b in zip(p, q, strict=True)) / 2


@given(seed=st.integers(0, 10**6), count=st.integers(1, 3))
@settings(deadline=None, derandomize=True, max_examples=20)
def test_point_mass_children_are_accepted_as_often_as_naive_ones(seed, count):
    p, q = rational_model(f"p{seed}", 4)(()), rational_model(f"q{seed}", 4)(())
    tree = drafts.trie(0, [[token] for token in draws.top_k(q, count)]).tree
    rows = [p] * len(tree)
    tested = exact_law(lambda dice: multi_step.multi_step(tree, rows, certain(tree, rows), dice).accepted)
    matched = exact_law(lambda dice: naive.naive(tree, rows, dice).accepted)
    offered = sum(p[x] for x in tree.tokens[1:])
    assert tested == matched
    assert (tested.get(1, 0), tested.get(0, 0)) == (offered, 1 - offered)


@given(seed=st.integers(0, 10**6))
@settings(deadline=None, derandomize=True, max_examples=20)
def test_a_point_mass_target_makes_every_rule_greedy(seed):
    q = rational_model(f"q{seed}", 3)
    t = [seed % 3, seed // 3 % 3, seed // 9 % 3]
    p = lambda context: point_mass(t[len(context)], 3)  # noqa: E731
    for one_round in (
        chain_round(p, q, 2),
        tree_round(p, q, (2, 1), *TREES["without-replacement"]),
        tree_round(p, q, (2, 1), *TREES["top-k"]),
        naive_round(p, q, (2, 1), draws.iid),
    ):
        for tokens in exact_law(lambda dice, one_round=one_round: one_round((), dice)):
            assert tokens == tuple(t[: len(tokens)])


def test_the_law_of_a_model_is_the_product_of_its_rows():
    p = rational_model("p", 3)
    law = law_of_model(p, 2)
    assert law == {
        (a, b): p(())[a] * p((a,))[b] for a in range(3) for b in range(3) if p(())[a] * p((a,))[b]
    }  # the enumeration is not its own witness
    assert law_of_model(p, 0) == {(): 1}


# --- Planted faults ----------------------------------------------------------------------------------------------------


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
    with pytest.raises(ProbabilityError, match="sums to 2/5, but exactly 1 is needed"):
        exact_law(lambda dice: chain_round(constant(p), constant(q), 1)((), dice))


def test_planted_unnormalised_residual_is_caught_on_a_chain_where_the_draw_does_not_divide(monkeypatch):
    monkeypatch.setattr(rejection, "residual", unnormalised)
    assert worst(lambda p, q: chain_round(p, q, 2, dice_from=Multinomial)) == 0  # why the slip goes unseen
    assert worst(lambda p, q: chain_round(p, q, 2, dice_from=FallsOffTheEnd)) > 0


@pytest.mark.parametrize("name", ["iid", "without-replacement"])
def test_planted_unnormalised_residual_is_caught_at_the_second_child_even_where_the_draw_divides(monkeypatch, name):
    make = lambda p, q: tree_round(p, q, (2,), *TREES[name], dice_from=Multinomial)  # noqa: E731
    assert worst(make, 2) == 0
    monkeypatch.setattr(multi_step, "residual", unnormalised)
    assert worst(make, 2) > 0


def test_planted_raw_q_after_top_k_is_caught():
    kept = lambda q: lambda context: processors.top_k(q(context), 2)  # noqa: E731
    assert worst(lambda p, q: chain_round(p, kept(q), 2)) == 0
    assert worst(lambda p, q: chain_round(p, kept(q), 2, laws_from=q)) > 0


def test_planted_row_of_another_request_as_q_is_caught():
    other = rational_model("other", 3, zeros=0)
    p, q = PAIRS["v3-seed0"]
    assert distance(chain_round(p, q, 2, laws_from=other), p, 3) > 0


def keep_the_rejected(p, q):
    return p


@pytest.mark.parametrize("wrong", [keep_the_rejected, lambda p, q: processors.normalised([*p[1:], p[0]])])
def test_planted_residual_is_caught_on_a_chain(monkeypatch, wrong):
    monkeypatch.setattr(rejection, "residual", wrong)
    assert worst(lambda p, q: chain_round(p, q, 2)) > 0


def test_planted_target_without_the_rejected_token_as_residual_is_caught_and_right_only_for_point_masses(monkeypatch):
    def masked(p, q):  # right only if the token was certain; the chain of one token makes it known
        return multi_step.residual(p, point_mass(int(max(range(len(q)), key=lambda i: q[i] - p[i])), len(q)))

    p, q = constant([F(1, 2), F(1, 4), F(1, 4)]), constant([F(1, 8), F(3, 4), F(1, 8)])
    monkeypatch.setattr(rejection, "residual", masked)
    assert distance(chain_round(p, q, 1), p, 2) > 0
    certain_q = constant(point_mass(1, 3))
    assert distance(chain_round(p, certain_q, 1), p, 2) == 0


def test_planted_rejected_child_that_is_not_removed_is_caught(monkeypatch):
    make = lambda p, q: tree_round(p, q, (2,), *TREES["top-k"])  # noqa: E731
    assert worst(make, 2) == 0
    monkeypatch.setattr(multi_step, "residual", keep_the_rejected)
    assert worst(make, 2) > 0


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


@pytest.mark.parametrize("wrong", [lambda p, q: int(p >= q), lambda p, q: p, lambda p, q: 1])
def test_planted_acceptance_rule_is_caught(monkeypatch, wrong):
    monkeypatch.setattr(rejection, "acceptance", wrong)
    assert worst(lambda p, q: chain_round(p, q, 2)) > 0


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


def test_planted_run_that_counts_acceptances_after_a_rejection_is_caught(monkeypatch):
    def rejection_with_gaps(draft, p_rows, q_rows, dice):
        kept = [x for t, x in enumerate(draft) if dice.bern(rejection.acceptance(p_rows[t][x], q_rows[t][x]), t + 1)]
        return Emitted((*kept, dice.pick(p_rows[len(kept)], len(kept))), tuple(range(len(kept) + 1)))

    monkeypatch.setattr(rejection, "rejection", rejection_with_gaps)
    assert worst(lambda p, q: chain_round(p, q, 2)) > 0


# --- What the enumeration refuses --------------------------------------------------------------------------------------


def test_an_exact_law_refuses_floats_and_rows_that_are_no_distribution():
    with pytest.raises(PrecisionError, match="give rational models"):
        exact_law(lambda dice: dice.pick([0.5, 0.5], 0))
    with pytest.raises(PrecisionError, match="give rational models"):
        exact_law(lambda dice: dice.bern(0.5, 0))
    with pytest.raises(ProbabilityError, match="sums to 5/6"):
        exact_law(lambda dice: dice.pick([F(1, 2), F(1, 3)], 0))
    with pytest.raises(ProbabilityError, match="a coin came with probability 3/2"):
        exact_law(lambda dice: dice.bern(F(3, 2), 0))


def test_a_law_of_fewer_than_no_tokens_or_of_empty_windows_is_refused():
    with pytest.raises(BudgetError, match="-1 tokens"):
        law_of_model(constant(WITNESS), -1)
    with pytest.raises(EmptyWindow, match="emitted nothing"):
        law_of_rounds(lambda context, dice: (), 1)
