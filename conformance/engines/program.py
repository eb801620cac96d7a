"""An engine as a program: JSON lines on its standard input and output, run by a supervisor that enforces its limits.

The engine inherits no Python settings of the suite: no PYTHONPATH, no virtual environment, no pip constraints. Its
standard error is kept, and the last line of it is shown if the engine dies.
"""

import json
import os
import selectors
import shlex
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any, TypeVar, Union

from pydantic import TypeAdapter, ValidationError

from ssmspec_ref.options.memory import GIB

from ..isolation import memory, warden
from ..isolation.guarded import Guarded
from ..isolation.spent import SPENT
from ..isolation.text import clean
from .errors import EngineDied, EngineFailed, EngineRefused
from .protocol import Answer, Answers, Failed, Generate, Line, Options, Refused, Request, Start, Started, Stop

L = TypeVar("L", bound=Line)
STARTING, ANSWERING, LEAVING = 300.0, 120.0, 3.0
"""Time limits in seconds: to start, to answer, to exit."""
LONGEST = 1 << 24
"""Largest answer, in bytes."""
WORK = (
    "import os, sys\n"
    "from conformance.isolation.warden import main\n"
    "def work(line):\n"
    "    os.environ.pop('PYTHONPATH', None)\n"
    "    os.execvp({words}[0], {words})\n"
    "main({watch}, {line}, {memory}, work)\n"
)
HIDDEN = ("PIP_", "PYTHON", "VIRTUAL_ENV", "CONDA", "TOX", "SSMSPEC")


class Program:
    """A running engine; one that starts `once` needs a new process to start again. Raises: EngineDied if it cannot be
    started."""

    def __init__(
        self, command: str | list[str], limit: int | None = None, answering: float = ANSWERING, once: bool = False
    ) -> None:
        self.once = once
        words = shlex.split(command) if isinstance(command, str) else list(command)
        if not words:
            raise EngineDied("the command of an engine is empty; give what starts it, such as 'python my_engine.py'")
        self.answering, self.limit = answering, memory.allowed() if limit is None else limit
        self.left = b""
        own = {name: value for name, value in os.environ.items() if not name.startswith(HIDDEN)}
        modules = os.pathsep.join(path for path in sys.path if path)
        self.guarded = Guarded(
            WORK.replace("{words}", repr(words).replace("{", "{{").replace("}", "}}")),
            self.limit,
            own | {"PYTHONPATH": modules, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.child = self.guarded.process
        assert self.child.stdout is not None
        os.set_blocking(self.child.stdout.fileno(), False)

    def start(self, model: str, options: Options) -> Started:
        """Start a model with options. Raises: EngineRefused, EngineFailed, EngineDied."""
        return self._asked(Start(model=model, options=options), Started, STARTING)

    def generate(self, requests: tuple[Request, ...]) -> tuple[Answer, ...]:
        """Answer requests. Raises: EngineRefused, EngineFailed, EngineDied, also for answers that do not fit the requests."""
        answers = self._asked(Generate(requests=requests), Answers, self.answering).answers
        try:
            return fitting(requests, answers)
        except ValueError as error:
            raise self._gone(str(error)) from None

    def _asked(self, question: Line, kind: type[L], seconds: float) -> L:
        said = self._exchanged(question, seconds)
        known: Any = Union[kind, Refused, Failed]  # noqa: UP007  # made while it runs
        found: TypeAdapter[Any] = TypeAdapter(known)
        try:
            answer = found.validate_json(said)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise self._gone(
                f"printed something that is not an answer: {clean(said[:200].decode(errors='replace'))} "
                f"({where}: {first['msg']})"
            ) from None
        if isinstance(answer, Refused):
            raise EngineRefused(clean(answer.refused))
        if isinstance(answer, Failed):
            raise EngineFailed(clean(answer.error))
        return answer

    def _exchanged(self, question: Line, seconds: float) -> bytes:
        """The line that answers a question. Raises: EngineDied."""
        with SPENT.exchange(self.child.pid):
            return self._line(question, seconds)

    def _line(self, question: Line, seconds: float) -> bytes:
        until = time.monotonic() + seconds
        text = (question.model_dump_json(exclude_none=True) + "\n").encode()
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        if self.left or self.child.poll() is not None:
            raise self._gone("answered without a question" if self.left else "")
        out, to = self.child.stdout.fileno(), self.child.stdin.fileno()
        os.set_blocking(to, False)
        with selectors.DefaultSelector() as ready:
            ready.register(out, selectors.EVENT_READ)
            ready.register(to, selectors.EVENT_WRITE)
            while b"\n" not in self.left:
                found = ready.select(max(0.0, until - time.monotonic()))
                if not found:
                    raise self._gone(f"gave no answer within {seconds:g} s, so it was ended; raise --timeout")
                try:
                    for key, _ in found:
                        if key.fd == to:
                            text = text[os.write(to, text[: 1 << 16]) :]
                            if not text:
                                ready.unregister(to)
                        else:
                            came = os.read(out, 1 << 16)
                            self.left += came
                            if not came or len(self.left) > LONGEST:
                                raise self._gone("" if not came else f"gave an answer of more than {LONGEST >> 20} MiB")
                except BlockingIOError:
                    continue
                except OSError:
                    raise self._gone("") from None
        line, _, self.left = self.left.partition(b"\n")
        return line

    def _gone(self, why: str) -> EngineDied:
        """End the engine, and return the error with the cause."""
        told = self.end()
        lines = self.guarded.last()
        if warden.MEMORY in told:
            why = f"took more than {self.limit / GIB:.3g} GiB with what it started; raise --memory"
        elif warden.PROCESSES in told:
            why = f"started more than {warden.MOST} processes"
        elif not why:
            code = self.child.returncode
            why = (
                "closed its output"
                if not self.guarded.alone
                else f"ended by signal {-code}"
                if code < 0
                else f"ended with exit code {code}"
            )
        return EngineDied(clean(f"{why}{f' | {lines[-1]}' if lines else ''}", 600))

    def end(self, politely: float = LEAVING / 3) -> bytes:
        """End the engine and all processes that it started; returns the supervisor's last message."""
        return self.guarded.end(politely)

    def close(self) -> None:
        """Ask the engine to exit, then end it."""
        if self.child.poll() is None and self.child.stdin is not None:
            with suppress(OSError):
                os.write(self.child.stdin.fileno(), (json.dumps(Stop().model_dump()) + "\n").encode())
                self.child.stdin.close()
            self.end(LEAVING)
        self.guarded.close(self.child.stdin, self.child.stdout)


def fitting(requests: tuple[Request, ...], answers: tuple[Answer, ...]) -> tuple[Answer, ...]:
    """The answers, if each is valid for its request. Raises: ValueError."""
    if len(answers) != len(requests):
        raise ValueError(f"gave {len(answers)} answers to {len(requests)} requests")
    for request, answer in zip(requests, answers, strict=True):
        if len(answer.ids) > request.most:
            raise ValueError(f"gave {len(answer.ids)} tokens where {request.most} were the most")
        if answer.logprobs is not None and len(answer.logprobs) != len(answer.ids):
            raise ValueError(f"gave {len(answer.logprobs)} log-probabilities of {len(answer.ids)} tokens")
        if answer.drafted is not None and answer.accepted is not None and answer.accepted > answer.drafted:
            raise ValueError(f"says that {answer.accepted} of {answer.drafted} drafts were accepted")
    return answers
