"""Joint attainment with a feed and a graph for each lag: the bits of the one-graph form, from no more tokens than needed."""

from typing import Any

import pytest
import torch
from torch import Tensor

from conformance.suite.graph.tape import TapeRecorder
from ssmspec_fast.accept.greedy import Greedy
from ssmspec_fast.bench.models import random_model
from ssmspec_fast.bench.steps import stepping
from ssmspec_fast.bench.subjects import CONTEXT, Subject, engine_of
from ssmspec_fast.draft.ngram import NGram
from ssmspec_fast.engine.decoder import Decoder
from ssmspec_fast.engine.graphs import Recorder
from ssmspec_fast.engine.loop import Engine
from ssmspec_fast.engine.requests import Settings
from ssmspec_fast.engine.sequences import Sequences, new_sequences
from ssmspec_fast.engine.state import Pools
from ssmspec_fast.engine.window import Feed, Window
from ssmspec_fast.methods.joint import Joint, JointByLag, Lagging
from ssmspec_fast.operations import torch_attention, torch_conv
from ssmspec_fast.operations.torch_ops import TorchOperations

from .drafters import NODES, Skilled
from .models import VOCABULARY, drawn, prompts

BITWISE = TorchOperations(bitwise=True)
LENGTHS, SETTINGS = (3, 7, 2, 5), Settings(12, eos=(3,))
SEEN = {0.0: {"none"}, 0.6: {"none", "some", "all"}, 1.0: {"all"}}
"""How much is accepted of some window, by the drafter's skill."""


@pytest.fixture(autouse=True)
def _reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_attention, "reach", lambda committed, capacity: capacity)  # as on a GPU


def engine(name: str, drafter: Any, method: Joint | None, slots: int, recorder: Recorder | None = None) -> Engine:
    return Engine(drawn(name), drafter, method, operations=BITWISE, slots=slots, cache=40, graphs=recorder)


def plain(name: str) -> list[tuple[int, ...]]:
    return [r.tokens for r in engine(name, None, None, 4).generate(prompts(1, LENGTHS), SETTINGS)]


@pytest.mark.parametrize("recorder", [lambda: None, TapeRecorder], ids=["eager", "recorded"])
@pytest.mark.parametrize("drafts", [1, 2])
@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("skill", SEEN)
def test_feeds_by_lag_emit_the_bits_of_the_longest_feed(skill: float, slots: int, drafts: int, recorder: Any) -> None:
    """Window by window, and in all what plain decoding emits."""
    wanted, given, found, watched = plain("bamba"), prompts(1, LENGTHS), [], []
    for method in (Joint(drafts), JointByLag(drafts)):
        watched.append(Skilled(wanted, NODES, skill, drafts=drafts))
        found.append(engine("bamba", watched[-1], method, slots, recorder()).generate(given, SETTINGS))
    assert found[0] == found[1]
    assert [r.tokens for r in found[1]] == wanted
    assert watched[1].seen >= SEEN[skill]


@pytest.mark.parametrize("name", ["mamba", "mamba2", "qwen3_5"])
def test_every_recurrence_takes_feeds_by_lag(name: str) -> None:
    wanted = plain(name)
    made = engine(name, Skilled(wanted, NODES, 0.7), JointByLag(), 3, TapeRecorder())
    assert [r.tokens for r in made.generate(prompts(1, LENGTHS), SETTINGS)] == wanted


def test_a_feed_is_as_long_as_the_largest_lag_of_its_rows_asks_for() -> None:
    class Watched(JointByLag):
        def __init__(self) -> None:
            super().__init__()
            self.lags: set[int] = set()

        def feed(self, pools: Pools, window: Window, sequences: Sequences, operations: Any) -> Feed:
            lag = max(int(pools.of(Lagging).lag[slot]) for slot in window.slots if slot >= 0)
            made = super().feed(pools, window, sequences, operations)
            assert made.tokens.shape[1] == lag + 1 + NODES - 1
            self.lags.add(lag)
            return made

    wanted, method = plain("mamba2"), Watched()
    made = engine("mamba2", Skilled(wanted, NODES, 0.7), method, 3)
    assert [r.tokens for r in made.generate(prompts(1, LENGTHS), SETTINGS)] == wanted
    assert method.lags == set(range(NODES))


def test_there_are_k_plus_one_graphs_of_a_batch_and_all_are_prepared() -> None:
    recorder = TapeRecorder()
    made = engine("mamba2", NGram(NODES - 1), JointByLag(), 3, recorder)
    made.prepare(SETTINGS)
    assert made.graphs is not None
    assert list(made.graphs.recorded) == [(rows, None, lag) for rows in (1, 2, 3) for lag in range(NODES)]
    assert [r.tokens for r in made.generate(prompts(1, LENGTHS), SETTINGS)] == plain("mamba2")
    assert len(recorder.launches) == len(made.graphs.recorded) == 3 * NODES


