"""The map from noise to decisions: its edges, its layout by node, and the two ways to draw without replacement."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssmspec_ref.accept import EnumeratingDice, GeneratorDice, GumbelDice, UniformDice, draws
from ssmspec_ref.accept import dice as dice_module
from ssmspec_ref.accept.dice import coin, inverse_cdf, race
from ssmspec_ref.accept.distribution import acceptance, distribution, residual, without
from ssmspec_ref.accept.exact_law import exact_law, rational_model
from ssmspec_ref.accept.rejection import rejection
from ssmspec_ref.errors import ParameterError, PrecisionError, ProbabilityError, ShapeMismatch
from tests.families import examples

from .refusals import refused

LAST = 1 - 2.0**-24  # the largest uniform that a float32 generator gives
WITNESS = [0.5, 0.3, 0.2]


def test_a_coin_of_probability_zero_is_never_yes_and_of_one_always():
    for u in (0.0, 2.0**-53, 0.5, LAST, 1 - 2.0**-53):
        assert not coin(0.0, u)
        assert coin(1.0, u)


def test_a_coin_turns_exactly_at_its_probability():
    for p in (0.3, 2.0**-30, LAST):
        assert coin(p, math.nextafter(p, 0))
        assert not coin(p, p)


@pytest.mark.parametrize("u", [0.0, 0.25, LAST, 1 - 2.0**-53])
def test_a_token_without_weight_is_never_picked(u):
    for weights in ([0, 0.25, 0, 0.75, 0], [0.0, 1.0], [1.0, 0.0], [0.1] * 10 + [0.0]):
        assert weights[inverse_cdf(weights, u)] > 0


def test_a_pick_at_the_ends_is_the_first_and_the_last_token_with_weight():
    assert inverse_cdf([0.0, 0.5, 0.5, 0.0], 0.0) == 1
    assert inverse_cdf([0.0, 0.5, 0.5, 0.0], LAST) == 2
    short = [0.1] * 10  # its running sum ends at 1 - 2^-53
    assert inverse_cdf(short, 1 - 2.0**-53) == 9


def test_a_pick_turns_exactly_at_each_boundary():
    weights = [0.25, 0.0, 0.5, 0.125, 0.125]
    for token, boundary in ((0, 0.25), (2, 0.75), (3, 0.875)):
        assert inverse_cdf(weights, math.nextafter(boundary, 0)) == token
        assert inverse_cdf(weights, boundary) > token


def test_planted_inclusive_comparison_is_caught_at_the_lower_edge(monkeypatch):
    excluded = lambda: rejection([0], [[0.0, 1.0]] * 2, [[1.0, 0.0]], UniformDice([0.0] * 2, [0.0] * 2)).tokens  # noqa: E731
    assert excluded() == (1,)
    monkeypatch.setattr(dice_module, "coin", lambda p, u: u <= p)
    assert excluded() == (0, 1)  # a token that the target excludes


def test_given_uniforms_are_read_by_node_in_any_order():
    dice = UniformDice([0.9, 0.1, 0.9], [0.1, 0.9, 0.6])
    assert [dice.bern(0.5, node) for node in (2, 1, 0, 1)] == [False, True, False, True]
    assert [dice.pick(WITNESS, node) for node in (1, 0, 2, 0)] == [2, 0, 1, 0]


@pytest.mark.parametrize("u", [-0.1, 1.0, math.nan, math.inf])
def test_a_uniform_outside_its_interval_is_refused(u):
    refused(ParameterError, r"coins\[0\] is .* it must lie in \[0, 1\)", UniformDice([u], []).bern, 0.5, 0)
    refused(ParameterError, r"picks\[0\] is", UniformDice([], [u]).pick, WITNESS, 0)


def test_a_node_without_noise_is_refused():
    for node in (-1, 2):
        refused(
            ParameterError,
            f"coins holds noise for 2 nodes, but node {node} draws",
            UniformDice([0.5, 0.5], []).bern,
            0.5,
            node,
        )
    refused(ParameterError, "gumbel holds noise for 0 nodes", GumbelDice([], []).pick, WITNESS, 0)


@pytest.mark.parametrize("noise", [[0.0, 0.0], [0.0, math.nan, 0.0], [0.0, math.inf, 0.0]])
def test_gumbel_noise_that_is_not_one_finite_number_a_token_is_refused(noise):
    refused(ParameterError, "must hold 3 finite numbers", GumbelDice([], [noise]).pick, WITNESS, 0)


def test_a_race_never_starts_a_token_without_weight_and_breaks_ties_by_index():
    assert race([0.0, 0.5, 0.5], [100.0, 0.0, 0.0]) == [1, 2]
    assert GumbelDice([0.4], [[0.0] * 4]).pick([0.25] * 4, 0) == 0
    assert GumbelDice([0.4], []).bern(0.5, 0)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([0.5, math.nan, 0.5], "is nan"),
        ([1.5, -0.5], "is -0.5"),
        ([math.inf, 0.0], "sums to inf"),
        ([0.5, 0.25], "sums to 0.75; it must sum to 1 within"),
        ([Fraction(1, 2), Fraction(1, 3)], "sums to 5/6; it must sum to exactly 1"),
        ([0, 0], "sums to 0; it must sum to exactly 1"),
        ([Fraction(1, 2), Fraction(1, 2) + Fraction(1, 10**30)], "it must sum to exactly 1"),
        ([], "is empty"),
    ],
)
def test_a_row_that_is_no_distribution_is_refused_by_every_dice(row, message):
    dice = [GeneratorDice(np.random.default_rng(0)), UniformDice([0.5], [0.5]), GumbelDice([0.5], [[0.0] * len(row)])]
    for each in [*dice, EnumeratingDice()]:
        refused(ProbabilityError, message, each.pick, row, 0)
    if row and isinstance(row[0], float):
        refused(ProbabilityError, message, distribution, "p", np.array(row))


@pytest.mark.parametrize("p", [-0.1, 1.1, math.nan])
def test_a_coin_that_is_no_probability_is_refused_by_every_dice(p):
    for each in (GeneratorDice(np.random.default_rng(0)), UniformDice([0.5], []), GumbelDice([0.5], []), EnumeratingDice()):
        refused(ProbabilityError, "the probability of a coin is", each.bern, p, 0)


def test_a_row_of_another_type_or_shape_is_refused():
    refused(PrecisionError, "is float32; it must be float64", distribution, "p", np.array([0.5, 0.5], dtype=np.float32))
    refused(PrecisionError, r"p\[1\] is str", distribution, "p", [0.5, "0.5"])
    refused(ShapeMismatch, r"has shape \(1, 2\)", distribution, "p", np.array([[0.5, 0.5]]))


@given(size=st.integers(1, 4000), seed=st.integers(0, 10**6), spread=st.sampled_from([0.0, 1.0, 30.0]))
@examples(25)
def test_a_row_divided_by_its_sum_in_any_order_is_a_distribution_and_one_further_off_is_not(size, seed, spread):
    rng = np.random.default_rng(seed)
    weights = np.exp(spread * rng.standard_normal(size))
    one_by_one = 0.0
    for w in weights[rng.permutation(size)]:
        one_by_one += w
    for total in (one_by_one, weights.sum()):
        assert np.array_equal(distribution("p", weights / total), weights / total)
    row = weights / weights.sum()
    row[row.argmax()] += (size + 2) * 2.0**-52
    refused(ProbabilityError, "", distribution, "p", row)


def test_the_generator_dice_is_the_uniform_dice_on_the_same_uniforms():
    u = np.random.default_rng(7).random(40)
    given_noise, generated = UniformDice(u, u), GeneratorDice(np.random.default_rng(7))
    p = rational_model("p", 5)
    for node in range(0, 40, 2):
        row = [float(x) for x in p((node,))]
        row = [x / math.fsum(row) for x in row]
        assert generated.bern(row[0], node) == given_noise.bern(row[0], node)
        assert generated.pick(row, node + 1) == given_noise.pick(row, node + 1)


def test_the_residual_has_the_mass_that_the_target_is_owed_and_falls_back_to_the_target():
    p, q = [Fraction(1, 2), Fraction(1, 4), Fraction(1, 4)], [Fraction(1, 4), Fraction(3, 4), Fraction(0)]
    assert residual(p, q) == [Fraction(1, 2), 0, Fraction(1, 2)]
    assert residual(p, p) == p
    assert residual([1.0, 0.0], [1.0, 0.0]) == [1.0, 0.0]
    assert without(p, 0) == [0, Fraction(1, 2), Fraction(1, 2)]
    assert without([Fraction(1), Fraction(0)], 0) == [1, 0]


def test_the_acceptance_probability_does_not_overflow():
    assert acceptance(0.5, 5e-324) == 1
    assert acceptance(0.0, 5e-324) == 0.0
    assert acceptance(np.float64(0.25), np.float64(0.5)) == 0.5


# --- Drawing -----------------------------------------------------------------------------------------------------------


def test_drawing_without_replacement_has_the_law_of_its_conditionals():
    q = [Fraction(1, 2), Fraction(3, 10), Fraction(1, 5)]
    law = exact_law(lambda dice: tuple(draws.without_replacement(q, 2, dice)))
    assert law == {(i, j): q[i] * q[j] / (1 - q[i]) for i in range(3) for j in range(3) if i != j}


def test_each_child_is_drawn_with_the_noise_of_its_own_node():
    dice = UniformDice([], [math.nan, math.nan, math.nan, 0.9, 0.1])
    assert draws.iid(WITNESS, 2, dice, first=3) == [2, 0]
    assert draws.without_replacement(WITNESS, 2, dice, first=3) == [2, 0]
    assert draws.grow_chain(lambda context: WITNESS, (), 2, UniformDice([], [math.nan, 0.6, 0.9]))[0] == [1, 2]


def test_drawing_more_children_than_tokens_with_mass_gives_them_all_once():
    q = [0.5, 0.0, 0.5]
    assert sorted(draws.without_replacement(q, 5, GeneratorDice(np.random.default_rng(0)))) == [0, 2]
    assert draws.gumbel_top_k(q, 5, [0.0, 9.0, 1.0]) == [2, 0]
    assert draws.top_k(q, 5) == [0, 2]
    assert draws.top_k([0.2, 0.3, 0.3, 0.2], 3) == [1, 2, 0]


def distance_in_frequency(draw, samples, law):
    counts = dict.fromkeys(law, 0)
    for seed_row in samples:
        counts[tuple(draw(seed_row))] += 1
    return max(abs(counts[order] / len(samples) - float(law[order])) for order in law)


def test_the_first_arrivals_of_a_gumbel_race_are_draws_without_replacement_in_order():
    q = [0.5, 0.3, 0.2]
    exact = [Fraction(5, 10), Fraction(3, 10), Fraction(2, 10)]
    law = exact_law(lambda dice: tuple(draws.without_replacement(exact, 2, dice)))
    gumbel = np.random.default_rng(20).gumbel(size=(20000, 3))
    # Hoeffding for each of 6 orders, all within the bound but with probability 1e-9.
    bound = math.sqrt(math.log(2 * 6 / 1e-9) / (2 * len(gumbel)))
    assert distance_in_frequency(lambda g: draws.gumbel_top_k(q, 2, g), gumbel, law) <= bound
    # The winners sorted by probability are another law: the test would have seen it.
    assert distance_in_frequency(lambda g: sorted(draws.gumbel_top_k(q, 2, g)), gumbel, law) > bound


def test_a_negative_number_of_children_is_refused():
    dice = GeneratorDice(np.random.default_rng(0))
    for draw in (draws.iid, draws.without_replacement):
        refused(ParameterError, "count is -1", draw, WITNESS, -1, dice)
    refused(ParameterError, "count is -1", draws.top_k, WITNESS, -1)
    refused(ParameterError, "count is -1", draws.gumbel_top_k, WITNESS, -1, [0.0] * 3)
