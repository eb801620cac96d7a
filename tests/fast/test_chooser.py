"""What the chooser drafts follows from the times of steps and from what was accepted; tokens do not depend on it."""

from collections.abc import Callable
from functools import cache
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from conformance.suite.graph.tape import TapeRecorder
from ssmspec_fast.accept.greedy import Greedy
from ssmspec_fast.accept.multi_step import MultiStep
from ssmspec_fast.accept.naive import Naive
from ssmspec_fast.accept.rejection import Rejection
from ssmspec_fast.draft import Drafter
from ssmspec_fast.draft.bandit import BanditDrafter
from ssmspec_fast.draft.beam import BeamDrafter
from ssmspec_fast.draft.chooser import CATCH_UP, Chooser, Chosen, chosen
from ssmspec_fast.draft.costs import Costs, Step, StepTimes, measured
from ssmspec_fast.draft.model import ModelDrafter
from ssmspec_fast.draft.ngram import NGram, PromptLookup
from ssmspec_fast.draft.several import Several
from ssmspec_fast.draft.shapes import branches, chain
from ssmspec_fast.engine.loop import Engine
from ssmspec_fast.engine.requests import Settings
from ssmspec_fast.engine.sampling import Sampling
from ssmspec_fast.engine.window import Proposal
from ssmspec_fast.methods import Method
from ssmspec_fast.methods.activation_replay import ActivationReplay
from ssmspec_fast.methods.joint import Joint
from ssmspec_fast.methods.replay_buffer import ReplayBuffer
from ssmspec_fast.methods.snapshots import Snapshots
from ssmspec_fast.methods.tree import Tree
from ssmspec_fast.operations import torch_attention
from ssmspec_fast.operations.torch_ops import TorchOperations
from ssmspec_ref.cost import traffic
from ssmspec_ref.errors import ParameterError, Unsupported

from .drafters import Skilled
from .models import drawn, prompts
from .runs import emitted, engine

CHEAP = Costs({1: {1: 100.0, 5: 110.0}, 4: {1: 100.0, 3: 150.0, 5: 400.0}})


def learned(accepts: int, offered: int = 4, rounds: int = 300, costs: Costs = CHEAP, rows: int = 1) -> Chooser:
    """After many windows that accept so many of their drafts; nothing is tried beside what is best."""
    chooser = Chooser(costs, 4, share=0.0)
    for _ in range(rounds):
        chooser.learn(offered, dict.fromkeys(range(rows), 1 + accepts))
    return chooser


def tau(chooser: Chooser, drafts: int) -> float:
    return chooser.rows[0].taus[drafts]


@pytest.mark.parametrize(("accepts", "alone", "four"), [(0, 0, 0), (2, 2, 2), (4, 4, 2)])
def test_it_takes_the_budget_of_the_highest_throughput(accepts: int, alone: int, four: int) -> None:
    """As the oracle's choice over the same costs, at the emitted tokens that were learned."""
    chooser = learned(accepts)
    for batch, wanted in ((1, alone), (4, four)):
        plans = [traffic.Plan(1, k, tau(chooser, k), CHEAP(batch, 1 + k)) for k in range(5)]
        assert chooser.choose(batch) == wanted == traffic.best_plan(batch, plans).tokens


def test_tau_is_what_windows_emitted() -> None:
    """Windows that accept 0 and 3 of 4 drafts in turn emit 2.5 tokens."""
    chooser = Chooser(CHEAP, 4, fade=0.0)
    for _ in range(4000):
        chooser.learn(4, {0: 1})
        chooser.learn(4, {0: 4})
    assert tau(chooser, 4) == pytest.approx(2.5, abs=2e-3)


