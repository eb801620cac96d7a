"""Run cases in several processes: each has its own reference and workers, and takes the next cases when it is free.

Cases that share expected values go to one process, which computes these once. Results are reported as they arrive; the report
has them in the order of the plan, so it does not depend on timing. Processes answer in JSON.
"""

import json
import pickle
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from multiprocessing.connection import Connection, Pipe
from queue import SimpleQueue
from typing import Any

from .. import errors
from ..errors import ConformanceError, RunBroken
from ..judge.verdict import Judgement
from ..progress.resume import key
from ..progress.shards import Judged, diagnosed, found
from ..report.stream import Diagnosis
from .open_adapters import Opening
from .plan import Job, Selection, plan
from .results import FailedCases, Setting
from .runner import Alone
from .worker import environment

START = (
    "import os, threading\n"
    "threading.Thread(target=lambda: os._exit(len(os.read({watch}, 1))), daemon=True).start()\n"
    "from conformance.run.pool import main\n"
    "main({end})\n"
)
"""If the parent has ended, this process ends at once, with its workers, even before it imports anything."""


class Member:
    """One process that runs cases, as seen by its parent. Requests are pickled and contain no part of an adapter."""

    def __init__(self, opening: Opening, selection: Selection, setting: Setting) -> None:
        self.end, far = Pipe()
        self.watch, watched = Pipe()
        self.child = subprocess.Popen(
            [sys.executable, "-P", "-c", START.format(watch=watched.fileno(), end=far.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=2,
            env=environment(),
            pass_fds=(far.fileno(), watched.fileno()),
        )
        far.close()
        watched.close()
        self.end.send_bytes(pickle.dumps((opening, selection, setting)))

    def ask(self, what: str, *given: Any) -> Any:
        """Call a function in the process. Raises: the ConformanceError raised there; RunBroken if the process ended."""
        try:
            self.end.send_bytes(pickle.dumps((what, given)))
            said = json.loads(self.end.recv_bytes())
        except (EOFError, OSError) as error:
            code = self.child.wait()
            how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
            raise RunBroken(f"a process of the suite {how}; --resume continues the run") from error
        if "refused" in said:
            name, told = said["refused"]
            raise getattr(errors, name, RunBroken)(told)
        return said["answer"]

    def close(self) -> None:
        """Ask the process to end, if it still listens."""
        try:
            self.end.send_bytes(b"")
        except OSError:
            self.child.kill()
        self.child.wait()
        self.end.close()
        self.watch.close()


class Pool:
    """`count` processes that run a plan. Use as a context manager: the processes end with it."""

    def __init__(self, count: int, opening: Opening, selection: Selection, setting: Setting) -> None:
        self.members = [Member(opening, selection, setting) for _ in range(count)]
        self.free: SimpleQueue[Member] = SimpleQueue()
        for member in self.members:
            self.free.put(member)
        self.threads = ThreadPoolExecutor(count)

    def _ask(self, what: str, *given: Any) -> Future[Any]:
        def ask() -> Any:
            member = self.free.get()
            try:
                return member.ask(what, *given)
            finally:
                self.free.put(member)

        return self.threads.submit(ask)

    def judged(self, jobs: Mapping[int, Job]) -> Iterator[tuple[int, Judgement, float]]:
        shared: dict[tuple[str, str], list[int]] = defaultdict(list)
        for number, job in jobs.items():
            shared[job.identity, str(job.capability.contract)].append(number)
        numbers = {key(job): number for number, job in jobs.items()}
        asked = [self._ask("judge", [key(jobs[n]) for n in group]) for group in shared.values()]
        try:
            for future in as_completed(asked):
                for one in map(Judged.of, future.result()):
                    yield numbers[one.key], one.judgement, one.seconds
        finally:  # of a run that stops early
            for future in asked:
                future.cancel()

    def diagnose(self, failures: list[FailedCases]) -> list[Diagnosis]:
        """Those of one kind go to one process, in order: each smallest case is a hint for the next."""
        kinds: dict[tuple[str, str], list[int]] = defaultdict(list)
        for number, one in enumerate(failures):
            kinds[one.kind].append(number)
        asked = {
            kind: self._ask("diagnose", [found(failures[number]) for number in numbers]) for kind, numbers in kinds.items()
        }
        made = {n: of for kind, numbers in kinds.items() for n, of in zip(numbers, asked[kind].result(), strict=True)}
        return [Diagnosis.model_validate(plain) for number in range(len(failures)) for plain in made[number]]

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        if kind is not None:  # do not wait for running cases
            for member in self.members:
                member.child.terminate()
        self.threads.shutdown(cancel_futures=True)
        for member in self.members:
            member.close()


def main(descriptor: int) -> None:
    """Serve one pool; the adapters to open and the selection are sent first."""
    end = Connection(descriptor)
    opening, selection, setting = pickle.loads(end.recv_bytes())
    try:
        with opening.open() as adapters:
            jobs, _ = plan(adapters, selection)
            serve(jobs, Alone(setting), end)
    except (KeyboardInterrupt, EOFError):  # the parent was interrupted too, and reports it
        return
    except ConformanceError as error:
        end.send_bytes(json.dumps({"refused": (type(error).__name__, str(error))}).encode())


def serve(jobs: list[Job], alone: Alone, end: Connection) -> None:
    """Answer requests until there are no more."""
    by_key = {key(job): job for job in jobs}
    tasks: dict[str, Callable[..., Any]] = {
        "judge": lambda keys: [Judged(k, *alone.judge(by_key[k])).plain() for k in keys],
        "diagnose": lambda failures: [[d.model_dump(mode="json") for d in of] for of in diagnosed(jobs, alone, failures)],
    }
    while question := end.recv_bytes():
        what, arguments = pickle.loads(question)
        try:
            said: dict[str, Any] = {"answer": tasks[what](*arguments)}
        except ConformanceError as error:
            said = {"refused": (type(error).__name__, str(error))}
        end.send_bytes(json.dumps(said).encode())
