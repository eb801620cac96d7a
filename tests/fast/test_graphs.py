"""Recorded steps: the same tokens as eager ones, over rows that come and go; and what cannot be recorded is refused."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from conformance.suite.graph.tape import Tape, TapeRecorder, Uncapturable
from ssmspec_fast.accept.naive import Naive
from ssmspec_fast.accept.processors import Sampling
from ssmspec_fast.accept.rejection import Rejection
from ssmspec_fast.draft.bandit import BanditDrafter
from ssmspec_fast.draft.chooser import Chooser, Chosen
from ssmspec_fast.draft.costs import Costs
from ssmspec_fast.draft.model import ChainsDrafter, ModelDrafter
from ssmspec_fast.draft.ngram import NGram, PromptLookup
from ssmspec_fast.draft.shapes import branches, chain
from ssmspec_fast.engine.loop import Engine
from ssmspec_fast.engine.requests import Settings
from ssmspec_fast.methods.activation_replay import ActivationReplay
from ssmspec_fast.methods.tree import Tree
from ssmspec_fast.operations import torch_attention
from ssmspec_fast.operations.torch_ops import TorchOperations

from .drafters import CHAINS, NODES, Skilled
from .models import drawn, prompts

LENGTHS, SETTINGS = (3, 7, 2, 5), Settings(9, eos=(3,))


@pytest.fixture(autouse=True)
def _reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_attention, "reach", lambda committed, capacity: capacity)  # as on a GPU


def both(name: str, drafter: Callable[[], Any], method: Any, rule: Any = None, settings: Settings = SETTINGS) -> list[Any]:
    """The results of eager steps and of recorded ones; four requests share three slots."""
    model, given, found = drawn(name), prompts(1, LENGTHS), []
    for recorder in (None, TapeRecorder()):
        options: dict[str, Any] = {"slots": 3, "cache": 40, "operations": TorchOperations(), "graphs": recorder}
        found.append(Engine(model, drafter(), method(), rule, **options).generate(given, settings))
    return found


@pytest.mark.parametrize("method", CHAINS)
@pytest.mark.parametrize("name", ["bamba"])
def test_recorded_steps_emit_what_eager_ones_emit(name: str, method: str) -> None:
    """Also how many tokens each window emitted: the last ones are read a step late, and counted once."""
    answers = [r.tokens for r in Engine(drawn(name), slots=4, cache=40).generate(prompts(1, LENGTHS), SETTINGS)]
    eager, recorded = both(name, lambda: Skilled(answers, NODES, 0.7, tree=method == "tree"), CHAINS[method])
    assert [r.tokens for r in eager] == answers
    assert [r.tokens for r in recorded] == answers
    assert all(sum(r.statistics.advanced) == len(r.tokens) for r in recorded)


@pytest.mark.parametrize(
    ("drafter", "method", "rule"),
    [
        (lambda: None, lambda: None, None),
        (lambda: NGram(NODES - 1), ActivationReplay, None),
        (lambda: NGram(NODES - 1, 2), lambda: ActivationReplay(2), None),
        (lambda: PromptLookup(NODES - 1), CHAINS["joint"], None),
        (lambda: ModelDrafter(drawn("mamba"), branches((2, 1)), slots=3, cache=40), Tree, None),
        (lambda: ModelDrafter(drawn("mamba"), branches((2, 1)), slots=3, cache=40), Tree, Naive(seed=5)),
        (
            lambda: ModelDrafter(drawn("mamba"), chain(3), choose="iid", sampling=Sampling(0.9), slots=3, cache=40),
            CHAINS["replay buffer"],
            Rejection(Sampling(0.9), seed=6),
        ),
    ],
    ids=["plain", "n-gram", "n-gram rows", "lookup", "tree", "naive", "rejection"],
)
def test_drafters_are_recorded_with_the_step(drafter: Any, method: Any, rule: Any) -> None:
    eager, recorded = both("mamba2", drafter, method, rule)
    assert recorded == eager


def test_a_bandit_has_a_graph_for_each_tree() -> None:
    recorder, model = TapeRecorder(), drawn("mamba2")
    drafter = BanditDrafter(drawn("mamba"), (chain(3), branches((2, 1))), slots=2, cache=40)
    engine = Engine(model, drafter, Tree(), slots=2, cache=40, graphs=recorder)
    answers = [r.tokens for r in Engine(model, slots=2, cache=40).generate(prompts(1, LENGTHS), SETTINGS)]
    assert [r.tokens for r in engine.generate(prompts(1, LENGTHS), SETTINGS)] == answers
    assert {arm for _, arm, _ in engine.graphs.recorded} == {0, 1}  # type: ignore[union-attr]


def test_a_shape_is_recorded_once_whatever_is_asked() -> None:
    recorder = TapeRecorder()
    engine = Engine(drawn("mamba2"), slots=4, cache=40, graphs=recorder)
    first = engine.generate(prompts(1, LENGTHS), SETTINGS)
    assert engine.generate(prompts(1, LENGTHS), SETTINGS) == first
    assert len(recorder.launches) == len(engine.graphs.recorded) <= 3  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "drafter",
    [lambda: NGram(NODES - 1), lambda: Chosen(NGram(2), Chooser(Costs({4: {1: 1.0, 3: 1.1}}), 2))],
    ids=["one shape", "several"],
)
def test_prepared_steps_are_not_recorded_again(drafter: Any) -> None:
    recorder, model = TapeRecorder(), drawn("mamba2")
    engine = Engine(model, drafter(), ActivationReplay(), slots=4, cache=40, graphs=recorder)
    engine.prepare(SETTINGS)
    recorded = len(recorder.launches)
    for (_, shape, _), step in engine.graphs.recorded.items():  # type: ignore[union-attr]
        assert step.proposal.window.tokens.shape[1] == (NODES if shape is None else shape + 1)
    wanted = [r.tokens for r in Engine(model, slots=4, cache=40).generate(prompts(1, LENGTHS), SETTINGS)]
    assert [r.tokens for r in engine.generate(prompts(1, LENGTHS), SETTINGS)] == wanted
    assert len(recorder.launches) == recorded == 3 * len({shape for _, shape, _ in engine.graphs.recorded})  # type: ignore[union-attr]


def test_a_request_whose_window_has_no_root_fails_and_the_others_go_on() -> None:
    """A drafter that proposes no token at all for one request would keep the engine waiting for ever."""
    model, given = drawn("mamba2"), prompts(1, LENGTHS)
    wanted = [r.tokens for r in Engine(model, slots=4, cache=40).generate(given, SETTINGS)]

    class Rootless(NGram):
        def propose(self, sequences: Any, slots: Any) -> Any:
            proposal = super().propose(sequences, slots)
            lengths = proposal.window.lengths * (sequences.request[slots.clamp_min(0)] != 2)
            return proposal._replace(window=proposal.window._replace(lengths=lengths))

    found = Engine(model, Rootless(NODES - 1), ActivationReplay(), slots=4, cache=40).generate(given, SETTINGS)
    assert [r.finish == "failed" for r in found] == [False, False, True, False]
    assert [r.tokens for r in found if r.finish != "failed"] == [wanted[n] for n in (0, 1, 3)]


@pytest.mark.parametrize("sequences", [1, 2])
def test_slots_of_several_rows_lie_without_gaps(sequences: int) -> None:
    """A kernel reads one after the other; a view that repeats a slot is none."""
    engine, slots = Engine(drawn("mamba2"), slots=2, cache=40), torch.arange(sequences)
    held = engine.begin(SETTINGS)
    for slot in range(sequences):
        held.add(slot, [5, 6, 5], 4, slot)
    chains = ChainsDrafter(drawn("mamba"), 2, 3, slots=2, cache=40)
    with torch.no_grad():
        chains.start(held, slots)
        for drafter in (NGram(2, 3), chains):
            window = drafter.propose(held, slots).window
            assert window.slots.tolist() == slots.repeat_interleave(3).tolist()
            assert all(len(x) == 1 or x.stride() == (1,) for x in (window.slots, window.sequences))


def test_what_waits_for_the_host_cannot_be_recorded() -> None:
    x = torch.arange(3)
    for plant in (lambda: int(x.max()), lambda: x[x > 1], lambda: x.nonzero(), lambda: bool(x.any())):
        with Tape(), pytest.raises(Uncapturable):
            plant()


def test_a_planted_decision_of_the_host_is_not_replayed() -> None:
    """A number that the host counts stays as it was recorded: with it a step emits other tokens, and that is seen."""
    model, given = drawn("mamba2"), prompts(1, LENGTHS)

    class Counting(Engine):
        count = 0

        def judge(self, proposal: Any, sequences: Any) -> Any:
            self.count += 1
            tokens = (proposal.window.tokens + self.count) % 61
            return super().judge(proposal._replace(window=proposal.window._replace(tokens=tokens)), sequences)

    found = [
        Counting(model, slots=4, cache=40, graphs=recorder).generate(given, SETTINGS) for recorder in (None, TapeRecorder())
    ]
    assert found[0] != found[1]
