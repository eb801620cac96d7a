"""The campaign's side of a cluster: tasks are submitted with a number, and answers return with it, in any order."""

import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from multiprocessing.connection import Pipe
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from .. import errors
from ..errors import ClusterUnavailable, ConformanceError, RunBroken, UnequalNodes
from ..progress import lines
from ..run.worker import environment
from .options import Share
from .shipping import digest, modules

TASKS = "tasks.jsonl"


@dataclass(frozen=True)
class Lost:
    """A task that was given up, and why. It never counts as an answer."""

    why: str


@dataclass(frozen=True)
class Broke:
    """A task in which the suite itself failed."""

    why: str


class Crew:
    """The workers of a cluster. Use as a context manager: its tasks end with it.

    `tell` receives status lines for people.
    Raises, in every method: ClusterUnavailable; RunBroken if the cluster disappears.
    """

    def __init__(self, share: Share, names: tuple[str, ...], tell: Callable[[str], None]) -> None:
        self.share, self.tell = share, tell
        self.noted: Path | None = None
        self.nodes = self.slots = 0
        self.versions: dict[str, str] = {}
        self.here = TemporaryDirectory()  # Ray has nodes look for modules in the driver's folder first
        self.end, far = Pipe()
        self.child = subprocess.Popen(
            [sys.executable, "-P", "-c", f"from conformance.on_ray.driver import main; main({far.fileno()})"],
            stdin=subprocess.DEVNULL,
            stdout=2,
            env=environment(),
            cwd=self.here.name,
            pass_fds=(far.fileno(),),
            start_new_session=True,
        )
        far.close()
        self._send(replace(share, ship=modules(names, share.ship)))

    def __enter__(self) -> "Crew":
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self.end.send_bytes(b"")
            self.child.wait(10)
        except (OSError, subprocess.TimeoutExpired):
            self.child.kill()
            self.child.wait()
        self.end.close()
        self.here.cleanup()

    def note(self, folder: Path, going_on: bool = False) -> None:
        """Record each task that ends from now on in a file: its tries, host, devices, versions and seconds."""
        self.noted = folder / TASKS
        if not going_on:
            self.noted.unlink(missing_ok=True)

    def submit(self, number: int, function: str, *given: Any) -> None:
        """Call `package.module:function` on a node."""
        self._send((number, function, given))

    def answer(self) -> tuple[int, Any]:
        """The number of a finished task, and its answer, `Lost` or `Broke`.

        Raises: the ConformanceError that a task raised; UnequalNodes.
        """
        while True:
            what, *said = self._receive()
            if what == "told":
                self.tell(*said)
            elif what == "nodes":
                self._count(*said)
            elif what == "refused":
                raise named(*said)
            elif what == "lost":
                return said[0], Lost(said[1])
            else:
                return self._done(*said)

    def ready(self) -> None:
        """Wait until the cluster has reported its nodes, before any task is submitted."""
        what, *said = self._receive()
        if what == "refused":
            raise named(*said)
        self._count(*said)

    def _count(self, nodes: int, slots: int) -> None:
        self.nodes, self.slots = nodes, slots
        self.tell(f"{nodes} nodes, {slots} tasks at a time")

    def answers(self, tasks: dict[int, tuple[Any, ...]]) -> Iterator[tuple[int, Any]]:
        """The answers of some tasks, in the order of arrival."""
        for number, task in tasks.items():
            self.submit(number, *task)
        for _ in tasks:
            yield self.answer()

    def _done(self, number: int, kind: str, said: Any, where: dict[str, Any], tries: int) -> tuple[int, Any]:
        if self.noted is not None:
            lines.append(self.noted, {"schema": lines.SCHEMA, "task": number, "ended": kind, "tries": tries, **where})
        if kind == "broke":
            return number, Broke(said)
        self._equal(where)
        if kind == "refused":
            raise named(*said)
        return number, said

    def _equal(self, where: dict[str, Any]) -> None:
        found = where["versions"]
        self.versions = self.versions or found
        first = self.versions
        if found["sources"] != digest():
            raise UnequalNodes(
                f"{where['host']} has another ssmspec installed than the one that was sent; uninstall it there"
            )
        names = [name for name in {**first, **found} if first.get(name) != found.get(name)]
        wrong = [f"{name} {found.get(name, 'absent')} beside {first.get(name, 'absent')}" for name in names]
        if wrong and not self.share.mixed:
            raise UnequalNodes(
                f"{where['host']} has other package versions than the first node: {', '.join(wrong)}; "
                "install the same on all nodes, or allow it with --ray-mixed"
            )

    def _send(self, message: Any) -> None:
        try:
            self.end.send_bytes(pickle.dumps(message))
        except OSError as error:
            raise self._gone() from error

    def _receive(self) -> Any:
        try:
            return pickle.loads(self.end.recv_bytes())
        except (EOFError, OSError) as error:
            raise self._gone() from error

    def _gone(self) -> ConformanceError:
        code = self.child.wait()
        if not self.nodes:
            told = f"no Ray cluster answers at {self.share.address}; start one with `ray start --head`"
            return ClusterUnavailable(f"{told}, or give the address of its head")
        how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return RunBroken(
            f"the Ray cluster at {self.share.address} is gone (its driver {how}); "
            "run the same command with --resume, and with --keep-passed if you trust the adapters"
        )


def named(name: str, text: str) -> ConformanceError:
    """An error raised in another process."""
    kind = getattr(errors, name, RunBroken)
    found: ConformanceError = kind(text)
    return found
