"""The logits processors: each against its definition, at every node of a window, and alike for the target and the draft."""

import functools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssmspec_ref.accept import DraftTree, Sampling, draws, multi_step, processors, proposals, rejection
from ssmspec_ref.accept.distribution import distribution, mass, normalised
from ssmspec_ref.accept.draft_tree import chain
from ssmspec_ref.accept.exact_law import law_of_model, law_of_rounds, total_variation
from ssmspec_ref.errors import ParameterError, PrecisionError, ProbabilityError, ShapeMismatch
from tests.families import examples

from .refusals import refused

PENALTIES = Sampling(temperature=0.7, repetition=1.3, presence=0.4, frequency=0.6)
SETTINGS = {
    "plain": Sampling(),
    "greedy": Sampling(temperature=0.0),
    "cold": Sampling(temperature=0.3),
    "top-k": Sampling(top_k=2),
    "top-p": Sampling(temperature=1.4, top_p=0.7),
    "top-k, then top-p": Sampling(temperature=2.0, top_k=3, top_p=0.6),
    "penalties": PENALTIES,
    "min-tokens": Sampling(min_tokens=3, eos=frozenset({0})),
    "all": Sampling(0.8, 3, 0.9, 1.2, 0.3, 0.2, 2, frozenset({1})),
}
each_setting = pytest.mark.parametrize("sampling", SETTINGS.values(), ids=SETTINGS)
seeds = st.integers(0, 10**6)


def literal(logits, prompt, output, s):
    """The definition, one token at a time, with the standard library only."""
    scores = [float(x) for x in logits]
    for i in range(len(scores)):
        if i in prompt or i in output:
            scores[i] = scores[i] / s.repetition if scores[i] > 0 else scores[i] * s.repetition
        for token in output:
            scores[i] -= s.frequency * (token == i)
        scores[i] -= s.presence if i in output else 0.0
        if i in s.eos and len(output) < s.min_tokens:
            scores[i] = -math.inf
    order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
    if s.temperature == 0:
        return [float(i == order[0]) for i in range(len(scores))]
    weights = [math.exp((x - scores[order[0]]) / s.temperature) for x in scores]
    kept = order[: s.top_k or None]
    total, before, nucleus = math.fsum(weights[i] for i in kept), 0.0, []
    for i in kept:
        if before < s.top_p * total or s.top_p == 1:
            nucleus.append(i)
        before += weights[i]
    total = math.fsum(weights[i] for i in nucleus)
    return [weights[i] / total if i in nucleus else 0.0 for i in range(len(scores))]


@each_setting
@given(seed=seeds, size=st.integers(3, 9), seen=st.integers(0, 6))
@examples(40)
def test_the_processed_distribution_is_its_definition(sampling, seed, size, seen):
    rng = np.random.default_rng(seed)
    logits = 3 * rng.standard_normal(size)
    prompt, output = (rng.integers(0, size, n).tolist() for n in (2, seen))
    kept = logits.copy()
    p = processors.process(logits, prompt, output, sampling)
    # A score below 20 is rounded at most 5 times on each side, then divided by T >= 0.3: 2 x 5 x 20 x 2^-53 / 0.3 < 1e-13.
    assert np.max(np.abs(p - literal(logits, prompt, output, sampling))) <= 1e-13
    assert distribution("p", p) == p.tolist()
    assert np.array_equal(logits, kept)


@given(seed=seeds, size=st.integers(1, 9), power=st.integers(-8, 8))
@examples(40)
def test_logits_and_temperature_scaled_alike_give_the_same_bits(seed, size, power):
    logits = np.random.default_rng(seed).standard_normal(size)
    scaled = processors.process(logits * 2.0**power, [], [], Sampling(temperature=0.75 * 2.0**power))
    assert np.array_equal(scaled, processors.process(logits, [], [], Sampling(temperature=0.75)))


