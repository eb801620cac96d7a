"""Tasks in several processes: each once, in order, with a GPU of its own, and one that breaks leaves the others."""

import os
import time
from operator import itemgetter

import pytest

from perf_gates.losslessness import workers
from perf_gates.losslessness.workers import Failed, Worker, spread

from ..some_tasks import Tasks


def test_tasks_go_to_processes_in_order_and_what_breaks_one_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(workers.VISIBLE, "as it was")
    tasks = ["first", "needs first", "raises", "dies", "breaks", "last"]
    needed = {"needs first": "first"}
    found = dict(spread(tasks, Tasks, 2, needed.get, float("inf"), ["0", "1"]))
    assert set(found) == set(tasks)
    assert list(found).index("first") < list(found).index("needs first")
    assert {found["first"], found["last"]} <= {f"{task} {gpu}" for task in ("first", "last") for gpu in "01"}
    assert found["raises"] == Failed("ValueError: as planted")
    assert found["breaks"] == Failed("RuntimeError: GPU gone", broken=True)
    assert found["dies"] == Failed("its process ended with 3", broken=True)
    assert os.environ[workers.VISIBLE] == "as it was"


def test_a_process_stays_with_one_kin_and_then_helps_where_the_fewest_work() -> None:
    tasks = ["a1", "b1", "c1", "a2", "b2", "a3"]
    idle, *others = [Worker(None, None, 0, kin=kin) for kin in (None, "a", "b", "b")]  # type: ignore[arg-type]
    kin = itemgetter(0)
    assert workers.chosen(others[1], tasks, [idle, *others], kin) == "b1"
    assert workers.chosen(idle, tasks, [idle, *others], kin) == "c1"
    assert workers.chosen(idle, ["b1", "a2", "a3"], [idle, *others], kin) == "a2"
    assert workers.chosen(others[0], ["b1", "c1"], [idle, *others], kin) == "c1"
    assert workers.chosen(others[0], tasks[1:], [idle, *others], workers.alike) == "b1"


def test_what_runs_when_the_time_is_over_is_ended_and_nothing_starts_then() -> None:
    began = time.monotonic()
    assert list(spread(["long", "first"], Tasks, 1, lambda _: None, began + 1)) == []
    assert time.monotonic() - began < 30
