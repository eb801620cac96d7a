"""Our engine: the server that ships passes over `http:`; faults in it and in the program are caught."""

import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from conformance.engines import cli, judge
from conformance.engines.errors import EngineRefused
from conformance.engines.http import Server
from conformance.engines.known import opener
from conformance.engines.program import fitting
from conformance.engines.protocol import Answer, Options, Request
from conformance.engines.small import pair
from conformance.suite.graph.tape import TapeRecorder
from ssmspec_fast.models.build import Parts
from ssmspec_fast.serve.logits import Logged
from tests.fast.serve.serving import Running, serving

from .direct import Direct
from .faults import FAULTS
from .peers import needed

ROOT = Path(__file__).parents[3]
PATIENCE = 60.0
"""Seconds that the requests of a round may take to come."""
PROGRAM = """
import os, sys
sys.path[:0] = [{root!r}]
import pytest
from ssmspec_fast.adapters.program import main
from tests.conformance.engines import faults
faults.dies = os.abort
faults.FAULTS[{name!r}][2](pytest.MonkeyPatch())
main()
"""


class InOrder(Server):
    """Requests reach the engine in their order, and none runs before all of a round have: how busy the machine is changes
    nothing."""

    def __init__(self, running: Running) -> None:
        super().__init__(running.url)
        self.worker = running.service.worker

    def generate(self, requests: tuple[Request, ...]) -> tuple[Answer, ...]:
        scheduler, turn = self.worker.scheduler, self.worker.turn
        begun, until = scheduler.count, time.monotonic() + PATIENCE

        def come(many: int) -> None:
            while scheduler.count - begun < many:
                assert time.monotonic() < until, f"{scheduler.count - begun} of {many} requests came in {PATIENCE} s"
                time.sleep(1e-3)

        def sent(n: int) -> Answer:
            come(n)
            return self._one(requests[n])

        def held() -> None:
            come(len(requests))
            turn()

        with pytest.MonkeyPatch.context() as mp, ThreadPoolExecutor(len(requests)) as pool:
            mp.setattr(self.worker, "turn", held)
            return fitting(requests, tuple(pool.map(sent, range(len(requests)))))


@contextmanager
def servers(folder: Path) -> Iterator[list[Running]]:
    """Two servers of one checkpoint: one that drafts from the text, as its requests choose, and a plain one."""
    with ExitStack() as open_ones:
        found = []
        for drafter in ({"lookup": "lookup", "ngram": "ngram"}, None):
            generator = Parts(folder, drafter, acceptance="naive", slots=2, cache=256, engine=Logged).load()
            found.append(open_ones.enter_context(serving(folder=folder, generator=generator)))
        yield found


def over_http(folder: Path, schedules: int, in_order: bool = False) -> judge.Found:
    with servers(folder) as (served, plain):
        opened, other = (opener(f"http:{one.url}", None) for one in (served, plain))
        if in_order:
            opened = lambda: InOrder(served)  # noqa: E731
        return cli.judged(opened, other, folder, {"plain": Options()}, True, (schedules, 0, 0), lambda *_: None, 0.5)


def test_our_server_is_judged_over_http_and_passes(tmp_path: Path) -> None:
    found = over_http(pair("mamba2", tmp_path)[0], 4)
    assert found.green, (found.failures, found.notes, found.counts)
    assert found.outcome("plain", "tokens") == found.outcome("plain", "log-probabilities") == "passed"
    for law in ("speculation", "batch", "stop", "drafts", "drafter", "log-probabilities kept"):
        assert found.outcome("served", law) == "passed"


class Overwritten(TapeRecorder):
    """Something else is written over the tokens of a recorded step, every third time, before they are read."""

    def __call__(self, run: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
        found, replay = super().__call__(run)
        times = count(1)

        def replayed() -> None:
            replay()
            if next(times) % 3 == 0:
                found[1].run.tokens.zero_()

        return found, replayed


@pytest.mark.parametrize(("recorder", "outcome"), [(TapeRecorder, "passed"), (Overwritten, "differs")])
def test_recorded_steps_of_our_engine_are_judged(recorder: type[TapeRecorder], outcome: str, tmp_path: Path) -> None:
    def opened() -> Direct:
        engine = Direct()
        engine.adapter.recorder = recorder
        return engine

    folder = pair("mamba2", tmp_path)[0]
    chosen = {"graphs": cli.configurations(None, cli.Tier.standard, "float32")["graphs"]}
    found = cli.judged(opened, None, folder, chosen, False, (3, 0, 0), lambda *_: None, 0.5)
    assert found.outcome("graphs", "graphs") == outcome, found.failures
    assert found.red == (outcome == "differs")


def test_our_engine_refuses_graphs_without_a_gpu(tmp_path: Path) -> None:
    with pytest.raises(EngineRefused, match="give --device cuda"):
        Direct().start(str(pair("mamba2", tmp_path)[0]), Options(graphs=True))


@pytest.mark.robust
@pytest.mark.parametrize(
    ("name", "law"),
    [
        ("drafts_all_counted_and_slot_0_overwritten", "speculation"),
        ("a_waiting_request_replaces_a_running_state", "batch"),
        ("no_drafts_are_as_many_as_by_default", "drafts"),
    ],
)
def test_a_fault_in_our_server_is_caught_over_http(
    name: str, law: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FAULTS[name][2](monkeypatch)
    found = over_http(pair("mamba2", tmp_path)[0], 25, in_order=True)
    assert "differs" in (found.outcome("served", one) for one in ("speculation", law)), found.failures
    assert law in (found.failures[0].law, *needed(found.failures[0].finding))
    assert found.failures[0].schedule


@pytest.mark.robust
@pytest.mark.parametrize(
    ("name", "law", "outcome", "needs"),
    [
        ("recurrent_drafter_aborts", "speculation", "died", 1),
        ("recurrent_drafter_not_rewound", "drafter followed", "differs", 1),
        ("a_waiting_request_replaces_a_running_state", "batch", "differs", 3),
    ],
)
def test_a_fault_in_our_program_is_caught_through_its_lines(
    name: str, law: str, outcome: str, needs: int, tmp_path: Path
) -> None:
    family, configuration, _ = FAULTS[name]
    path = tmp_path / "engine.py"
    path.write_text(PROGRAM.format(root=str(ROOT), name=name))
    target, drafter = pair(family, tmp_path)
    chosen = cli.configurations(drafter, cli.Tier.smoke, "float32", target.with_name(f"{family}-recurrent"))
    opened = opener(f"program:{sys.executable} {path}", None)
    one = {configuration: chosen[configuration]}
    found = cli.judged(opened, None, target, one, False, (150, 0, 0), lambda *_: None, 5.0)
    assert not found.green
    assert found.outcome(configuration, law) == outcome, found.failures
    assert sum(line.startswith("round") for line in found.failures[0].schedule) == needs, found.failures
