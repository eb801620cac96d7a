"""Acceptance refuses rows, trees, tokens and choices that are none, by name and before the first coin."""

from fractions import Fraction

import numpy as np
import pytest

from ssmspec_ref.accept import DraftTree, Emitted, UniformDice, greedy, proposals
from ssmspec_ref.accept.draft_tree import chain, unpadded
from ssmspec_ref.accept.multi_step import multi_step
from ssmspec_ref.accept.naive import naive
from ssmspec_ref.accept.rejection import rejection
from ssmspec_ref.accept.sampled import LAWS, sampled
from ssmspec_ref.errors import (
    EmptyWindow,
    LengthError,
    NotTopological,
    ParameterError,
    PrecisionError,
    ProbabilityError,
    ShapeMismatch,
)

from .refusals import refused

GOOD = np.array([[0.5, 0.5], [0.25, 0.75], [1.0, 0.0]])
DICE = UniformDice([0.5] * 3, [0.5] * 3)
TREE = DraftTree((0, 1, 0), (-1, 0, 0))


def spoiled(row, column, value):
    bad = GOOD.copy()
    bad[row, column] = value
    return bad


@pytest.mark.parametrize("value", [np.nan, -0.25, 0.25, np.inf], ids=str)
@pytest.mark.parametrize("row", [0, 1])
def test_a_row_that_is_no_distribution_is_refused_and_nothing_is_written(value, row):
    bad = spoiled(row, 0, value if row == 0 else value / 2 if value == 0.25 else value)
    kept = bad.copy()
    calls = {
        "p of rejection": lambda: rejection([1, 0], bad, GOOD[:2], DICE),
        "q of rejection": lambda: rejection([1, 0], GOOD, bad[:2], DICE),
        "p of multi_step": lambda: multi_step(TREE, bad, proposals.iid(TREE, GOOD), DICE),
        "q of multi_step": lambda: multi_step(TREE, GOOD, [None, bad[row], bad[row]], DICE),
        "q of iid": lambda: proposals.iid(chain(0, [1, 0]), bad),
        "q of without_replacement": lambda: proposals.without_replacement(chain(0, [1, 0]), bad),
        "p of naive": lambda: naive(TREE, bad, DICE),
    }
    for name, call in calls.items():
        with pytest.raises(ProbabilityError, match=r"\[\d\]"):
            pytest.fail(f"{name} returned {call()}")
    assert np.array_equal(bad, kept, equal_nan=True)


def test_the_last_row_is_checked_before_the_first_coin_is_thrown():
    class NoDice:
        def bern(self, p, node):
            raise AssertionError("a coin was thrown")

        pick = bern

    bad = spoiled(2, 1, np.nan)
    refused(ProbabilityError, r"p_target\[2\]\[1\] is nan", rejection, [1, 0], bad, GOOD[:2], NoDice())
    refused(ProbabilityError, r"p_target\[2\]\[1\] is nan", multi_step, TREE, bad, proposals.iid(TREE, GOOD), NoDice())
    refused(ProbabilityError, r"p_target\[2\]\[1\] is nan", naive, TREE, bad, NoDice())


def test_the_name_of_a_law_says_how_a_tree_is_judged_and_another_is_refused():
    """The first sibling has no mass in p. The second, by r / q: 2/3 i.i.d., 1/3 without replacement; 1/2 as a point mass."""
    tree, picks = DraftTree((0, 1, 2), (-1, 0, 0)), [Fraction(9, 10)] * 3
    p, q = ([[Fraction(n, 8) for n in row]] * 3 for row in ((0, 0, 4, 4), (0, 4, 3, 1)))
    turns = {"iid": Fraction(2, 3), "without_replacement": Fraction(1, 3), "point_mass": Fraction(1, 2), "naive": Fraction(0)}
    for law in LAWS:
        for coin in (Fraction(1, 4), Fraction(5, 12), Fraction(7, 12), Fraction(3, 4)):
            run = sampled(tree, law, p, q, UniformDice([Fraction(0), Fraction(1, 2), coin], picks))
            assert (run.path == (0, 2)) == (coin < turns[law])
    refused(
        ParameterError,
        "law is 'drawn'; it must be one of iid, without_replacement, point_mass, naive",
        sampled,
        tree,
        "drawn",
        p,
        q,
        UniformDice(picks, picks),
    )