def test_temperature_zero_is_the_first_maximum_and_the_limit_of_small_temperatures():
    logits = np.array([1.0, 2.0, 2.0, -np.inf])
    assert processors.process(logits, [], [], Sampling(temperature=0.0)).tolist() == [0, 1, 0, 0]
    assert processors.process(logits, [], [], Sampling(temperature=5e-324)).tolist() == [0, 0.5, 0.5, 0]
    assert processors.process(logits, [], [], Sampling(temperature=0.0, top_k=3, top_p=0.5)).tolist() == [0, 1, 0, 0]


def test_exactly_k_tokens_survive_top_k_and_ties_go_to_the_lowest():
    tied = [Fraction(1, 4)] * 4
    assert processors.top_k(tied, 3) == [Fraction(1, 3)] * 3 + [0]
    assert processors.top_k([0.25, 0.25, 0.5], 2) == [1 / 3, 0.0, 2 / 3]
    assert processors.top_k(tied, 9) == tied
    assert processors.process(np.zeros(4), [], [], Sampling(top_k=1)).tolist() == [1, 0, 0, 0]  # greedy, also on ties


@given(seed=seeds, size=st.integers(1, 7), tenths=st.integers(1, 10))
@examples(60)
def test_top_p_keeps_the_fewest_tokens_that_reach_the_share(seed, size, tenths):
    weights = np.random.default_rng(seed).integers(0, 6, size)
    weights[seed % size] += 1
    p = [Fraction(int(w), int(weights.sum())) for w in weights]
    share = Fraction(tenths, 10)
    kept = [i for i, x in enumerate(processors.top_p(p, share)) if x > 0]
    assert sum(p[i] for i in kept) >= share
    assert sum(p[i] for i in kept) - min(p[i] for i in kept) < share
    assert all(p[i] >= p[j] for i in kept for j in range(size) if j not in kept)
    assert processors.top_p(p, share) == normalised([x if i in kept else 0 * x for i, x in enumerate(p)])


def test_top_p_one_keeps_the_smallest_probability():
    p = [1 - 2.0**-53, 2.0**-53, 2.0**-60]  # a running sum would be 1 before the last token
    assert processors.top_p(p, 1.0) == p
    assert processors.top_p([Fraction(1, 2), Fraction(3, 10), Fraction(1, 5)], Fraction(4, 5)) == [
        Fraction(5, 8),
        Fraction(3, 8),
        0,
    ]


def test_a_masked_token_has_probability_exactly_zero():
    logits = np.array([50.0, -np.inf, 0.0, 1.0])
    for sampling in (Sampling(), PENALTIES, Sampling(min_tokens=1, eos=frozenset({0}))):
        p = processors.process(logits, [1], [] if sampling.min_tokens else [1], sampling)
        assert p[1] == 0.0
        assert not sampling.min_tokens or p[0] == 0.0


# --- Windows -----------------------------------------------------------------------------------------------------------

TREE = DraftTree((3, 1, 1, 0, 1, 2), (-1, 0, 1, 2, 0, 4))  # drafts that repeat a token, and a branch beside them
PROMPT, OUTPUT = [2, 2], [1, 3]  # the root, 3, is the last token of the output


def window_logits():
    return np.random.default_rng(3).standard_normal((6, 4))


@each_setting
def test_every_node_is_processed_as_plain_decoding_would_after_its_path(sampling):
    logits = window_logits()
    rows = processors.process_window(logits, TREE, PROMPT, OUTPUT, sampling)
    serial = {0: [], 1: [1], 2: [1, 1], 3: [1, 1, 0], 4: [1], 5: [1, 2]}
    for node, path in serial.items():
        assert np.array_equal(rows[node], processors.process(logits[node], PROMPT, OUTPUT + path, sampling))


FAULTS = {
    "drafts do not count": lambda i: OUTPUT,
    "only the last draft counts": lambda i: OUTPUT + list(TREE.drafted(i)[-1:]),
    "the root counts twice": lambda i: [*OUTPUT, 3, *TREE.drafted(i)],
    "the whole window counts": lambda i: [*OUTPUT, *TREE.tokens[1:]],
    "the nodes before count": lambda i: [*OUTPUT, *TREE.tokens[1 : i + 1]],
    "the path without its end counts": lambda i: OUTPUT + list(TREE.drafted(i)[:-1]),
}


