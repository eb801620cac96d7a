"""The cut of an emitted run: the first stop wins over the budget, and `advanced` counts what was really emitted."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssmspec_ref.accept import Emitted, Stop, stop
from ssmspec_ref.errors import BudgetError, ParameterError
from tests.families import examples

from .refusals import refused

EOS, STOP = 9, Stop(frozenset({9}), ((7, 8), (5, 5, 5)))


def run_of(tokens):
    return Emitted(tuple(tokens), tuple(range(len(tokens))))


def one_by_one(tokens, output, rule, budget):
    """What plain decoding emits: a token, then the question whether it ends."""
    output, emitted = list(output), []
    for token in tokens:
        if len(emitted) == budget:
            return emitted, "length"
        output.append(token)
        emitted.append(token)
        if token in rule.eos:
            return emitted, "eos"
        for sequence in rule.sequences:
            if len(output) >= len(sequence) and output[len(output) - len(sequence) :] == list(sequence):
                return emitted, "stop"
    return emitted, "length" if len(emitted) == budget else None


def disagreements(cut):
    """The stop at every place of a run, the budget at every place, and stop sequences that begin before the run."""
    runs = [[1, 2, 3, 4, 6]] + [[*[1] * n, EOS, *[2] * (4 - n)] for n in range(5)]
    runs += [[8, 1, 2], [1, 7, 8, 9], [5, 5, 5, 5], [5, 8, EOS], [7, 8, EOS]]
    outputs = [[], [7], [5], [5, 5], [1, 5, 5], [7, 8]]
    wrong = []
    for tokens, output, budget in itertools.product(runs, outputs, range(7)):
        run, finish = cut(run_of(tokens), output, STOP, budget)
        emitted, reason = one_by_one(tokens, output, STOP, budget)
        if (list(run.tokens), finish, run.advanced, run.path) != (emitted, reason, len(emitted), tuple(range(len(emitted)))):
            wrong.append((tokens, output, budget))
    return wrong


def test_a_run_is_cut_where_plain_decoding_stops():
    assert disagreements(stop.cut) == []


tokens = st.lists(st.integers(5, 9), min_size=1, max_size=7)


@given(run=tokens, output=st.lists(st.integers(5, 9), max_size=4), budget=st.integers(0, 9))
@examples(150)
def test_any_run_is_cut_where_plain_decoding_stops(run, output, budget):
    cut, finish = stop.cut(run_of(run), output, STOP, budget)
    assert (list(cut.tokens), finish) == one_by_one(run, output, STOP, budget)


def test_a_stop_on_the_last_token_of_the_budget_is_a_stop():
    assert stop.cut(run_of([10, 11, EOS, 20, 21, 22]), [], STOP, 5) == (run_of([10, 11, EOS]), "eos")
    assert stop.cut(run_of([10, 11, EOS, 20]), [], STOP, 3) == (run_of([10, 11, EOS]), "eos")
    assert stop.cut(run_of([10, 11, EOS, 20]), [], STOP, 2) == (run_of([10, 11]), "length")


def test_a_budget_met_exactly_ends_the_sequence_with_the_run_whole():
    assert stop.cut(run_of([1, 2, 3]), [], STOP, 3) == (run_of([1, 2, 3]), "length")
    assert stop.cut(run_of([1, 2, 3]), [], STOP, 4) == (run_of([1, 2, 3]), None)


def test_a_stop_sequence_may_begin_before_the_window():
    assert stop.cut(run_of([8, 1]), [1, 7], STOP, 9) == (run_of([8]), "stop")
    assert stop.cut(run_of([5, 1]), [5, 5], STOP, 9) == (run_of([5]), "stop")
    assert stop.cut(run_of([1, 2]), [7, 8], STOP, 9) == (run_of([1, 2]), None)  # what lies behind was judged then


def test_a_tree_path_is_cut_with_its_tokens():
    run = Emitted((1, EOS, 3), (0, 2, 5))
    assert stop.cut(run, [], STOP, 9) == (Emitted((1, EOS), (0, 2)), "eos")
    assert stop.cut(run, [], STOP, 0) == (Emitted((), ()), "length")


def budget_first(run, output, rule, budget):
    if budget <= len(run.tokens):
        return run.first(budget), "length"
    return stop.cut(run, output, rule, budget)


def window_only(run, output, rule, budget):
    return stop.cut(run, [], rule, budget)


def last_token_only(run, output, rule, budget):
    ended = rule.ended([*output, *run.tokens])
    return (run, ended) if ended else stop.cut(run, output, Stop(), budget)


def advances_by_the_whole_run(run, output, rule, budget):
    cut, finish = stop.cut(run, output, rule, budget)
    object.__setattr__(cut, "path", run.path)
    return cut, finish


def leaves_the_budget(run, output, rule, budget):
    return stop.cut(run, output, rule, len(run.tokens))


@pytest.mark.parametrize("fault", [budget_first, window_only, last_token_only, advances_by_the_whole_run, leaves_the_budget])
def test_planted_cut_is_caught(fault):
    assert disagreements(fault)


@pytest.mark.parametrize("budget", [-1, -5])
def test_a_negative_budget_is_refused(budget):
    refused(BudgetError, f"the budget is {budget} tokens", stop.cut, run_of([1]), [], STOP, budget)


def test_an_empty_stop_sequence_is_refused():
    refused(ParameterError, "give at least one token", Stop, sequences=((1,), ()))