def test_rows_of_another_number_size_or_type_are_refused():
    refused(ShapeMismatch, "p_target has 2 rows; it must have 3", rejection, [1, 0], GOOD[:2], GOOD[:2], DICE)
    refused(ShapeMismatch, "q_draft has 3 rows; it must have 2", rejection, [1, 0], GOOD, GOOD, DICE)
    refused(
        ShapeMismatch,
        r"q_draft\[0\] holds 3 tokens, but the vocabulary has 2",
        rejection,
        [1],
        GOOD[:2],
        [[0.5, 0.5, 0.0]],
        DICE,
    )
    refused(ShapeMismatch, r"q_draft\[1\]", multi_step, TREE, GOOD, [None, None, GOOD[0]], DICE)
    refused(ShapeMismatch, "q_draft has 2 rows", multi_step, TREE, GOOD, [None, GOOD[0]], DICE)
    refused(ShapeMismatch, r"q_after\[0\] is missing", proposals.iid, TREE, [None, None, None])
    refused(ShapeMismatch, "q_after has 2 rows", proposals.iid, TREE, GOOD[:2])
    refused(ShapeMismatch, "p_target has 2 rows", naive, TREE, GOOD[:2], DICE)
    refused(PrecisionError, "float32", naive, TREE, GOOD.astype(np.float32), DICE)


@pytest.mark.parametrize("token", [-1, 2])
def test_a_token_outside_the_vocabulary_is_refused(token):
    refused(
        ParameterError,
        rf"draft\[1\] is {token}, but the vocabulary has 2 tokens",
        rejection,
        [1, token],
        GOOD,
        GOOD[:2],
        DICE,
    )
    tree = DraftTree((0, 1, token), (-1, 0, 0))
    refused(ParameterError, rf"\[1\] is {token}", multi_step, tree, GOOD, [None, GOOD[0], GOOD[0]], DICE)
    refused(ParameterError, rf"\[1\] is {token}", naive, tree, GOOD, DICE)


@pytest.mark.parametrize("parents", [(0, 0, 1), (-1, 2, 0), (-1, 1, 0), (-1, -1, 0), (-1, 0, 3), (-1, 0, -3)], ids=str)
def test_parents_that_are_no_tree_are_refused(parents):
    refused(NotTopological, "", DraftTree, (0, 1, 1), parents)
    refused(NotTopological, "", greedy.sweep, np.array([[0, 1, 1]]), np.array([parents]), np.array([[0, 1, 1]]))


def test_a_tree_of_another_size_or_with_padding_or_without_a_root_is_refused():
    refused(ShapeMismatch, "give each token a parent", DraftTree, (0, 1), (-1, 0, 0))
    refused(ShapeMismatch, "no padding", DraftTree, (0, 1), (-1, -2))
    refused(EmptyWindow, "", DraftTree, (), ())
    assert unpadded(np.array([4, 5, 0]), np.array([-1, 0, -2])) == chain(4, [5])


def test_choices_of_another_number_or_type_are_refused():
    refused(ShapeMismatch, "choice has 1 tokens, but the window has 2", greedy.chain, [1], [1])
    refused(ShapeMismatch, "choice has 2 tokens, but the window has 3", greedy.walk, TREE, [1, 1])
    refused(ShapeMismatch, "", greedy.sweep, np.array([[0, 1, 1]]), np.array([[-1, 0, 0]]), np.array([[0, 1]]))
    refused(PrecisionError, "", greedy.sweep, np.array([[0, 1]], dtype=np.int32), np.array([[-1, 0]]), np.array([[0, 1]]))


def test_a_run_whose_path_has_another_length_is_refused():
    refused(LengthError, "a run has 2 tokens and a path of 1 nodes", Emitted, (1, 2), (0,))
