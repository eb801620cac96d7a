"""An adapter in its own process, as seen by the judge: calls with limits of time and memory, and a new worker after a
failure.

A worker that hangs is ended, one that ended is described by its exit status, and the next case gets a new worker, as after
one that lost its GPU. The reference and the expected values stay in this process. Data from the worker are bytes
(`isolation.encoding`) and text that is sanitised here.
"""

import os
import signal
import socket
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np

from ssmspec_ref.contract import Adapter, Capability
from ssmspec_ref.options.memory import GIB

from .. import errors
from ..errors import AdapterUnavailable, ConformanceError, Garbled
from ..isolation import memory, warden
from ..isolation.declared import declared
from ..isolation.encoding import MESSAGE, decode, encode
from ..isolation.guarded import Guarded
from ..isolation.spent import SPENT
from ..isolation.text import clean, name
from ..judge.raised import REFUSED
from ..suite import SPECIFICATIONS
from ..suite.called import Arguments, Came
from ..suite.specification import Specification
from .calls import Answer, Foreign
from .worker import environment

TIMEOUT = 120.0
"""Time limit of one call in seconds: twenty times the slowest of the standard tier in Triton's interpreter on one core, and
more than the compiler needs for a new kernel."""
LOADING = 300.0
"""Seconds until an adapter must be imported and have sent its declaration."""
LEAVING = 5.0
"""Seconds for a worker to exit after its last case."""
PATIENCE = 3
"""Cases of one operation that may hang before the remaining cases of that operation are skipped."""
START = (
    "from conformance.isolation.warden import main\n"
    "def work(line):\n"
    "    from conformance.run.worker import main\n"
    "    main(line)\n"
    "main({watch}, {line}, {memory}, work)\n"
)
FAILINGS = ("", "error", REFUSED, "printed", "overwritten", "unjudged")
"""Failures that a worker may report itself; all others are detected here."""


def _number(specification: Specification) -> int:
    """The index of a specification; one whose reference is limited in time is sent as the whole one."""

    def same(known: Specification) -> bool:
        return known is specification or (
            known.operation == specification.operation
            and known.fixed == specification.fixed
            and known.draw is specification.draw
        )

    return next(number for number, known in enumerate(SPECIFICATIONS) if same(known))


class Elsewhere:
    """A placeholder for a capability's function: one of the functions of another process."""

    def __init__(self, bench: "Process", subject: int, operation: str) -> None:
        self.bench, self.subject, self.operation = bench, subject, operation

    def __call__(self, *arguments: Any) -> Any:
        raise TypeError("this function is in another process; call it through its bench")


