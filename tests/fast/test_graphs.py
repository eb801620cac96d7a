"""Recorded steps: the same tokens as eager ones, over rows that come and go; and what cannot be recorded is refused."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from conformance.suite.graph.tape import Tape, TapeRecorder, Uncapturable
from ssmspec_fast.accept.naive import Naive
from ssmspec_fast.accept.rejection import Rejection
from ssmspec_fast.draft.bandit import BanditDrafter
from ssmspec_fast.draft.chooser import Chooser, Chosen
from ssmspec_fast.draft.costs import Costs
from ssmspec_fast.draft.model import ChainsDrafter, ModelDrafter
from ssmspec_fast.draft.ngram import NGram, PromptLookup
from ssmspec_fast.draft.shapes import branches, chain
from ssmspec_fast.engine.loop import Engine
from ssmspec_fast.engine.requests import Settings
from ssmspec_fast.engine.sampling import Sampling
from ssmspec_fast.methods.activation_replay import ActivationReplay
from ssmspec_fast.methods.tree import Tree
from ssmspec_fast.operations.torch_ops import TorchOperations

from .drafters import CHAINS, NODES, skilled
from .models import drawn, prompts
from .runs import emitted, engine
from .test_steps import WAITS

pytestmark = pytest.mark.usefixtures("as_on_a_gpu")
LENGTHS, SETTINGS = (3, 7, 2, 5), Settings(9, eos=(3,))


def made(model: Any, drafter: Any = None, method: Any = None, rule: Any = None, graphs: Any = None, slots: int = 4) -> Engine:
    return engine(model, drafter, method, rule, slots=slots, cache=40, operations=TorchOperations(), graphs=graphs)


def results(of: Engine) -> list[Any]:
    return of.generate(prompts(1, LENGTHS), SETTINGS)


def said(of: Engine) -> list[tuple[int, ...]]:
    return emitted(of, prompts(1, LENGTHS), SETTINGS)


def both(name: str, drafter: Callable[[], Any], method: Any, rule: Any = None) -> list[Any]:
    """The results of eager steps and of recorded ones; four requests share three slots."""
    return [results(made(name, drafter(), method(), rule, recorder, 3)) for recorder in (None, TapeRecorder())]


@pytest.mark.parametrize("method", CHAINS)
def test_recorded_steps_emit_what_eager_ones_emit(method: str) -> None:
    """Also how many tokens each window emitted: the last ones are read a step late, and counted once."""
    answers = said(made("bamba"))
    eager, recorded = both("bamba", lambda: skilled(answers, method), CHAINS[method])
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
    of = made(model, drafter, Tree(), graphs=recorder, slots=2)
    assert said(of) == said(made(model))
    assert {arm for _, arm, _ in of.graphs.recorded} == {0, 1}  # type: ignore[union-attr]


def test_a_shape_is_recorded_once_whatever_is_asked() -> None:
    recorder = TapeRecorder()
    of = made("mamba2", graphs=recorder)
    assert results(of) == results(of)
    assert len(recorder.launches) == len(of.graphs.recorded) <= 3  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "drafter",
    [lambda: NGram(NODES - 1), lambda: Chosen(NGram(2), Chooser(Costs({4: {1: 1.0, 3: 1.1}}), 2))],
    ids=["one shape", "several"],
)
def test_prepared_steps_are_not_recorded_again(drafter: Any) -> None:
    recorder, model = TapeRecorder(), drawn("mamba2")
    of = made(model, drafter(), ActivationReplay(), graphs=recorder)
    of.prepare(SETTINGS)
    recorded = len(recorder.launches)
    for (_, shape, _), step in of.graphs.recorded.items():  # type: ignore[union-attr]
        assert step.proposal.window.tokens.shape[1] == (NODES if shape is None else shape + 1)
    assert said(of) == said(made(model))
    assert len(recorder.launches) == recorded == 3 * len({shape for _, shape, _ in of.graphs.recorded})  # type: ignore[union-attr]


def test_a_request_whose_window_has_no_root_fails_and_the_others_go_on() -> None:
    """A drafter that proposes no token at all for one request would keep the engine waiting for ever."""
    wanted = said(made("mamba2"))

    class Rootless(NGram):
        def propose(self, sequences: Any, slots: Any) -> Any:
            proposal = super().propose(sequences, slots)
            lengths = proposal.window.lengths * (sequences.request[slots.clamp_min(0)] != 2)
            return proposal._replace(window=proposal.window._replace(lengths=lengths))

    found = results(made("mamba2", Rootless(NODES - 1), ActivationReplay()))
    assert [r.finish == "failed" for r in found] == [False, False, True, False]
    assert [r.tokens for r in found if r.finish != "failed"] == [wanted[n] for n in (0, 1, 3)]


@pytest.mark.parametrize("sequences", [1, 2])
def test_slots_of_several_rows_lie_without_gaps(sequences: int) -> None:
    """A kernel reads one after the other; a view that repeats a slot is none."""
    slots = torch.arange(sequences)
    held = made("mamba2", slots=2).begin(SETTINGS)
    for slot in range(sequences):
        held.add(slot, [5, 6, 5], 4, slot)
    chains = ChainsDrafter(drawn("mamba"), 2, 3, slots=2, cache=40)
    with torch.no_grad():
        chains.start(held, slots)
        for drafter in (NGram(2, 3), chains):
            window = drafter.propose(held, slots).window
            assert window.slots.tolist() == slots.repeat_interleave(3).tolist()
            assert all(len(x) == 1 or x.stride() == (1,) for x in (window.slots, window.sequences))


@pytest.mark.parametrize("wait", WAITS)
def test_what_waits_for_the_host_cannot_be_recorded(wait: Any) -> None:
    with Tape(), pytest.raises(Uncapturable):
        wait(torch.arange(3))


def test_a_planted_decision_of_the_host_is_not_replayed() -> None:
    """A number that the host counts stays as it was recorded: with it a step emits other tokens, and that is seen."""

    class Counting(Engine):
        count = 0

        def judge(self, proposal: Any, sequences: Any) -> Any:
            self.count += 1
            tokens = (proposal.window.tokens + self.count) % 61
            return super().judge(proposal._replace(window=proposal.window._replace(tokens=tokens)), sequences)

    eager, recorded = (results(Counting(drawn("mamba2"), slots=4, cache=40, graphs=g)) for g in (None, TapeRecorder()))
    assert eager != recorded