def test_each_row_counts_by_what_it_accepts() -> None:
    """Three rows that accept nothing outweigh one that accepts everything, unless a window costs little."""
    dear, cheap = (Costs({4: {1: 100.0, 5: us}}) for us in (250.0, 110.0))
    for costs, wanted in ((dear, 0), (cheap, 4)):
        chooser = Chooser(costs, 4, share=0.0)
        for _ in range(300):
            chooser.learn(4, {0: 5, 1: 1, 2: 1, 3: 1})
        assert chooser.choose(4) == wanted
    chooser = Chooser(dear, 4, share=0.0)
    for _ in range(300):
        chooser.learn(4, {0: 5, 1: 1, 2: 1, 3: 1}, ended=(1, 2, 3))
    assert chooser.choose(1) == 4, "rows that have ended still count"


def test_it_falls_back_to_plain_decoding_and_asks_again() -> None:
    """What asking loses is at most its share of the time; when drafts are accepted again, they are drafted again."""
    chooser, asked = learned(0), 0
    chooser.share, spent, lost = 0.01, 0.0, 0.0
    for _ in range(3000):
        drafts = stepped(chooser, lambda drafts: 1)
        asked += drafts > 0
        spent, lost = spent + CHEAP(1, 1 + drafts), lost + (CHEAP(1, 1 + drafts) - CHEAP(1, 1))
    assert asked > 100
    assert 0.005 < lost / spent <= 0.01
    for _ in range(300):
        stepped(chooser, lambda drafts: 1 + drafts)
    assert chooser.choose(1) == 4


def stepped(chooser: Chooser, emit: Callable[[int], int]) -> int:
    """A step whose result is read at once; the drafts."""
    drafts = chooser.choose(1)
    emitted = {0: emit(drafts)}
    chooser.paid(chooser.costs(1, 1 + drafts), emitted.values())
    chooser.learn(drafts, emitted)
    return drafts


def test_a_gain_within_the_margin_is_none() -> None:
    costs = Costs({1: {1: 100.0, 2: 199.0}})
    chooser = Chooser(costs, 1, margin=0.02, share=0.0)
    for _ in range(999):
        chooser.learn(1, {0: 2})
    assert tau(chooser, 1) / costs(1, 2) > 1 / costs(1, 1)
    assert chooser.choose(1) == 0


def test_a_planted_chooser_that_forgets_the_cost_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Costs, "__call__", lambda self, batch, tokens: 100.0)
    assert learned(4).choose(4) != 2


class Timed:
    """A clock that an engine's steps move on, by the tokens of their windows."""

    def __init__(self, us: Callable[[int], float]) -> None:
        self.us, self.seconds, self.windows = us, 0.0, list[int]()

    def __call__(self) -> float:
        return self.seconds

    def spend(self, tokens: int) -> None:
        self.windows.append(tokens)
        self.seconds += 1e-6 * self.us(tokens)

    def engine(self, drafter: Drafter | None, method: Method | None = None, **options: Any) -> Engine:
        clock = self

        class Stepping(Engine):
            def judge(self, proposal: Proposal, sequences: Any) -> Any:
                if bool((proposal.window.slots >= 0).any()):
                    clock.spend(proposal.window.tokens.shape[1])
                return super().judge(proposal, sequences)

        return Stepping(drawn("mamba2"), drafter, method, operations=TorchOperations(), **options)


TOKENS, WINDOW = 200, 5
CHEAP_US, DEAR_US = (lambda n: 100.0 + 3 * n), (lambda n: 100.0 * n)
"""A step whose window costs little, and one that costs as much as its tokens one by one."""


@cache
def known(us: Callable[[int], float], skill: float, how: str) -> float:
    """As `seconds`, for runs in which nothing is chosen."""
    return seconds(us, skill, how)


def seconds(us: Callable[[int], float], skill: float, how: str) -> float:
    """The time of TOKENS tokens: plain, with drafts at every step, or with chosen ones, after a run that measures the
    steps."""
    given, options = prompts(1, (3,)), {"slots": 1, "cache": TOKENS + 16}
    answers = emitted(engine("mamba2", operations=TorchOperations(), **options), given, TOKENS)
    clock = Timed(us)
    drafter: Any = None if how == "plain" else Skilled(answers, WINDOW, skill)
    if how == "chosen":
        drafter = chosen(drafter, StepTimes(clock))
    made = clock.engine(drafter, None if how == "plain" else ActivationReplay(), **options)
    for _ in range(2):
        clock.seconds = 0.0
        assert emitted(made, given, TOKENS) == answers
    return clock.seconds