class Child(Guarded):
    """One worker and its warden: its messages, and why it was ended.

    Raises: AdapterUnavailable on systems without the needed process isolation.
    """

    def __init__(self, limit: int) -> None:
        if os.name != "posix":
            raise AdapterUnavailable("adapters run in their own process on Linux and macOS only; give --in-process")
        super().__init__(START, limit, environment(), stdin=subprocess.DEVNULL)
        self.late = False
        self.answers = Connection(os.dup(self.line.fileno()))
        self.gone = os.pidfd_open(self.process.pid) if hasattr(os, "pidfd_open") else -1

    @contextmanager
    def timed(self, seconds: float) -> Iterator[None]:
        """Ends every wait for this worker after a number of seconds, whichever process holds the other end."""
        timer = threading.Timer(seconds, self._overdue)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def asked(self, message: Any, seconds: float) -> Any:
        """The answer to a message. Raises: as `send` and `receive`."""
        with self.timed(seconds):
            self.send(message)
            return self.receive()

    def send(self, message: Any) -> None:
        """Send a message. Raises: OSError if nobody reads it; Garbled if an unexpected message arrived."""
        if self.answers.poll(0):
            self.receive()
            raise Garbled("it sent an answer that was not asked for")
        self.answers.send_bytes(encode(message))

    def receive(self) -> Any:
        """Receive a message. Raises: EOFError or OSError if the worker has ended; Garbled for an invalid message."""
        try:
            if self.gone >= 0 and self.answers not in wait([self.answers, self.gone]):
                raise EOFError
            return decode(self.answers.recv_bytes(MESSAGE))
        except OSError as error:
            if self.late or isinstance(error, ConnectionError):
                raise
            raise Garbled("it wrote something that is not a message to the pipe of answers") from error

    def _overdue(self) -> None:
        self.late = True
        with suppress(OSError):
            self.line.shutdown(socket.SHUT_RDWR)

    def end(self, seconds: float = 0.0) -> bytes:
        """As `Guarded.end`; the worker learns that no more calls follow."""
        with suppress(OSError):
            self.line.shutdown(socket.SHUT_RDWR)
        return super().end(seconds)

    def ended(self) -> str:
        """How the worker ended, and its last output."""
        code = self.process.returncode
        if code is None or not self.alone:
            return "stopped answering and was killed"
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        said = self._said()
        return f"{how} | {said}" if said else how

    def _said(self) -> str:
        """The last line on standard error; for a crash the two innermost Python lines."""
        lines = self.last()
        places = [line.replace(chr(92), "/").rpartition("/")[2] for line in lines if line.startswith('File "')]
        if places and any(line.startswith("Fatal Python error") for line in lines):
            return clean(" < ".join(places[:2]).replace('", line ', ":"))
        return clean(lines[-1], 500) if lines else ""

    def close(self, *more: Any) -> None:
        super().close(self.answers, *more)
        if self.gone >= 0:
            os.close(self.gone)


class Process:
    """A worker with one adapter. `adapter` is its declaration; each of its functions is `Elsewhere`. `versions` are those of
    the packages that the worker has imported. `limit` is in bytes, for the worker and all processes that it starts.

    Raises: what loading the adapter raises; AdapterUnavailable if the process ends instead.
    """

    def __init__(self, name: str, device: str = "cpu", timeout: float = TIMEOUT, limit: int | None = None) -> None:
        self.name, self.device, self.timeout = name, device, timeout
        self.limit = memory.allowed() if limit is None else limit
        self.hung: Counter[tuple[int, str]] = Counter()
        self.child: Child | None = None
        self.asked = 0
        self.versions: dict[str, str] = {}
        self.adapter = self._start()

    def _start(self) -> Adapter:
        loading = max(LOADING, self.timeout)
        self.child = child = Child(self.limit)
        try:
            said = child.asked((self.name, self.device), loading)
            if "refused" in said:
                raise _refusal(*said["refused"])
            self.versions = {name(package): name(version) for package, version in said["versions"].items()}
            return declared(said["declared"], lambda subject, operation: Elsewhere(self, subject, operation))
        except (EOFError, OSError) as error:
            lost = self._lost()
            how = f"took more than {loading:g} s; raise --timeout" if child.late else lost.said.removeprefix("the process ")
            raise AdapterUnavailable(f"{self.name}: the process that loads it {how}") from error
        except (KeyError, TypeError, AttributeError, ValueError, Garbled) as error:
            self.close()
            raise AdapterUnavailable(f"{self.name}: the process that loads it sent an unreadable message: {error}") from error
        except BaseException:
            self.close()
            raise

    def start(
        self, specification: Specification, capability: Capability, arguments: Arguments, gaps: bool, again: bool
    ) -> Callable[[], Answer]:
        run: Elsewhere = capability.run  # type: ignore[assignment]
        key = run.subject, run.operation
        if self.hung[key] >= PATIENCE:
            told = f"not run: {PATIENCE} cases of this operation gave no answer"
            return lambda: Answer(failed="timeout", said=told)
        try:
            if self.child is None:
                self._start()
        except ConformanceError as error:
            told = f"the worker could not be started again: {error}"
            return lambda: Answer(failed="crash", said=told)
        assert self.child is not None
        child, self.asked = self.child, self.asked + 1
        try:
            with child.timed(self.timeout):
                child.send((self.asked, *key, _number(specification), arguments, gaps, again))
        except (EOFError, OSError, Garbled) as error:
            lost = self._lost(key, error)
            return lambda: lost
        return lambda: self._answer(key, child)

    def _answer(self, key: tuple[int, str], child: Child) -> Answer:
        try:
            with child.timed(self.timeout):
                said = child.receive()
                came = answer(said, self.asked)
            SPENT.add(came.spent)
            if said.get("last") is True:  # it can run no other case
                self.close()
            return came
        except (EOFError, OSError, Garbled) as error:
            return self._lost(key, error)

    def _lost(self, key: tuple[int, str] | None = None, error: Exception | None = None) -> Answer:
        """The result of a call whose worker gave no answer."""
        assert self.child is not None
        child, self.child = self.child, None
        garbled = isinstance(error, Garbled) and not child.late
        told = child.end(0.0 if garbled or child.late else LEAVING)
        if warden.MEMORY in told:
            most = f"{self.limit / GIB:.3g} GiB"
            lost = Answer(failed="memory", said=f"the process and what it started used more than {most}; raise --memory")
        elif warden.PROCESSES in told:
            lost = Answer(failed="crash", said=f"the process started more than {warden.MOST} processes and was killed")
        elif garbled:
            lost = Answer(failed="garbled", said=f"the worker was killed: {error}")
        elif child.late:
            said = f"no answer within {self.timeout:g} s, so the worker was killed; raise --timeout"
            lost = Answer(failed="timeout", said=said)
        else:
            lost = Answer(failed="crash", said=f"the process {child.ended()}")
        if child.late:  # nobody can say how much of it was work
            SPENT.add(self.timeout)
        if key and lost.failed in ("timeout", "memory"):
            self.hung[key] += 1
        child.close()
        return lost

    def close(self) -> None:
        """End the worker, gracefully if it listens; the next call starts another."""
        if self.child is not None:
            child, self.child = self.child, None
            child.end(0.0 if child.late else LEAVING)
            child.close()


