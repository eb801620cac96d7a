"""What the chooser drafts follows from its table and from what was accepted; tokens do not depend on it."""

from typing import Any

import pytest

from conformance.suite.graph.tape import TapeRecorder
from ssmspec_fast.draft.model import ModelDrafter
from ssmspec_fast.draft.ngram import NGram, PromptLookup
from ssmspec_fast.draft.shapes import chain
from ssmspec_fast.engine.chooser import Budgeted, Chooser, Costs, measured
from ssmspec_fast.engine.loop import Engine
from ssmspec_fast.engine.requests import Settings
from ssmspec_fast.methods.activation_replay import ActivationReplay
from ssmspec_fast.operations import torch_attention
from ssmspec_fast.operations.torch_ops import TorchOperations
from ssmspec_ref.cost import traffic
from ssmspec_ref.errors import ParameterError

from .models import drawn, prompts

CHEAP = Costs({1: {1: 100.0, 5: 110.0}, 4: {1: 100.0, 3: 150.0, 5: 400.0}})


def learned(accepts: int, offered: int = 4, rounds: int = 300, costs: Costs = CHEAP) -> Chooser:
    """After many windows that accept so many of their drafts."""
    chooser = Chooser(costs, 4)
    for _ in range(rounds):
        chooser.learn(offered, [1 + accepts])
    return chooser


@pytest.mark.parametrize(("accepts", "alone", "four"), [(0, 0, 0), (2, 2, 2), (4, 4, 2)])
def test_it_takes_the_budget_of_the_highest_throughput(accepts: int, alone: int, four: int) -> None:
    """As the oracle's choice over the same costs, at the emitted tokens that were learned."""
    chooser = learned(accepts)
    for batch, wanted in ((1, alone), (4, four)):
        plans = [traffic.Plan(1, k, chooser.tau(k), CHEAP(batch, 1 + k)) for k in range(5)]
        assert chooser.choose(batch) == wanted == traffic.best_plan(batch, plans).tokens


def test_tau_is_what_windows_emitted() -> None:
    """Windows that accept 0 and 3 of 4 drafts in turn emit 2.5 tokens."""
    chooser = Chooser(CHEAP, 4, fade=0.0)
    for _ in range(4000):
        chooser.learn(4, [1, 4])
    assert chooser.tau(4) == pytest.approx(2.5, abs=2e-3)


def test_it_falls_back_to_plain_decoding_and_asks_again() -> None:
    chooser = learned(0)
    chosen = [chooser.choose(1) for _ in range(2 * chooser.patience)]
    assert [n for n, k in enumerate(chosen, 1) if k] == [chooser.patience, 2 * chooser.patience]
    for _ in range(300):
        chooser.learn(4, [5])
    assert chooser.choose(1) == 4


def test_a_gain_within_the_margin_is_none() -> None:
    costs = Costs({1: {1: 100.0, 2: 199.0}})
    chooser = Chooser(costs, 1, margin=0.02)
    chooser.learn(1, [2] * 999)
    assert chooser.tau(1) / costs(1, 2) > 1 / costs(1, 1)
    assert chooser.choose(1) == 0


def test_a_planted_chooser_that_forgets_the_cost_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Costs, "__call__", lambda self, batch, tokens: 100.0)
    assert learned(4).choose(4) != 2


@pytest.mark.parametrize("recorder", [lambda: None, TapeRecorder], ids=["eager", "recorded"])
def test_tokens_are_those_of_plain_decoding(recorder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table makes drafting pay at batches of 1 and not of 4: windows of both kinds are decoded."""
    monkeypatch.setattr(torch_attention, "reach", lambda committed, capacity: capacity)
    model, given, settings = drawn("mamba2"), [*prompts(1, (3, 7, 2, 5))], Settings(24)
    options: dict[str, Any] = {"slots": 4, "cache": 48, "operations": TorchOperations()}
    wanted = [r.tokens for r in Engine(model, **options).generate(given, settings)]
    costs = Costs({1: {1: 100.0, 4: 101.0}, 4: {1: 100.0, 4: 900.0}})
    drafter = Budgeted(NGram(3), Chooser(costs, 3))
    engine = Engine(model, drafter, ActivationReplay(), graphs=recorder(), **options)
    chosen = []
    whole = drafter.choose_shape
    monkeypatch.setattr(drafter, "choose_shape", lambda rows: chosen.append((rows, whole(rows))) or chosen[-1][1])
    assert [r.tokens for r in engine.generate(given, settings)] == wanted
    assert [r.tokens for r in engine.generate(given[:1], settings)] == wanted[:1]
    assert any(k for rows, k in chosen if rows == 1)
    assert not all(k for rows, k in chosen if rows > 1)


def test_the_committed_table_is_read() -> None:
    costs = measured("mamba2-2.7b", "replay")
    assert Chooser(costs, 6).choose(1) == 6
    assert costs(1, 1) < costs(1, 6) < costs(1, 7)
    with pytest.raises(ParameterError, match="no costs of mamba2-1b with replay"):
        measured("mamba2-1b", "replay")


def test_wrong_tables_and_drafters_are_refused() -> None:
    for table in ({}, {1: {2: 1.0}}, {1: {1: 0.0}}, {0: {1: 1.0}}):
        with pytest.raises(ParameterError):
            Costs(table)
    with pytest.raises(ParameterError, match="the table ends at batches of 4, and this batch has 5"):
        CHEAP(5, 1)
    with pytest.raises(ParameterError, match="but not of 6"):
        CHEAP(1, 6)
    for wrong in (
        {"most": 0},
        {"most": 5},
        {"most": 4, "margin": 1.0},
        {"most": 4, "patience": 0},
        {"most": 4, "prior": 2.0},
    ):
        with pytest.raises(ParameterError):
            Chooser(CHEAP, **wrong)  # type: ignore[arg-type]
    model = ModelDrafter(drawn("mamba"), chain(4), slots=1, cache=9)
    for drafter in (PromptLookup(3), NGram(4, 2), NGram(2, 2, trees=True), model):
        with pytest.raises(ParameterError, match="must draft chains of 4"):
            Budgeted(drafter, Chooser(CHEAP, 4))