def holds(us: Callable[[int], float], skill: float) -> bool:
    """Whether the chosen drafts take at most 1 / 0.95 of the better of none and all, and 1 / 0.98 of none."""
    plain, forced, found = known(us, skill, "plain"), known(us, skill, "forced"), seconds(us, skill, "chosen")
    return found <= min(plain, forced) / 0.95 and found <= plain / 0.98


CASES = [(CHEAP_US, 0.9), (CHEAP_US, 0.0), (DEAR_US, 0.9), (DEAR_US, 0.0)]
CASE_IDS = ["cheap, accepted", "cheap, rejected", "dear, accepted", "dear, rejected"]


@pytest.mark.parametrize(("us", "skill"), CASES, ids=CASE_IDS)
def test_measured_steps_choose_the_better_of_plain_and_forced(us: Callable[[int], float], skill: float) -> None:
    assert holds(us, skill)


@pytest.mark.parametrize(("planted", "wrong"), [(4, [1, 2, 3]), (0, [0])], ids=["always", "never"])
def test_a_planted_chooser_that_always_or_never_drafts_is_seen(
    planted: int, wrong: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Chooser, "choose", lambda self, batch, catch_ups=0: planted)
    assert [n for n, case in enumerate(CASES) if not holds(*case)] == wrong