@pytest.mark.parametrize("counted", FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("sampling", [PENALTIES, Sampling(frequency=0.5)], ids=["all", "frequency"])
def test_planted_count_of_the_wrong_tokens_is_caught(counted, sampling):
    rows = processors.process_window(window_logits(), TREE, PROMPT, OUTPUT, sampling)
    wrong = [processors.process(row, PROMPT, counted(i), sampling) for i, row in enumerate(window_logits())]
    assert max(np.max(np.abs(a - b)) for a, b in zip(rows, wrong, strict=True)) > 1e-3


def test_the_end_of_sequence_opens_inside_a_window_where_the_minimum_is_met():
    sampling = Sampling(min_tokens=4, eos=frozenset({0, 2}))
    rows = processors.process_window(window_logits(), TREE, PROMPT, OUTPUT, sampling)
    for node, row in enumerate(rows):
        masked = len(OUTPUT) + len(TREE.drafted(node)) < 4
        assert (row[0] == 0) == (row[2] == 0) == masked


# --- Alike on both sides -----------------------------------------------------------------------------------------------


def models(sampling):
    """A target and a draft whose logits depend on the last token, processed as fractions of what the floats are."""

    def model(seed):
        table = 2 * np.random.default_rng(seed).standard_normal((4, 3))

        @functools.cache
        def after(context):
            p = processors.process(table[context[-1] if context else 3], [2], context, sampling)
            return normalised([Fraction(x) for x in p.tolist()])

        return after

    return model(1), model(2)


def chain_round(p, q, p_row=None):
    def one_round(context, dice):
        draft, laws = draws.grow_chain(q, context, 2, dice)
        rows = [(p_row or (lambda begun, drafted: p((*begun, *drafted))))(context, tuple(draft[:t])) for t in range(3)]
        return rejection.rejection(draft, rows, laws, dice).tokens

    return one_round


@each_setting
def test_speculation_under_processed_laws_emits_what_plain_decoding_emits(sampling):
    p, q = models(sampling)
    assert law_of_rounds(chain_round(p, q), 3) == law_of_model(p, 3)


@each_setting
def test_a_tree_under_processed_laws_emits_what_plain_decoding_emits(sampling):
    p, q = models(sampling)

    def one_round(context, dice):
        tree, q_after = draws.grow_tree(q, context, (2, 1), draws.without_replacement, dice)
        laws = proposals.without_replacement(tree, q_after)
        return multi_step.multi_step(tree, draws.after_nodes(p, context, tree), laws, dice).tokens

    assert law_of_rounds(one_round, 2) == law_of_model(p, 2)


def test_planted_target_that_ignores_the_drafts_of_the_window_is_caught():
    table = 2 * np.random.default_rng(1).standard_normal((4, 3))
    p, q = models(PENALTIES)

    def stale(context, drafted):
        last = (*context, *drafted)[-1] if context or drafted else 3
        return normalised([Fraction(x) for x in processors.process(table[last], [2], context, PENALTIES).tolist()])

    assert total_variation(law_of_rounds(chain_round(p, q, stale), 3), law_of_model(p, 3)) > Fraction(1, 100)


def test_planted_target_without_the_settings_is_caught():
    for name in ("cold", "top-k", "top-p", "penalties", "min-tokens"):
        (p, q), (raw, _) = models(SETTINGS[name]), models(Sampling())
        wrong = chain_round(p, q, lambda context, drafted, raw=raw: raw((*context, *drafted)))
        assert total_variation(law_of_rounds(wrong, 2), law_of_model(p, 2)) > Fraction(1, 100), name


# --- Bad input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("temperature", x) for x in (-0.1, math.nan, math.inf)),
        *(("top_p", x) for x in (0.0, -0.5, 1.5, math.nan)),
        ("top_k", -1),
        *(("repetition", x) for x in (0.0, -1.0, math.nan, math.inf)),
        *((name, x) for name in ("presence", "frequency") for x in (math.nan, math.inf)),
        ("min_tokens", -1),
    ],
)
def test_a_setting_outside_its_domain_is_refused(name, value):
    refused(ParameterError, f"{name} is {value}; it must be", Sampling, **{name: value})


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_no_logits_are_refused_and_nothing_is_written(bad):
    logits = np.array([0.0, bad, 1.0])
    kept = logits.copy()
    refused(ProbabilityError, "must be finite, or -inf", processors.process, logits, [], [], Sampling())
    refused(
        ProbabilityError,
        "must be finite, or -inf",
        processors.process_window,
        np.array([[0.0, 0.0, 0.0], logits]),
        chain(0, [1]),
        [],
        [0],
        Sampling(temperature=0.0),
    )
    assert np.array_equal(logits, kept, equal_nan=True)


