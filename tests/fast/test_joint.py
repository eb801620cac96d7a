"""Joint attainment with a feed and a graph for each lag: the bits of the one-graph form, from no more tokens than needed."""

from typing import Any

import pytest
import torch
from torch import Tensor

from conformance.suite.graph.tape import TapeRecorder
from ssmspec_fast.bench.models import random_model
from ssmspec_fast.bench.steps import stepping
from ssmspec_fast.bench.subjects import CONTEXT, Subject, engine_of
from ssmspec_fast.draft.ngram import NGram
from ssmspec_fast.engine.loop import Engine
from ssmspec_fast.engine.requests import Settings
from ssmspec_fast.engine.sequences import Sequences
from ssmspec_fast.engine.state import Pools
from ssmspec_fast.engine.window import Feed, Window
from ssmspec_fast.methods.joint import Joint, JointByLag, Lagging
from ssmspec_fast.operations import torch_conv
from ssmspec_fast.operations.torch_ops import TorchOperations

from .drafters import NODES, Skilled
from .models import VOCABULARY, drawn, prompts
from .runs import begun, emitted, engine, step

pytestmark = pytest.mark.usefixtures("as_on_a_gpu")
LENGTHS, SETTINGS = (3, 7, 2, 5), Settings(12, eos=(3,))
SEEN = {0.0: {"none"}, 0.6: {"none", "some", "all"}, 1.0: {"all"}}
"""How much is accepted of some window, by the drafter's skill."""


def made(name: str, drafter: Any = None, method: Joint | None = None, slots: int = 4, recorder: Any = None) -> Engine:
    return engine(name, drafter, method, slots=slots, cache=40, graphs=recorder)


def said(of: Engine) -> list[tuple[int, ...]]:
    return emitted(of, prompts(1, LENGTHS), SETTINGS)


def plain(name: str) -> list[tuple[int, ...]]:
    return said(made(name))


RECORDERS = pytest.mark.parametrize("recorder", [lambda: None, TapeRecorder], ids=["eager", "recorded"])


@RECORDERS
@pytest.mark.parametrize("drafts", [1, 2])
@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("skill", SEEN)
def test_feeds_by_lag_emit_the_bits_of_the_longest_feed(skill: float, slots: int, drafts: int, recorder: Any) -> None:
    """Window by window, and in all what plain decoding emits."""
    wanted, found, watched = plain("bamba"), [], []
    for method in (Joint(drafts), JointByLag(drafts)):
        watched.append(Skilled(wanted, NODES, skill, drafts=drafts))
        of = made("bamba", watched[-1], method, slots, recorder())
        found.append(of.generate(prompts(1, LENGTHS), SETTINGS))
    assert found[0] == found[1]
    assert [r.tokens for r in found[1]] == wanted
    assert watched[1].seen >= SEEN[skill]


@pytest.mark.parametrize("name", ["mamba", "mamba2", "qwen3_5"])
def test_every_recurrence_takes_feeds_by_lag(name: str) -> None:
    wanted = plain(name)
    assert said(made(name, Skilled(wanted, NODES, 0.7), JointByLag(), 3, TapeRecorder())) == wanted


def test_a_feed_is_as_long_as_the_largest_lag_of_its_rows_asks_for() -> None:
    class Watched(JointByLag):
        def __init__(self) -> None:
            super().__init__()
            self.lags: set[int] = set()

        def feed(self, pools: Pools, window: Window, sequences: Sequences, operations: Any) -> Feed:
            lag = max(int(pools.of(Lagging).lag[slot]) for slot in window.slots if slot >= 0)
            fed = super().feed(pools, window, sequences, operations)
            assert fed.tokens.shape[1] == lag + 1 + NODES - 1
            self.lags.add(lag)
            return fed

    wanted, method = plain("mamba2"), Watched()
    assert said(made("mamba2", Skilled(wanted, NODES, 0.7), method, 3)) == wanted
    assert method.lags == set(range(NODES))


