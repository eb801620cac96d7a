"""Requests that come, wait, join, fail, are cancelled: each gets the tokens that it gets alone, when the oracle says."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from conformance.suite.graph.tape import TapeRecorder
from ssmspec_fast.cli.refusal import REFUSED
from ssmspec_fast.cli.traffic import app
from ssmspec_fast.draft.nothing import Nothing
from ssmspec_fast.engine.loop import Engine
from ssmspec_fast.engine.requests import Settings
from ssmspec_fast.engine.scheduler import Clearing, Continuous, Scheduler
from ssmspec_fast.engine.traffic import VirtualClock, poisson, replay
from ssmspec_fast.errors import MemoryRefused
from ssmspec_fast.operations.torch_ops import TorchOperations
from ssmspec_ref.cost import traffic
from ssmspec_ref.errors import EmptyWindow, LengthError, ParameterError, SlotError

from .models import drawn, prompts
from .runs import emitted, engine, served, unused

STEP = {1: 1.0, 2: 1.5, 3: 1.75, 4: 2.0}  # seconds of a step of so many rows; exact in binary
LENGTHS, SETTINGS = (3, 5, 2, 4, 3, 6), Settings(4)


def engine_of(model: Any = None, drafter: Any = None, slots: int = 3, **more: Any) -> Engine:
    return engine(model or "mamba2", drafter, slots=slots, cache=24, operations=TorchOperations(), **more)


def alone(given: list[list[int]]) -> list[tuple[int, ...]]:
    made = engine_of(slots=1)
    return [emitted(made, [prompt], SETTINGS)[0] for prompt in given]


@pytest.mark.parametrize("policy", [Continuous, lambda: Clearing(3, 2.5)], ids=["continuous", "clearing"])
@pytest.mark.parametrize("recorder", [lambda: None, TapeRecorder], ids=["eager", "recorded"])
@pytest.mark.usefixtures("as_on_a_gpu")
def test_a_request_of_a_stream_gets_the_tokens_that_it_gets_alone(
    policy: Callable[[], Any], recorder: Callable[[], Any]
) -> None:
    given = prompts(3, LENGTHS)
    scheduler = Scheduler(engine_of(graphs=recorder()), SETTINGS, policy(), VirtualClock(STEP))
    found = replay(scheduler, given, poisson(0.4, len(given), 1))
    assert [one.tokens for one in found.served] == alone(given)
    assert {one.ending for one in found.served} == {"length"}


def cleared(policy: Any, rate: float, seed: int) -> tuple[list[Any], Any]:
    """What the oracle says of the queue, and what was served."""
    given, arriving = prompts(3, LENGTHS * 2), poisson(rate, 2 * len(LENGTHS), seed)
    table = {b: traffic.Plan(0, 0, 1.0, step) for b, step in STEP.items()}
    wanted = traffic.periodic_clearing(arriving, [SETTINGS.budget] * len(given), table, 3, 2.5)
    return wanted, replay(Scheduler(engine_of(), SETTINGS, policy, VirtualClock(STEP)), given, arriving)


@pytest.mark.parametrize("rate", [0.1, 0.5, 4.0])
def test_the_queue_is_cleared_when_the_oracle_clears_it(rate: float) -> None:
    """Times within 1e-9: sums of the same numbers in another order."""
    wanted, found = cleared(Clearing(3, 2.5), rate, 5)
    for one, other in zip(found.served, wanted, strict=True):
        assert (one.arrival, one.start, one.finish) == pytest.approx((other.arrival, other.start, other.finish), abs=1e-9)
    for percent in (50, 95):
        assert found.latency(percent) == pytest.approx(traffic.latency_percentile(wanted, percent), abs=1e-9)
    assert found.throughput == pytest.approx(traffic.throughput(wanted, [SETTINGS.budget] * len(wanted)))


def test_a_planted_queue_that_does_not_wait_is_seen() -> None:
    wanted, found = cleared(Clearing(3, 0.0), 0.5, 5)
    assert [one.start for one in found.served] != [one.start for one in wanted]


def test_a_cancelled_request_leaves_its_slot_and_the_others_alone() -> None:
    given = prompts(3, LENGTHS)
    scheduler = Scheduler(engine_of(slots=2), SETTINGS)
    numbers = [scheduler.submit(prompt) for prompt in given]
    scheduler.turn()
    running, waiting = scheduler.cancel(numbers[0]), scheduler.cancel(numbers[4])
    assert running is not None
    assert waiting is not None
    assert (running.ending, waiting.ending) == ("cancelled", "cancelled")
    assert running.tokens == alone(given)[0][:1]
    found = served(scheduler)
    assert {n: one.tokens for n, one in found.items()} == {n: alone(given)[n] for n in (1, 2, 3, 5)}
    assert scheduler.cancel(numbers[1]) is None
    scheduler.close()


def test_a_request_that_fails_harms_no_other() -> None:
    """One has no numbers for logits, another cannot begin."""
    given, model = prompts(3, LENGTHS), drawn("gpt_neox")
    wanted = emitted(engine_of(model), given, SETTINGS)
    spare = unused(given, wanted)
    model.embedding[spare] = float("nan")

    class Picky(Nothing):
        def start(self, sequences: Any, slots: Any) -> None:
            if any(int(sequences.tokens[slot, 0]) == 60 for slot in slots):
                raise LengthError("planted")

    scheduler = Scheduler(engine_of(model, Picky()), SETTINGS)
    for prompt in ([1, spare], [60, 1], *given):
        scheduler.submit(prompt)
    found = served(scheduler)
    assert (found[0].ending, found[0].tokens) == ("failed", ())
    assert (found[1].ending, found[1].why) == ("failed", "LengthError: planted")
    assert [found[n + 2].tokens for n in range(len(given))] == wanted


def test_the_command_replays_arrivals_and_refuses_by_name(tmp_path: Path) -> None:
    out = tmp_path / "traffic.json"
    given = ["--tiny", "--rate", "200", "--requests", "5", "--tokens", "3", "--length", "4", "--slots", "2"]
    given += ["--out", str(out)]
    done = CliRunner().invoke(app, given)
    assert done.exit_code == 0, done.output
    held = json.loads(out.read_text())
    assert held["summary"]["requests"] == len(held["served"]) == 5
    assert held["summary"]["failed"] == 0
    assert all(len(one["tokens"]) == 3 and one["arrival"] <= one["start"] <= one["finish"] for one in held["served"])
    assert "5 requests at 200 a second take 0 s or more" in done.stderr
    assert re.search(r"^latency +p50 \d+ ms   p95 \d+ ms   p99 \d+ ms$", done.stdout, re.MULTILINE)
    assert re.search(r"^first token +p50 \d+ ms   p95 \d+ ms   p99 \d+ ms$", done.stdout, re.MULTILINE)
    assert re.search(r"^throughput +\d+\.\d tokens/s$", done.stdout, re.MULTILINE)
    assert all(one["start"] <= one["first"] <= one["finish"] for one in held["served"])
    assert json.loads(CliRunner().invoke(app, [*given[:-2], "--json"]).stdout)["tokens"] == 15
    wrong = ("--drafter ngram", "--method snapshots", "--device cuda", "--policy best", "--rate 0", "--tokens 0",
             "--policy clearing --capacity 9")  # fmt: skip
    for words in ([], *(["--tiny", *one.split()] for one in wrong)):
        assert CliRunner().invoke(app, words).exit_code == REFUSED


def test_what_cannot_be_served_is_refused_before_it_is_held() -> None:
    made = engine_of()
    scheduler = Scheduler(made, SETTINGS, most_tokens=10)
    for prompt, error in (([], EmptyWindow), ([61], ParameterError), ([1] * 30, LengthError)):
        with pytest.raises(error):
            scheduler.submit(prompt)
    scheduler.submit([1] * 8)
    with pytest.raises(MemoryRefused, match="a prompt of 3 tokens is too much: 8 already wait, and at most 10 may"):
        scheduler.submit([1] * 3)
    with pytest.raises(SlotError):
        Scheduler(made, SETTINGS)
    with pytest.raises(ParameterError, match="batches have 9 requests, but the engine has 3 slots"):
        Scheduler(engine_of(), SETTINGS, Clearing(9, 1.0))
    with pytest.raises(ParameterError):
        Clearing(0, 1.0)
    with pytest.raises(ParameterError):
        replay(scheduler, [[1]], [])
    assert len(served(scheduler)) == 1
