"""Several processes that judge: each has the reference and workers of its own, and takes the next cases when it is free.

Cases that share their expected values go to one process, which computes these once. What comes out is taken in the order of
the plan, so that a report does not depend on who was free first.
"""

import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

from . import worker
from .judge import Judgement
from .opening import Opening
from .plan import Job, Selection, plan
from .report import Diagnosis, Result
from .run import Alone, Setting, Way

Found = list[tuple[int, Judgement, Result]]
"""A way of failing, its cases by number."""


class Member:
    """One process that judges, seen from the one that asks."""

    def __init__(self, opening: Opening, selection: Selection, setting: Setting) -> None:
        self.child = subprocess.Popen(
            [sys.executable, "-P", "-c", "from conformance.pool import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=worker.environment(),
        )
        worker.send(self.child.stdin, (opening, selection, setting))  # type: ignore[arg-type]

    def ask(self, what: str, *given: Any) -> Any:
        """Raises: what the process raised; EOFError where it ended."""
        worker.send(self.child.stdin, (what, given))  # type: ignore[arg-type]
        said = worker.receive(self.child.stdout)  # type: ignore[arg-type]
        if isinstance(said, BaseException):
            raise said
        return said

    def close(self) -> None:
        for stream in (self.child.stdin, self.child.stdout):
            stream.close()  # type: ignore[union-attr]
        self.child.wait()


class Pool:
    """`count` members that judge a plan. Use as a context: its processes end with it."""

    def __init__(self, count: int, opening: Opening, selection: Selection, setting: Setting, jobs: list[Job]) -> None:
        self.members = [Member(opening, selection, setting) for _ in range(count)]
        self.free: SimpleQueue[Member] = SimpleQueue()
        for member in self.members:
            self.free.put(member)
        self.threads = ThreadPoolExecutor(count)
        self.number = {id(job): number for number, job in enumerate(jobs)}
        shared: dict[tuple[str, str], list[int]] = defaultdict(list)
        for number, job in enumerate(jobs):
            shared[job.identity, str(job.capability.contract)].append(number)
        self.judged: dict[int, tuple[Future[list[tuple[Judgement, float]]], int]] = {}
        for numbers in shared.values():
            future = self._ask("judge", numbers)
            self.judged |= {number: (future, place) for place, number in enumerate(numbers)}

    def _ask(self, what: str, *given: Any) -> Future[Any]:
        def ask() -> Any:
            member = self.free.get()
            try:
                return member.ask(what, *given)
            finally:
                self.free.put(member)

        return self.threads.submit(ask)

    def judge(self, job: Job) -> tuple[Judgement, float]:
        future, place = self.judged[self.number[id(job)]]
        return future.result()[place]

    def diagnose(self, ways: list[Way]) -> list[Diagnosis]:
        """Those of one kind go to one process, in order: the smallest case of one is a hint for the next."""
        kinds: dict[tuple[str, str], list[int]] = defaultdict(list)
        for number, way in enumerate(ways):
            kinds[way.kind].append(number)
        asked = {
            kind: self._ask("diagnose", [self._plain(ways[number]) for number in numbers]) for kind, numbers in kinds.items()
        }
        made = {n: d for kind, numbers in kinds.items() for n, d in zip(numbers, asked[kind].result(), strict=True)}
        return [made[number] for number in range(len(ways))]

    def _plain(self, way: Way) -> tuple[Found, int]:
        return [(self.number[id(job)], judgement, result) for job, judgement, result in way.found], way.cases

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *error: object) -> None:
        self.threads.shutdown(cancel_futures=True)
        for member in self.members:
            member.close()


def main() -> None:
    """Serve one pool: what to open and what to select come first."""
    given, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    opening, selection, setting = worker.receive(given)
    try:
        with opening.open() as adapters:
            jobs, _ = plan(adapters, selection)
            serve(jobs, Alone(setting), given, answers)
    except KeyboardInterrupt:  # the process that asked was interrupted too, and tells it
        return


def serve(jobs: list[Job], alone: Alone, given: Any, answers: Any) -> None:
    """Answer until nothing more is asked."""
    tasks: dict[str, Callable[..., Any]] = {
        "judge": lambda numbers: [alone.judge(jobs[number]) for number in numbers],
        "diagnose": lambda ways: alone.diagnose([_way(jobs, *way) for way in ways]),
    }
    while True:
        try:
            what, arguments = worker.receive(given)
        except EOFError:
            return
        try:
            said = tasks[what](*arguments)
        except Exception as error:  # it is raised where it was asked
            said = error
        worker.send(answers, said)


def _way(jobs: list[Job], found: Iterable[tuple[int, Judgement, Result]], cases: int) -> Way:
    return Way([(jobs[number], judgement, result) for number, judgement, result in found], cases)
