"""The limits of searches: they count the work of judge and implementation, so a busy machine reports the same."""

import ast
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import conformance
from conformance.isolation import spent
from conformance.isolation.encoding import decode, encode
from conformance.isolation.spent import SPENT, Account, Used, used_by, used_here, worked
from conformance.judge.clock import Clock
from conformance.run import worker as worker_module
from conformance.run.plan import Selection, plan
from conformance.run.process import Process, _number
from ssmspec_ref import ssd
from ssmspec_ref.contract import Adapter, Capability, Limits, NumericContract, Subject

from .judging import outcome

HERE = Path(conformance.__file__).parent
ENGINES = ("engines/judge/smallest.py", "engines/judge/attempts.py", "engines/schedules.py")
SEARCHES = ("judge", "diagnose", "run/causes.py", *ENGINES)
"""Code that looks for a smallest case or a cause."""
WALL = {"monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "time", "time_ns"}
"""Functions of `time` that read a clock on the wall."""
linux = pytest.mark.skipif(sys.platform != "linux", reason="/proc says how long a process waited for a processor")


def readings(source: str) -> list[str]:
    """Where code reads a clock on the wall."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "time" and node.attr in WALL:
            found.append(f"line {node.lineno}: time.{node.attr}")
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            found += [f"line {node.lineno}: {one.name}" for one in node.names if one.name in WALL]
    return found


def test_no_search_reads_a_clock_on_the_wall() -> None:
    every = [HERE / name for name in SEARCHES]
    files = [file for one in every for file in (sorted(one.rglob("*.py")) if one.is_dir() else [one])]
    assert len(files) > 40
    assert {str(file): told for file in files if (told := readings(file.read_text()))} == {}


@pytest.mark.parametrize("planted", ["import time\nuntil = time.monotonic() + 30", "from time import perf_counter as now"])
def test_a_search_that_reads_a_clock_on_the_wall_is_seen(planted: str) -> None:
    assert readings(planted)
    assert not readings("import time\nspent = time.process_time()")


def step(S: Any, token: Any, params: Any) -> Any:
    y, after = ssd.step(S, token, params)
    return (1.25 * y).astype(np.float32), after.astype(np.float32)


def told() -> tuple[str, dict[str, str]]:
    """The smallest case of a failure, and what explains it."""
    takes = Limits({"D": ("off",), "z": ("off",), "dt_bias": ("off",), "dt_limit": ("off",)})
    (found,) = outcome({"ssd.step": Capability(step, NumericContract(), takes)}, operation="ssd.step").diagnoses
    return found.smallest, found.facts


def test_a_busy_machine_reports_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load is simulated: between two looks at a clock on the wall an hour passes."""
    idle = told()
    wall = itertools.count(0, 3600)
    for name in ("monotonic", "perf_counter", "time"):
        monkeypatch.setattr(time, name, lambda: float(next(wall)))
    assert told() == idle
    assert idle[0].startswith("ssd.step/b1,g1,h1,p1,n1/")
    assert "behaves" in idle[1]
    assert "ended after" not in idle[1].get("limits", "")


def test_a_search_ends_after_seconds_of_work_wherever_they_were_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(30)
    assert not clock.ended
    monkeypatch.setattr(time, "process_time", lambda own=time.process_time: own() + 20)
    assert not clock.ended
    SPENT.add(11)  # of a worker
    assert clock.ended
    assert clock.says("several bugs") == ["the search for several bugs ended after 30 s of processor time"]


@pytest.mark.parametrize(
    ("processor", "waiting", "wall", "seconds"),
    [
        (2.0, 0.0, 2.0, 2.0),  # an idle machine
        (2.0, 48.0, 50.0, 2.0),  # a busy one
        (0.0, 0.0, 5.0, 5.0),  # it sleeps, or waits for another machine
        (0.5, 10.0, 15.0, 5.0),  # both
        (6.0, 0.0, 2.0, 6.0),  # several processes at once
        (2.0, None, 50.0, 2.0),  # a system that does not say how long a process waits
    ],
)
def test_work_is_what_would_have_passed_on_an_idle_machine(
    processor: float, waiting: float | None, wall: float, seconds: float
) -> None:
    before = Used(7.0, None if waiting is None else 3.0)
    after = Used(7.0 + processor, None if waiting is None else 3.0 + waiting)
    assert worked(before, after, wall) == pytest.approx(seconds)


def burn(seconds: float) -> None:
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass


@contextmanager
def busy(many: int) -> Iterator[list["subprocess.Popen[bytes]"]]:
    """Loops that use a processor each."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(many)]
    try:
        yield loops
    finally:
        for one in loops:
            one.kill()
            one.wait()


@pytest.fixture
def crowd() -> Iterator[None]:
    """Four busy loops on the processor of this process."""
    own = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(own)})
    try:
        with busy(4):
            time.sleep(0.5)
            yield
    finally:
        os.sched_setaffinity(0, own)


@linux
@pytest.mark.usefixtures("crowd")
def test_waiting_for_a_processor_is_not_work() -> None:
    before, began = spent.Used(time.process_time(), spent._waiting([os.getpid()])), time.monotonic()
    burn(0.4)
    wall = time.monotonic() - began
    after = spent.Used(time.process_time(), spent._waiting([os.getpid()]))
    assert wall > 0.8
    assert 0.4 <= worked(before, after, wall) < 0.5 * wall + 0.2


@linux
def test_the_work_of_what_a_process_starts_is_its_own() -> None:
    with busy(1) as (child,):
        before = used_here()
        while used_by(child.pid).processor < 0.3:
            time.sleep(0.02)
        assert used_here().processor - before.processor > 0.15
    assert used_here().processor - before.processor > 0.15  # also when it has ended


def test_the_time_to_an_answer_of_a_server_elsewhere_counts() -> None:
    account = Account()
    with account.exchange(None):
        time.sleep(0.1)
    assert account.called >= 0.1


ADAPTER = """
import subprocess, sys, time
import numpy as np
from ssmspec_ref import ssd
from ssmspec_ref.contract import Adapter, Capability, NumericContract, Subject

def step(before):
    def run(S, token, params):
        before()
        y, after = ssd.step(S, token, params)
        return y.astype(np.float32), after.astype(np.float32)
    return run

def burns():
    until = time.process_time() + 0.3
    while time.process_time() < until: pass

BURN = "import time\\nwhile time.process_time() < 0.3: pass"
WAYS = {
    "nothing": lambda: None, "burns": burns, "sleeps": lambda: time.sleep(0.3), "hangs": lambda: time.sleep(600),
    "starts": lambda: subprocess.run([sys.executable, "-c", BURN], check=True),
}

def adapter():
    return Adapter("w", "1", tuple(Subject(n, {"ssd.step": Capability(step(f), NumericContract())}) for n, f in WAYS.items()))
"""


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    folder = tmp_path_factory.mktemp("adapter")
    (folder / "adapter_that_works.py").write_text(ADAPTER)
    sys.path.insert(0, str(folder))
    process = Process("adapter_that_works:adapter", timeout=20.0)
    yield process
    process.close()
    sys.path.remove(str(folder))


def called(worker: Process, subject: str) -> float:
    """The seconds that one call adds to the account of this process."""
    job = plan({"x": worker.adapter}, Selection(subject=subject))[0][0]
    arguments = job.specification.draw(job.case, job.capability.contract)
    before = SPENT.called
    worker.start(job.specification, job.capability, arguments, False, False)()
    return SPENT.called - before


def test_the_work_of_a_call_comes_with_its_answer(worker: Process) -> None:
    called(worker, "nothing")
    assert 0 < called(worker, "nothing") < 0.25
    assert called(worker, "burns") >= 0.3


@linux
def test_a_worker_that_sleeps_or_lets_others_work_is_counted(worker: Process) -> None:
    assert called(worker, "sleeps") >= 0.25
    assert called(worker, "starts") >= 0.25


class Between:
    """A connection of a worker that waits ten seconds for a processor before each message, none of them in its calls."""

    def __init__(self, *messages: Any) -> None:
        self.left, self.waited, self.answers = [encode(one) for one in messages], 0.0, list[Any]()

    def recv_bytes(self) -> bytes:
        self.waited += 10.0
        if not self.left:
            raise EOFError
        return self.left.pop(0)

    def send_bytes(self, answer: bytes) -> None:
        self.answers.append(decode(answer))


class Silent:
    def taken(self) -> str:
        return ""


def test_what_a_worker_waits_between_its_calls_is_not_taken_from_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(S: Any, token: Any, params: Any) -> Any:
        time.sleep(0.02)
        return ssd.step(S, token, params)

    adapter = Adapter("w", "1", (Subject("sleeps", {"ssd.step": Capability(step, NumericContract())}),))
    job = plan({"x": adapter}, Selection())[0][0]
    arguments = job.specification.draw(job.case, job.capability.contract)
    one = (0, "ssd.step", _number(job.specification), arguments, False, False)
    end: Any = Between((1, *one), (2, *one))
    printed: Any = Silent()
    monkeypatch.setattr(worker_module, "used_here", lambda: Used(0.0, end.waited))
    worker_module.serve(adapter, end, printed)
    assert [answer["failed"] for answer in end.answers] == ["", ""]
    assert all(answer["spent"] >= 0.02 for answer in end.answers)


def test_a_call_without_an_answer_is_ended_by_the_clock_on_the_wall_and_counts_in_full(worker: Process) -> None:
    """It may use no processor time at all."""
    worker.timeout = 1.0
    began = time.monotonic()
    try:
        assert called(worker, "hangs") == 1.0
    finally:
        worker.timeout = 20.0
    assert time.monotonic() - began < 15
