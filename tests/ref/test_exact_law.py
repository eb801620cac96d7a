"""Every acceptance algorithm emits the target's law exactly, as fractions: draws and decisions are enumerated together."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssmspec_ref.accept import (
    DraftTree,
    UniformDice,
    drafts,
    draws,
    multi_step,
    naive,
    processors,
    proposals,
    rejection,
)
from ssmspec_ref.accept.distribution import point_mass
from ssmspec_ref.accept.exact_law import exact_law, law_of_model, law_of_rounds, rational_model
from ssmspec_ref.errors import BudgetError, EmptyWindow, PrecisionError, ProbabilityError
from tests.families import examples

from ..exact_rounds import (
    EXCLUDED,
    PAIRS,
    TREES,
    WITNESS,
    F,
    certain,
    chain_round,
    constant,
    distance,
    excluded_first,
    naive_round,
    pairs,
    sorted_draw,
    top_k,
    tree_round,
    trees,
    trie_round,
)
from .refusals import refused


@pairs
@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_chain_emits_the_law_of_the_target_over_several_windows(p, q, count):
    law = law_of_rounds(chain_round(p, q, count), 3)
    assert sum(law.values()) == 1
    assert law == law_of_model(p, 3)


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
@examples(40)
def test_a_chain_accepts_with_probability_sum_of_min_p_q(seed, size):
    p, q = rational_model(f"p{seed}", size)(()), rational_model(f"q{seed}", size)(())

    def accepts(dice):
        draft, laws = draws.grow_chain(constant(q), (), 1, dice)
        return rejection.rejection(draft, [p, p], laws, dice).accepted == 1

    assert exact_law(accepts).get(True, 0) == sum(min(a, b) for a, b in zip(p, q, strict=True))
    assert exact_law(accepts).get(True, 0) == 1 - sum(abs(a - b) for a, b in zip(p, q, strict=True)) / 2


@given(seed=st.integers(0, 10**6), count=st.integers(1, 3))
@examples(20)
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
@examples(20)
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


# --- What the enumeration refuses --------------------------------------------------------------------------------------


def test_an_exact_law_refuses_floats_and_rows_that_are_no_distribution():
    refused(PrecisionError, "give rational models", exact_law, lambda dice: dice.pick([0.5, 0.5], 0))
    refused(PrecisionError, "give rational models", exact_law, lambda dice: dice.bern(0.5, 0))
    refused(ProbabilityError, "sums to 5/6", exact_law, lambda dice: dice.pick([F(1, 2), F(1, 3)], 0))
    refused(ProbabilityError, "the probability of a coin is 3/2", exact_law, lambda dice: dice.bern(F(3, 2), 0))


def test_a_law_of_fewer_than_no_tokens_or_of_empty_windows_is_refused():
    refused(BudgetError, "length is -1", law_of_model, constant(WITNESS), -1)
    refused(EmptyWindow, "emitted nothing", law_of_rounds, lambda context, dice: (), 1)