def test_a_drafter_on_the_host_has_at_most_k_plus_one_graphs() -> None:
    recorder, wanted = TapeRecorder(), plain("mamba2")
    made = engine("mamba2", Skilled(wanted, NODES, 0.7), JointByLag(), 1, recorder)
    assert [r.tokens for r in made.generate(prompts(1, LENGTHS), SETTINGS)] == wanted
    assert made.graphs is not None
    assert 1 < len(recorder.launches) == len(made.graphs.recorded) <= NODES


@pytest.mark.parametrize("recorder", [lambda: None, TapeRecorder], ids=["eager", "recorded"])
def test_the_lag_of_the_first_row_taken_for_all_is_caught(recorder: Any) -> None:
    """Planted: the first row's drafts are all wrong, so that it never lags, and those of the others right, whose last drafts
    are then never fed."""

    class FirstRow(JointByLag):
        def behind(self, pools: Pools, slots: Tensor) -> int:
            return super().behind(pools, slots[:1])

    wanted, given = plain("mamba2"), prompts(1, LENGTHS)
    drafted = [tuple((token + 1) % VOCABULARY for token in wanted[0]), *wanted[1:]]
    for method, same in ((JointByLag(), True), (FirstRow(), False)):
        made = engine("mamba2", Skilled(drafted, NODES, 1.0), method, 3, recorder())
        assert ([r.tokens for r in made.generate(given, SETTINGS)] == wanted) is same


def test_what_is_timed_takes_the_graph_of_its_lag() -> None:
    subject = Subject("tiny", "joint-by-lag", 5, 2, advanced=3)
    made = engine_of(subject, random_model("tiny", torch.float32, "cpu"), TorchOperations(), TapeRecorder())
    with torch.no_grad():
        step = stepping(made, torch.arange(2))
        for _ in range(4):
            step()
    assert made.graphs is not None
    assert made.sequences is not None
    assert [behind for *_, behind in made.graphs.recorded] == [0, 2]
    assert (made.sequences.length - CONTEXT - 1).tolist() == [4 * 3] * 2


@pytest.mark.parametrize("name", ["mamba", "mamba2", "bamba", "qwen3_5"])
def test_padding_does_not_lag_where_slot_0_does(name: str) -> None:
    """Slot 0 lags by all of its window; the next step, without drafts, holds padding and a row without lag; then slot 0."""
    given, wanted = prompts(1, (3, 7)), plain(name)
    for method in (Joint(), JointByLag()):
        decoder = Decoder(drawn(name), method, BITWISE, slots=2, cache=40, window=NODES)
        sequences, drafter = new_sequences(2, 40 + NODES, (), (), "cpu"), Skilled(wanted, NODES, 1.0)
        with torch.no_grad():
            decoder.prefill(given, [0, 1])
            for slot, prompt in enumerate(given):
                sequences.add(slot, prompt, 12, slot)
            for rows, nodes in (([0], NODES), ([-1, 1], 1), ([0, -1], NODES), ([-1, 0, 1], 2)):
                stepped(decoder, sequences, drafter, torch.tensor(rows), nodes)
        for slot in range(2):
            said = sequences.output(slot)
            assert said == wanted[slot][: len(said)]
            assert len(said) > 1


def test_padding_that_moves_its_window_by_the_lag_of_slot_0_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: as it was until it was found, padding reads inputs that are not there."""
    monkeypatch.setattr(torch_conv, "inside", lambda advanced, slots: advanced)
    decoder = Decoder(drawn("mamba2"), JointByLag(), BITWISE, slots=2, cache=40, window=NODES)
    sequences, drafter = new_sequences(2, 40 + NODES, (), (), "cpu"), Skilled(plain("mamba2"), NODES, 1.0)
    with torch.no_grad():
        decoder.prefill(prompts(1, (3, 7)), [0, 1])
        for slot, prompt in enumerate(prompts(1, (3, 7))):
            sequences.add(slot, prompt, 12, slot)
        stepped(decoder, sequences, drafter, torch.tensor([0]), NODES)
        with pytest.raises((RuntimeError, IndexError)):
            stepped(decoder, sequences, drafter, torch.tensor([-1, 1]), 1)


def stepped(decoder: Decoder, sequences: Sequences, drafter: Skilled, slots: Tensor, nodes: int) -> None:
    """One window of these rows and so many tokens, judged greedily."""
    proposal = drafter.propose(sequences, slots)
    proposal = proposal._replace(window=proposal.window._replace(tokens=proposal.window.tokens[:, :nodes].contiguous()))
    feed = decoder.feed(proposal.window, sequences)
    verdict = Greedy()(proposal, decoder.verify(feed), sequences, BITWISE)
    decoder.commit(feed, verdict)
    sequences.commit(verdict)
