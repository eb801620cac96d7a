"""Acceptance on given noise: the greedy derivations agree, the sampled ones reduce to each other, bad input is refused."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssmspec_ref.accept import DraftTree, Emitted, UniformDice, drafts, draws, greedy, proposals
from ssmspec_ref.accept.distribution import argmax, point_mass
from ssmspec_ref.accept.draft_tree import chain, unpadded
from ssmspec_ref.accept.emitted import accepted
from ssmspec_ref.accept.exact_law import rational_model
from ssmspec_ref.accept.multi_step import multi_step
from ssmspec_ref.accept.naive import naive
from ssmspec_ref.accept.rejection import rejection
from ssmspec_ref.errors import (
    LengthError,
    ParameterError,
    ProbabilityError,
    ShapeMismatch,
)
from tests.families import examples

from .refusals import copied, refused, unchanged

seeds = st.integers(0, 10**6)


def random_tree(rng, nodes, vocabulary):
    """Any tree, twins among siblings included; every third node continues the one before it, so that there are deep paths."""
    parents = [-1] + [i - 1 if rng.random() < 0.4 else int(rng.integers(0, i)) for i in range(1, nodes)]
    return DraftTree(tuple(rng.integers(0, vocabulary, nodes).tolist()), tuple(parents))


def rows(rng, count, vocabulary):
    """Rational rows with zeros, as fractions and as floats."""
    model = rational_model(f"{rng.integers(10**9)}", vocabulary)
    exact = [model((t,)) for t in range(count)]
    floats = [[float(x) for x in row] for row in exact]
    return exact, [[x / math.fsum(row) for x in row] for row in floats]


def grid(rng, count):
    """Uniforms at odd multiples of 2^-13, which no ratio of small whole numbers meets."""
    return [Fraction(2 * int(k) + 1, 2**13) for k in rng.integers(0, 2**12, count)]


# --- Greedy ------------------------------------------------------------------------------------------------------------


@given(seed=seeds, nodes=st.integers(1, 12), vocabulary=st.integers(1, 4), batch=st.integers(1, 4), padding=st.integers(0, 3))
@examples(150)
def test_the_sweep_over_all_nodes_is_the_walk_from_the_root(seed, nodes, vocabulary, batch, padding):
    rng = np.random.default_rng(seed)
    trees = [random_tree(rng, nodes, vocabulary) for _ in range(batch)]
    tokens = np.array([(*tree.tokens, *[0] * padding) for tree in trees])
    parents = np.array([(*tree.parents, *[-2] * padding) for tree in trees])
    choice = rng.integers(0, vocabulary, tokens.shape)
    before = copied(tokens, parents, choice)
    emitted, path, advanced = greedy.sweep(tokens, parents, choice)
    for b in range(batch):
        run = greedy.walk(unpadded(tokens[b], parents[b]), choice[b, :nodes])
        n = run.advanced
        assert (advanced[b], tuple(emitted[b, :n]), tuple(path[b, :n])) == (n, run.tokens, run.path)
        assert np.all(emitted[b, n:] == -1)
        assert np.all(path[b, n:] == -1)
    assert unchanged(before, tokens, parents, choice)


@given(seed=seeds, count=st.integers(0, 6))
@examples(80)
def test_a_chain_is_a_tree_with_one_path(seed, count):
    rng = np.random.default_rng(seed)
    draft, choice = rng.integers(0, 2, count), rng.integers(0, 2, count + 1)
    run = greedy.chain(draft, choice)
    assert run == greedy.walk(chain(1, draft), choice)
    assert run.accepted == (np.cumprod(draft == choice[:-1]).sum() if count else 0)


@given(seed=seeds, nodes=st.integers(1, 10))
@examples(80)
def test_greedy_emits_what_plain_greedy_decoding_emits(seed, nodes):
    rng = np.random.default_rng(seed)
    tree, model = random_tree(rng, nodes, 3), rational_model(f"p{seed}", 3)
    run = greedy.walk(tree, [argmax(row) for row in draws.after_nodes(model, (), tree)])
    plain = ()
    for _ in run.tokens:
        plain = (*plain, argmax(model(plain)))
    assert run.tokens == plain


def test_the_root_alone_emits_one_token():
    tree = chain(0, [])
    assert greedy.walk(tree, [2]) == greedy.chain([], [2]) == Emitted((2,), (0,))
    assert naive(tree, [[0.0, 1.0]], UniformDice([], [0.5])) == Emitted((1,), (0,))
    assert multi_step(tree, [[0.0, 1.0]], [None], UniformDice([], [0.5])) == Emitted((1,), (0,))
    assert rejection([], [[0.0, 1.0]], [], UniformDice([], [0.5])) == Emitted((1,), (0,))


def test_ties_go_to_the_lowest_token_and_token_zero_is_a_token():
    logits = np.array([[[1.0, 3.0, 3.0], [2.0, 2.0, 2.0], [-np.inf, 0.0, -np.inf]]])
    assert greedy.choices(logits).tolist() == [[1, 0, 1]]
    assert argmax([Fraction(1, 4), Fraction(3, 8), Fraction(3, 8)]) == 1
    assert greedy.chain([0, 0], [0, 0, 0]) == Emitted((0, 0, 0), (0, 1, 2))
    assert greedy.chain([0, 0], [0, 1, 0]) == Emitted((0, 1), (0, 1))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_that_are_no_logits_are_refused(bad):
    logits = np.zeros((2, 3, 4))
    logits[1, 2, 0] = bad
    refused(ProbabilityError, r"logits\[1, 2\]", greedy.choices, logits)
    refused(ProbabilityError, "maximum -inf", greedy.choices, np.full((1, 1, 3), -np.inf))


def deepest(tokens, parents, choice):
    """The sweep without its third condition: of two siblings with one token both stand."""
    ok, depth = [True], [0]
    for i in range(1, len(tokens)):
        ok.append(ok[parents[i]] and tokens[i] == choice[parents[i]])
        depth.append(depth[parents[i]] + 1)
    return max((d, -i) for i, d in enumerate(depth) if ok[i])


def test_of_twin_siblings_the_first_must_win_or_sweep_and_walk_part():
    tokens, parents, choice = [9, 1, 1, 2], [-1, 0, 0, 2], [1, 0, 2, 0]
    run = greedy.walk(DraftTree(tuple(tokens), tuple(parents)), choice)
    assert run == Emitted((1, 0), (0, 1))
    emitted, path, advanced = greedy.sweep(np.array([tokens]), np.array([parents]), np.array([choice]))
    assert (emitted.tolist(), path.tolist(), advanced.tolist()) == ([[1, 0, -1, -1]], [[0, 1, -1, -1]], [2])
    assert deepest(tokens, parents, choice) == (2, -3)  # the formula without the condition goes through the second twin


# --- Sampled, on given noise -------------------------------------------------------------------------------------------


@given(seed=seeds, count=st.integers(0, 5), vocabulary=st.integers(2, 5))
@examples(120)
def test_rejection_on_a_chain_is_multi_step_on_a_tree_with_one_path(seed, count, vocabulary):
    rng = np.random.default_rng(seed)
    draft = rng.integers(0, vocabulary, count).tolist()  # some of them excluded by their q
    (p, p_float), (q, q_float) = rows(rng, count + 1, vocabulary), rows(rng, count + 1, vocabulary)
    dice = UniformDice(grid(rng, count + 1), grid(rng, count + 1))
    tree = chain(0, draft)
    run = rejection(draft, p, q[:count], dice)
    assert run == multi_step(tree, p, proposals.iid(tree, q), dice)
    assert run == rejection(draft, p_float, q_float[:count], dice)  # floats decide as fractions do
    assert run == rejection(draft, np.array(p_float), np.array(q_float)[:count], dice)
    assert run.tokens[:-1] == tuple(draft[: run.accepted])
    assert p[run.accepted][run.tokens[-1]] > 0


@given(seed=seeds, nodes=st.integers(1, 9), vocabulary=st.integers(2, 5))
@examples(120)
def test_floats_decide_as_fractions_do_on_a_tree(seed, nodes, vocabulary):
    rng = np.random.default_rng(seed)
    tree = random_tree(rng, nodes, vocabulary)
    (p, p_float), (q, q_float) = rows(rng, nodes, vocabulary), rows(rng, nodes, vocabulary)
    dice = UniformDice(grid(rng, nodes), grid(rng, nodes))
    for by in (proposals.iid, proposals.without_replacement):
        exact = multi_step(tree, p, by(tree, q), dice)
        assert exact == multi_step(tree, np.array(p_float), by(tree, np.array(q_float)), dice)
        assert tree.drafted(exact.path[-1]) == exact.tokens[:-1]
    certain = proposals.point_masses(tree, vocabulary)
    assert multi_step(tree, p, certain, dice) == multi_step(tree, p_float, certain, dice)


@given(seed=seeds, nodes=st.integers(1, 12), vocabulary=st.integers(2, 4))
@examples(100)
def test_naive_sampling_is_the_greedy_walk_on_what_was_drawn_at_every_node(seed, nodes, vocabulary):
    rng = np.random.default_rng(seed)
    tree = random_tree(rng, nodes, vocabulary)
    p, _ = rows(rng, nodes, vocabulary)
    dice = UniformDice([], grid(rng, nodes))
    assert naive(tree, p, dice) == greedy.walk(tree, [dice.pick(row, node) for node, row in enumerate(p)])


@given(seed=seeds, count=st.integers(1, 5))
@examples(60)
def test_equal_laws_accept_everything_and_disjoint_ones_nothing(seed, count):
    rng = np.random.default_rng(seed)
    low, high = (rng.dirichlet(np.ones(3), count + 1) for _ in range(2))
    p = np.concatenate([low / low.sum(axis=1, keepdims=True), np.zeros((count + 1, 3))], axis=1)
    q = np.concatenate([np.zeros((count + 1, 3)), high / high.sum(axis=1, keepdims=True)], axis=1)
    uniforms = [*[1 - 2.0**-53] * count, 0.0]
    draft = rng.integers(0, 3, count).tolist()
    assert rejection(draft, p, p[:count], UniformDice(uniforms, uniforms)).accepted == count
    draft = rng.integers(3, 6, count).tolist()
    run = rejection(draft, p, q[:count], UniformDice([0.0] * (count + 1), [0.5] * (count + 1)))
    assert run.accepted == 0
    assert p[0][run.tokens[0]] > 0


@given(seed=seeds, count=st.integers(0, 5), vocabulary=st.integers(2, 4))
@examples(60)
def test_a_point_mass_target_is_greedy_whatever_the_noise(seed, count, vocabulary):
    rng = np.random.default_rng(seed)
    draft, choice = rng.integers(0, vocabulary, count).tolist(), rng.integers(0, vocabulary, count + 1).tolist()
    p = [point_mass(t, vocabulary) for t in choice]
    q = [[1 / vocabulary] * vocabulary] * count
    q = [[x / math.fsum(row) for x in row] for row in q]
    dice = UniformDice(rng.random(count + 1), rng.random(count + 1))
    assert rejection(draft, p, q, dice) == greedy.chain(draft, choice)
    assert rejection(draft, p, [point_mass(x, vocabulary) for x in draft], dice) == greedy.chain(draft, choice)


def test_no_draft_is_plain_sampling_on_the_same_noise():
    p = [[0.5, 0.3, 0.2]]
    for u in (0.0, 0.4999, 0.5, 0.79, 0.81):
        dice = UniformDice([], [u])
        assert rejection([], p, [], dice).tokens == naive(chain(0, []), p, dice).tokens == (dice.pick(p[0], 0),)


def test_a_window_depends_on_the_noise_of_its_own_nodes_only():
    p, q = [[0.5, 0.5], [0.5, 0.5], [0.5, 0.5]], [[0.25, 0.75], [0.75, 0.25]]
    run = rejection([1, 0], p, q, UniformDice([math.nan, 0.7, math.nan], [0.2, math.nan, math.nan]))
    assert run == Emitted((0,), (0,))  # 0.7 is above 2/3: rejected, and what is owed is token 0
    run = rejection([1, 0], p, q, UniformDice([math.nan, 0.6, 0.6], [math.nan, math.nan, 0.9]))
    assert run == Emitted((1, 0, 1), (0, 1, 2))


# --- Several drafts ----------------------------------------------------------------------------------------------------


def test_the_longest_prefix_wins_and_the_lowest_row_on_ties():
    choice = [[1, 2, 3], [1, 2, 3], [1, 2, 3]]
    assert drafts.longest([[0, 2], [1, 0], [1, 1]], choice) == (1, Emitted((1, 2), (0, 1)))
    assert drafts.longest([[0, 0], [1, 0], [1, 2]], choice) == (2, Emitted((1, 2, 3), (0, 1, 2)))
    assert drafts.longest([[0, 0], [0, 0], [2, 2]], choice) == (0, Emitted((1,), (0,)))
    assert drafts.longest([[0, 0], [], [1]], [[1, 2, 3], [1], [1, 2]]) == (2, Emitted((1, 2), (0, 1)))


@given(seed=seeds, count=st.integers(1, 5))
@examples(60)
def test_the_longest_row_emits_what_the_trie_of_the_rows_emits(seed, count):
    rng = np.random.default_rng(seed)
    model = rational_model(f"p{seed}", 3)
    table = [rng.integers(0, 3, rng.integers(0, 4)).tolist() for _ in range(count)]
    choices = [[argmax(model(tuple(row[:t]))) for t in range(len(row) + 1)] for row in table]
    row, run = drafts.longest(table, choices)
    merged = drafts.trie(7, table)
    walked = greedy.walk(merged.tree, [choices[m][t] for m, t in merged.places()])
    assert walked.tokens == run.tokens
    assert merged.row(walked.path[-1]) == row
    assert merged.nodes[row][: run.advanced] == walked.path


@given(seed=seeds, count=st.integers(1, 6))
@examples(60)
def test_a_trie_holds_each_prefix_once_and_every_row(seed, count):
    rng = np.random.default_rng(seed)
    table = [rng.integers(0, 3, rng.integers(0, 4)).tolist() for _ in range(count)]
    merged = drafts.trie(7, table)
    prefixes = {tuple(row[:t]) for row in table for t in range(len(row) + 1)}
    assert sorted(merged.tree.drafted(node) for node in range(len(merged.tree))) == sorted(prefixes)
    for draft, nodes in zip(table, merged.nodes, strict=True):
        assert merged.tree.drafted(nodes[-1]) == tuple(draft)
        assert merged.tree.path(nodes[-1]) == nodes


def test_no_row_at_all_is_refused():
    for empty in (lambda: drafts.trie(0, []), lambda: drafts.longest([], [])):
        refused(ParameterError, "there is no draft", empty)
    refused(ShapeMismatch, "1 rows, but there are 2 drafts", drafts.longest, [[1], [2]], [[1, 1]])


def test_runs_of_a_batch_become_what_a_backtracking_path_commits():
    runs = [Emitted((5, 6), (0, 3)), Emitted((), ()), Emitted((1,), (0,))]
    batch = accepted(runs, 4)
    assert batch.advanced.tolist() == [2, 0, 1]
    assert batch.path.tolist() == [[0, 3, -1, -1], [-1] * 4, [0, -1, -1, -1]]
    refused(LengthError, "run 0 advances by 2, but the window holds 1", accepted, runs, 1)
