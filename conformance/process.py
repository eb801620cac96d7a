"""An adapter in a process of its own, seen from the one that judges: calls with a limit of time, a new worker after a loss.

What hangs is ended, what ended is told from how it did, and the next case finds a new worker. The reference and the expected
values stay on this side.
"""

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ssmspec_ref.contract import Adapter, Capability

from . import worker
from .bench import Answer
from .errors import AdapterUnavailable, ConformanceError
from .suite import SPECIFICATIONS
from .suite.specification import Arguments, Specification

TIMEOUT = 120.0
"""Seconds for one call: twenty times the slowest of the standard tier in Triton's interpreter on a core of its own, and more
than the compiler needs for a kernel that no case has called before."""
LOADING = 300.0
"""Seconds until an adapter is imported and has said what it declares."""
LEAVING = 5.0
"""Seconds that a worker has to end after its last case."""
PATIENCE = 3
"""Cases of one operation that may hang before the others of that operation are not tried."""


def _number(specification: Specification) -> int:
    return next(number for number, known in enumerate(SPECIFICATIONS) if known is specification)


class Elsewhere:
    """Stands for the function of a capability: one of the functions of another process."""

    def __init__(self, bench: "Process", subject: int, operation: str) -> None:
        self.bench, self.subject, self.operation = bench, subject, operation

    def __call__(self, *arguments: Any) -> Any:
        raise TypeError("this function lies in another process; call it through its bench")


class Process:
    """A worker with one adapter. `adapter` is what it declares; each of its functions is `Elsewhere`.

    Raises: what loading the adapter raises; AdapterUnavailable where the process ends instead.
    """

    def __init__(self, name: str, device: str = "cpu", timeout: float = TIMEOUT) -> None:
        self.name, self.device, self.timeout = name, device, timeout
        self.hung: Counter[tuple[int, str]] = Counter()
        self.child: subprocess.Popen[bytes] | None = None
        self.late = False
        self.adapter = self._placed(self._start())

    def _start(self) -> Adapter:
        loading = max(LOADING, self.timeout)
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the worker
        self.child = subprocess.Popen(
            [sys.executable, "-P", "-c", "from conformance.worker import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env=worker.environment(),
            start_new_session=True,
        )
        try:
            self._send((self.name, self.device))
            said = self._receive(loading)
        except (EOFError, OSError) as error:
            how = f"took more than {loading:g} s; --timeout gives more" if self.late else self._ended()
            self.close()
            raise AdapterUnavailable(f"{self.name}: the process that loads it {how}") from error
        if isinstance(said, ConformanceError):
            self.close()
            raise said
        adapter: Adapter = said
        return adapter

    def _placed(self, adapter: Adapter) -> Adapter:
        subjects = tuple(
            replace(s, capabilities={n: replace(c, run=Elsewhere(self, at, n)) for n, c in s.capabilities.items()})
            for at, s in enumerate(adapter.subjects)
        )
        return replace(adapter, subjects=subjects)

    def start(
        self, specification: Specification, capability: Capability, arguments: Arguments, gaps: bool, again: bool
    ) -> Callable[[], Answer]:
        run: Elsewhere = capability.run  # type: ignore[assignment]
        key = run.subject, run.operation
        if self.hung[key] >= PATIENCE:
            told = f"not tried: {PATIENCE} cases of this operation gave no answer"
            return lambda: Answer(failed="timeout", said=told)
        try:
            if self.child is None:
                self._start()
            self._send((*key, _number(specification), arguments, gaps, again))
        except AdapterUnavailable as error:
            told = f"the worker could not be started again: {error}"
            return lambda: Answer(failed="crash", said=told)
        except OSError:
            return lambda: self._lost(key)
        return lambda: self._answer(key)

    def _answer(self, key: tuple[int, str]) -> Answer:
        try:
            answer: Answer = self._receive(self.timeout)
        except (EOFError, OSError):
            return self._lost(key)
        return answer

    def _lost(self, key: tuple[int, str]) -> Answer:
        """What became of a worker that gave no answer."""
        if self.late:
            self.hung[key] += 1
            said = f"no answer within {self.timeout:g} s, so the worker was ended; --timeout gives more"
            answer = Answer(failed="timeout", said=said)
        else:
            answer = Answer(failed="crash", said=f"the process {self._ended()}")
        self.close()
        return answer

    def _send(self, message: Any) -> None:
        assert self.child is not None
        worker.send(self.child.stdin, message)  # type: ignore[arg-type]

    def _receive(self, seconds: float) -> Any:
        """The next message; a worker that takes longer is ended, so that its output ends too."""
        assert self.child is not None
        self.late = False
        timer = threading.Timer(seconds, self._end)
        timer.start()
        try:
            return worker.receive(self.child.stdout)  # type: ignore[arg-type]
        finally:
            timer.cancel()

    def _end(self) -> None:
        self.late = True
        self._kill()

    def _kill(self) -> None:
        """End the worker and whatever it started."""
        assert self.child is not None
        try:
            os.killpg(self.child.pid, signal.SIGKILL)
        except (AttributeError, ProcessLookupError, PermissionError):
            self.child.kill()

    def _ended(self) -> str:
        """How the worker ended, and the last that it said."""
        assert self.child is not None
        try:
            code = self.child.wait(timeout=10)
        except subprocess.TimeoutExpired:
            return "closed its output"
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        said = self._said()
        return f"{how} | {said}" if said else how

    def _said(self) -> str:
        """The last line on the standard error; of a crash the two innermost Python lines."""
        self.errors.seek(0)
        lines = [line.strip() for line in self.errors.read().decode(errors="replace").splitlines() if line.strip()]
        places = [line.replace(chr(92), "/").rpartition("/")[2] for line in lines if line.startswith('File "')]
        if places and any(line.startswith("Fatal Python error") for line in lines):
            return " < ".join(places[:2]).replace('", line ', ":")
        return lines[-1][:500] if lines else ""

    def close(self) -> None:
        """End the worker, of its own accord where it listens; the next call starts another."""
        if self.child is None:
            return
        try:
            self.child.stdin.close()  # type: ignore[union-attr]
            self.child.wait(timeout=0 if self.late else LEAVING)
        except (OSError, subprocess.TimeoutExpired):
            self._kill()
        self.child.wait()
        for stream in (self.child.stdin, self.child.stdout, self.errors):
            try:
                stream.close()  # type: ignore[union-attr]
            except OSError:  # what was not yet written has no reader
                continue
        self.child = None