class Clock:
    """A clock that is moved on by hand, and step times that are read from it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.times = StepTimes(lambda: self.now)

    def read(self, us: float, rows: int, tokens: int | None, launched: int | None = None) -> float | None:
        self.now += 1e-6 * us
        return self.times.read(Step(rows, tokens, tokens if launched is None else launched))


def test_step_times_are_medians_of_steady_steps() -> None:
    """Without what contains a prompt, and what is above them at a change."""
    clock = Clock()
    times = clock.times
    assert times.unknown(3, (1, 2, 5)) == 1
    times.left_out(2)
    assert [clock.read(us, 3, 1) for us in (9e6, 9e6)] == [None, None]
    for us in (100.0, 100.0, 700.0):  # one was disturbed
        assert clock.read(us, 3, 1) == pytest.approx(us)
    assert times.unknown(4, (1, 2, 5)) == 5
    for us in (900.0, 200.0, 200.0):
        clock.read(us, 4, 5)
    assert times.unknown(3, (1, 2, 5)) is None
    assert [times(3, n) for n in (1, 3, 5)] == pytest.approx([100.0, 150.0, 200.0])
    assert times.change(4, drafting=True) == 0.0, "the time of a window was not known at the change to it"
    clock.read(330.0, 4, 1)
    for us in (100.0, 100.0):
        clock.read(us, 4, 1)
    clock.read(260.0, 4, 5)
    assert (times.change(4, drafting=False), times.change(3, drafting=True)) == pytest.approx((230.0, 60.0))
    assert times.unknown(5, (1, 5)) == 1, "another number of rows has other times"


def test_a_change_is_counted_where_steps_are_launched_ahead() -> None:
    """The host's part of a change is in the step before it, the device's in the step itself."""
    clock = Clock()
    for tokens in (1, 5):
        clock.times.left_out(1)
        for _ in range(4):
            clock.read(100.0 * tokens, 1, tokens)
    clock.read(540.0, 1, 5, launched=1)
    clock.read(120.0, 1, 1)
    assert clock.times.change(1, drafting=False) == pytest.approx(60.0)
    assert (clock.times(1, 1), clock.times(1, 5)) == pytest.approx((100.0, 500.0))


def test_a_window_that_was_not_measured_takes_the_proportion_of_another_batch() -> None:
    clock = Clock()
    for rows, tokens, us in ((1, 1, 100.0), (1, 5, 150.0), (4, 1, 200.0), (16, 5, 900.0)):
        clock.times.left_out(1)
        for _ in range(3):
            clock.read(us, rows, tokens)
    assert clock.times(4, 5) == pytest.approx(300.0)
    assert clock.times(2, 5) == pytest.approx(150.0)
    assert clock.times(16, 1) == pytest.approx(600.0)
    with pytest.raises(ParameterError, match="no window of 9 tokens was measured"):
        clock.times(4, 9)


def test_catching_up_is_measured() -> None:
    clock = Clock()
    clock.times.left_out(1)
    for _ in range(3):
        clock.read(100.0, 1, 1)
    assert clock.times.catch_up(1) == pytest.approx(100.0), "a plain step's time, until it is known"
    for us in (130.0, 140.0, 990.0):
        clock.read(us, 1, None)
    assert clock.times.catch_up(1) == pytest.approx(40.0)


RULES = {
    "greedy": (Greedy, "top"),
    "naive": (lambda: Naive(Sampling(0.9), seed=5), "top"),
    "multi-step": (lambda: MultiStep(Sampling(0.9), seed=5), "iid"),
    "rejection": (lambda: Rejection(Sampling(0.9), seed=5), "iid"),
}


def drafters(choose: str) -> dict[str, tuple[Callable[[], Drafter], list[Callable[[], Method]]]]:
    """Every kind of drafter that can be chosen for, and methods for it."""
    model: Any = {"slots": 3, "cache": 60, "choose": choose, "sampling": Sampling(0.9)}
    chains: list[Callable[[], Method]] = [ActivationReplay, ReplayBuffer, Snapshots, Joint]
    found: dict[str, tuple[Callable[[], Drafter], list[Callable[[], Method]]]] = {
        "model": (lambda: ModelDrafter(drawn("mamba"), chain(3), **model), chains[:1]),
    }
    if choose == "top":
        found |= {
            "n-gram": (lambda: NGram(3), chains[:1]),
            "n-gram tree": (lambda: NGram(2, 2, trees=True), [Tree]),
            "lookup": (lambda: PromptLookup(6), chains),
            "tree": (lambda: ModelDrafter(drawn("bamba"), branches((2, 1)), **model), [Tree]),
            "beams": (lambda: BeamDrafter(drawn("mamba2"), 2, 2, slots=3, cache=60), [Tree]),
            "several": (
                lambda: Several({"a": ModelDrafter(drawn("mamba"), chain(3), **model), "b": PromptLookup(2)}),
                [ActivationReplay],
            ),
        }
    return found


def scripted(monkeypatch: pytest.MonkeyPatch, script: list[int]) -> None:
    """Chooses by a script: the n-th choice is entry n of the windows, in turn."""
    turns = [0]

    def choose(self: Chooser, batch: int, catch_ups: int = 0) -> int:
        known = list(self.windows)
        turns[0] += 1
        return known[script[turns[0] % len(script)] % len(known)]

    monkeypatch.setattr(Chooser, "choose", choose)


@pytest.mark.parametrize("rule", ["greedy", "naive"])
@pytest.mark.parametrize("name", drafters("top"))
@hypothesis.settings(max_examples=3, deadline=None)
@hypothesis.given(script=st.lists(st.integers(0, 5), min_size=1, max_size=12))
def test_tokens_are_those_of_plain_decoding(name: str, rule: str, script: list[int]) -> None:
    """Whatever is chosen from step to step, under every method, for rows that come and go."""
    same_tokens(name, rule, script, lambda: None)


@pytest.mark.parametrize("name", ["model", "n-gram tree", "lookup"])
def test_recorded_tokens_are_those_of_plain_decoding(name: str) -> None:
    same_tokens(name, "greedy", [0, 0, 1, 3, 2], TapeRecorder)


def same_tokens(name: str, rule: str, script: list[int], recorder: Callable[[], Any]) -> None:
    given, (accept, choose) = prompts(1, (3, 7, 2, 5)), RULES[rule]
    make, methods = drafters(choose)[name]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_attention, "reach", lambda committed, capacity: capacity)
        wanted = emitted(engine("mamba2", rule=accept(), cache=60), given, 16)
        scripted(patch, script)
        for method in methods:
            made = engine("mamba2", chosen(make()), method(), accept(), graphs=recorder(), cache=60)
            assert emitted(made, given, 16) == wanted


@pytest.mark.parametrize("rule", ["multi-step", "rejection"])
def test_drafts_that_are_drawn_are_chosen_too(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their tokens depend on the choice, but each step is one that this rule verifies; nothing is drafted at the first."""
    accept, choose = RULES[rule]
    make, methods = drafters(choose)["model"]
    given, options = prompts(1, (3, 7, 2, 5)), {"cache": 60, "operations": TorchOperations()}
    for script, same in (([0], True), ([1, 0, 0, 0, 0, 0, 0, 1, 1], False)):
        scripted(monkeypatch, script)
        found = emitted(engine("mamba2", chosen(make()), methods[0](), accept(), **options), given, 24)
        assert all(len(tokens) == 24 for tokens in found)
        assert (found == emitted(engine("mamba2", rule=RULES["multi-step"][0](), **options), given, 24)) == same