def answer(said: Any, number: int) -> Answer:
    """Check a worker's answer to a question. Raises: Garbled."""
    try:
        if said["number"] != number:
            raise Garbled("it sent an answer to another question")
        outputs, used = tuple(map(_output, said["outputs"])), said["used"]
        used = _output(used) if isinstance(used, dict) else used
        if said["failed"] not in FAILINGS or type(said["written"]) is not bool:
            raise Garbled("it sent an answer with a field of the wrong type")
        if type(said["spent"]) is not float or not 0 <= said["spent"] < float("inf"):
            raise Garbled("it sent seconds of work that are not a number of seconds")
        came = Came(outputs, used, _drafts(said["drafts"]), _changed(said["changed"], len(outputs)))
        return Answer(came, said["written"], said["failed"], clean(said["said"]), name(said["place"]), said["spent"])
    except (KeyError, TypeError) as error:
        raise Garbled(f"it sent an answer without a field: {clean(str(error), 100)}") from error


def _output(came: Any) -> Any:
    """An array, or a description of another object."""
    if isinstance(came, np.ndarray):
        return came
    return Foreign(name(came["kind"]), name(came["dtype"]), name(came["device"]))


def _drafts(came: Any) -> tuple[int, int] | None:
    """How many drafts were proposed and accepted. Raises: Garbled."""
    if came is None:
        return None
    if not (isinstance(came, tuple) and [type(count) for count in came] == [int, int]):
        raise Garbled("it sent counts of drafts that are not two whole numbers")
    return came


def _changed(came: Any, outputs: int) -> tuple[int, ...]:
    """The numbers of the outputs that later calls changed. Raises: Garbled."""
    if not (isinstance(came, tuple) and all(type(number) is int and 0 <= number < outputs for number in came)):
        raise Garbled("it sent numbers of changed outputs that are not numbers of outputs")
    return came


def _refusal(kind: str, said: str) -> ConformanceError:
    """The error that a worker reported, by its name."""
    found = getattr(errors, kind, None) if isinstance(kind, str) else None
    if isinstance(found, type) and issubclass(found, ConformanceError):
        return found(clean(said))
    return AdapterUnavailable(clean(said))