def test_a_row_without_any_token_left_is_refused():
    refused(
        ProbabilityError,
        "all 2 tokens are masked",
        processors.process,
        np.zeros(2),
        [],
        [],
        Sampling(min_tokens=1, eos=frozenset({0, 1})),
    )
    refused(
        ProbabilityError,
        "all 2 tokens are masked",
        processors.process,
        np.full(2, -np.inf),
        [],
        [],
        Sampling(temperature=0.0),
    )


def test_tokens_rows_and_types_outside_the_contract_are_refused():
    for where in ({"prompt": [4], "output": []}, {"prompt": [], "output": [-1]}):
        refused(ParameterError, "the vocabulary has 4 tokens", processors.process, np.zeros(4), sampling=Sampling(), **where)
    refused(ParameterError, "eos", processors.process, np.zeros(4), [], [], Sampling(eos=frozenset({7})))
    refused(
        ShapeMismatch,
        "logits have 2 rows, but the window has 3 nodes",
        processors.process_window,
        np.zeros((2, 4)),
        chain(0, [1, 2]),
        [],
        [0],
        Sampling(),
    )
    refused(PrecisionError, "", processors.process, np.zeros(4, dtype=np.float32), [], [], Sampling())
    refused(ParameterError, "top_k is 0", processors.top_k, [0.5, 0.5], 0)
    refused(ParameterError, "top_p is nan", processors.top_p, [0.5, 0.5], math.nan)
    refused(ProbabilityError, "", processors.top_p, [0.5, math.nan], 0.5)


def test_what_the_filters_leave_is_a_distribution_again():
    p = [Fraction(1, 2), Fraction(3, 10), Fraction(1, 5)]
    assert mass(processors.top_k(p, 2)) == mass(processors.top_p(p, Fraction(3, 5))) == 1


def test_min_p_keeps_what_has_a_share_of_the_largest_and_divides_again() -> None:
    p = [0.5, 0.3, 0.15, 0.05]
    assert processors.min_p(p, 0) == p
    assert processors.min_p(p, 0.3) == pytest.approx([0.5 / 0.95, 0.3 / 0.95, 0.15 / 0.95, 0])
    assert processors.min_p(p, 1) == [1, 0, 0, 0]
    refused(ParameterError, r"min_p is 1\.5", processors.Sampling, min_p=1.5)


def test_min_p_after_top_p_acts_on_what_is_left() -> None:
    logits = np.log(np.array([0.4, 0.3, 0.2, 0.1]))
    one = processors.process(logits, [], [], processors.Sampling(top_p=0.65, min_p=0.7))
    assert one == pytest.approx([4 / 7, 3 / 7, 0, 0])


def test_each_row_has_its_own_settings() -> None:
    ones, counts = np.ones(2), np.zeros(2, dtype=np.int64)
    rows = processors.RowSettings(np.array([1.0, 0.0]), counts, ones, np.array([0.0, 0.5]), ones, 0 * ones, 0 * ones, counts)
    assert rows.of(0, frozenset()) == processors.Sampling()
    assert rows.of(1, frozenset((3,))) == processors.Sampling(temperature=0, min_p=0.5, eos=frozenset((3,)))