def test_there_are_k_plus_one_graphs_of_a_batch_and_all_are_prepared() -> None:
    recorder = TapeRecorder()
    of = made("mamba2", NGram(NODES - 1), JointByLag(), 3, recorder)
    of.prepare(SETTINGS)
    assert of.graphs is not None
    assert list(of.graphs.recorded) == [(rows, None, lag) for rows in (1, 2, 3) for lag in range(NODES)]
    assert said(of) == plain("mamba2")
    assert len(recorder.launches) == len(of.graphs.recorded) == 3 * NODES


def test_a_drafter_on_the_host_has_at_most_k_plus_one_graphs() -> None:
    recorder, wanted = TapeRecorder(), plain("mamba2")
    of = made("mamba2", Skilled(wanted, NODES, 0.7), JointByLag(), 1, recorder)
    assert said(of) == wanted
    assert of.graphs is not None
    assert 1 < len(recorder.launches) == len(of.graphs.recorded) <= NODES


@RECORDERS
def test_the_lag_of_the_first_row_taken_for_all_is_caught(recorder: Any) -> None:
    """Planted: the first row's drafts are all wrong, so that it never lags, and those of the others right, whose last drafts
    are then never fed."""

    class FirstRow(JointByLag):
        def refed(self, pools: Pools, slots: Tensor) -> int:
            return super().refed(pools, slots[:1])

    wanted = plain("mamba2")
    drafted = [tuple((token + 1) % VOCABULARY for token in wanted[0]), *wanted[1:]]
    for method, same in ((JointByLag(), True), (FirstRow(), False)):
        assert (said(made("mamba2", Skilled(drafted, NODES, 1.0), method, 3, recorder())) == wanted) is same


def test_what_is_timed_takes_the_graph_of_its_lag() -> None:
    subject = Subject("tiny", "joint-by-lag", 5, 2, advanced=3)
    of = engine_of(subject, random_model("tiny", torch.float32, "cpu"), TorchOperations(), TapeRecorder())
    with torch.no_grad():
        run = stepping(of, torch.arange(2))
        for _ in range(4):
            run()
    assert of.graphs is not None
    assert of.sequences is not None
    assert [refed for *_, refed in of.graphs.recorded] == [0, 2]
    assert (of.sequences.length - CONTEXT - 1).tolist() == [4 * 3] * 2


def windows(name: str, method: Joint, *steps: tuple[list[int], int]) -> tuple[Sequences, list[tuple[int, ...]]]:
    """Windows of these rows, padding among them, and so many tokens, always right; and what plain decoding says."""
    wanted = plain(name)
    decoder, sequences = begun(drawn(name), method, prompts(1, (3, 7)), [0, 1], slots=2, cache=40, window=NODES)
    drafter = Skilled(wanted, NODES, 1.0)
    for rows, nodes in steps:
        proposal = drafter.propose(sequences, torch.tensor(rows))
        cut = proposal.window.tokens[:, :nodes].contiguous()
        step(decoder, sequences, proposal._replace(window=proposal.window._replace(tokens=cut)))
    return sequences, wanted


@pytest.mark.parametrize("name", ["mamba", "mamba2", "bamba", "qwen3_5"])
def test_padding_does_not_lag_where_slot_0_does(name: str) -> None:
    """Slot 0 lags by all of its window; the next step, without drafts, holds padding and a row without lag; then slot 0."""
    for method in (Joint(), JointByLag()):
        sequences, wanted = windows(name, method, ([0], NODES), ([-1, 1], 1), ([0, -1], NODES), ([-1, 0, 1], 2))
        for slot in range(2):
            found = sequences.output(slot)
            assert found == wanted[slot][: len(found)]
            assert len(found) > 1


def test_padding_that_moves_its_window_by_the_lag_of_slot_0_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: as it was until it was found, padding reads inputs that are not there."""
    monkeypatch.setattr(torch_conv, "inside", lambda advanced, slots: advanced)
    windows("mamba2", JointByLag(), ([0], NODES))
    with pytest.raises((RuntimeError, IndexError)):
        windows("mamba2", JointByLag(), ([0], NODES), ([-1, 1], 1))