def test_a_model_drafts_as_if_it_had_drafted_at_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """A drafter that is the target is right always: so is one that was silent for longer than it reads at once."""
    model = drawn("mamba2")
    scripted(monkeypatch, [0] * 40 + [1] * 3 + [0, 1, 0, 0, 1])
    shapes: list[int] = []
    drafter = chosen(ModelDrafter(model, chain(3), slots=2, cache=140))
    whole = drafter.choose_shape
    monkeypatch.setattr(drafter, "choose_shape", lambda rows: shapes.append(whole(rows)) or shapes[-1])
    results = engine(model, drafter, ActivationReplay(), slots=2, cache=140).generate(prompts(1, (3, 5)), Settings(120))
    drafted = [n for n, shape in enumerate(shapes) if shape == 3]
    assert {0, 3, CATCH_UP} == set(shapes)
    assert shapes[drafted[0] - 1] == CATCH_UP
    for result in results:
        emitted = [advanced for n, advanced in enumerate(result.statistics.advanced[:-1]) if n in drafted]
        assert emitted == [4] * len(emitted)
        assert emitted


def test_a_planted_ring_that_is_not_settled_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain steps from a state that lacks what the ring holds."""
    monkeypatch.setattr(Engine, "settle", lambda self, slots: None)
    with pytest.raises(AssertionError):
        same_tokens("lookup", "greedy", [0, 3, 0, 3, 3, 0], lambda: None)


def test_a_planted_drafter_that_does_not_catch_up_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ModelDrafter, "catch_up", lambda self, sequences, slots: None)
    with pytest.raises(AssertionError):
        test_a_model_drafts_as_if_it_had_drafted_at_every_step(monkeypatch)


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
        {"most": 4, "share": -1.0},
        {"most": 4, "fade": float("nan")},
        {"most": 4, "prior": 2.0},
        {"most": 4, "windows": {0: 1, 2: 3}},
        {"most": 2, "windows": {0: 2, 2: 3}},
    ):
        with pytest.raises(ParameterError):
            Chooser(CHEAP, **wrong)  # type: ignore[arg-type]
    room: Any = {"slots": 1, "cache": 9}
    for drafter in (NGram(4, 2), BanditDrafter(drawn("mamba"), (chain(4), chain(2)), **room)):
        with pytest.raises(Unsupported, match="it must propose one chain or tree of one shape"):
            Chosen(drafter, Chooser(CHEAP, 4))
    for drafter in (PromptLookup(3), NGram(2, 2, trees=True)):
        with pytest.raises(ParameterError, match="give both the same"):
            Chosen(drafter, Chooser(StepTimes(), 3, {0: 1, 3: 7}))
