"""A program as an adapter: JSON lines on its standard input and output, with tensors in safetensors files.

    ->  {"do": "declare", "protocol": 1}
    <-  {"name": .., "version": .., "subjects": [{"name": .., "operations": {"ssd.step": {"contract": .., "limits": ..}}}]}
    ->  {"do": "call", "subject": .., "operation": .., "inputs": FILE, "values": {..}, "types": {..}, "outputs": FILE}
    <-  {"outputs": ["y", "S"]}, the names of tensors that the program has written, in the order of the contract

An operation with a state is opened first: "open" returns {"session": 1}; the questions of `sessions.METHODS` name it, and
"close" ends it. The answer to any line may be {"error": "why"}, or {"refused": "why"} if the program does not take it.
Documentation: docs/how-to/any-language.md.
"""

import json
import re
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from ssmspec_ref.approximation import Approximation
from ssmspec_ref.contract import OPERATIONS, Adapter, Capability, Limits, NumericContract, Subject
from ssmspec_ref.errors import ParameterError, Unsupported
from ssmspec_ref.options.extras import installing

from ..errors import AdapterUnavailable, ProgramError
from ..isolation.text import LONGEST
from .sessions import Session, opened, session_of

PROTOCOL = FIRST = 1
"""The current version of the protocol, and the first one, whose programs do not send a version."""
SHOWN = 200
LINE = 1 << 20
"""Characters of an answer to show, and bytes of standard error to read."""
LEAVING = 5.0
"""Seconds for a program to exit after it has closed its output."""


def arguments_of(operation: str) -> tuple[str, ...]:
    """The names of the arguments of a pure operation, as in the contract."""
    found = re.search(r"\((.*?)\)", OPERATIONS[operation])
    assert found
    return tuple(name.strip() for name in found[1].split(","))


def flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Every array and value in an argument, by its path, such as params.dt_bias; for a record also the name of its type."""
    if is_dataclass(value) and not isinstance(value, type):
        yield name, type(value)
        for field in fields(value):
            yield from flat(f"{name}.{field.name}", getattr(value, field.name))
    else:
        yield name, value


def plain(value: Any) -> Any:
    """A value for JSON: an infinite number becomes "inf" or "-inf"."""
    if isinstance(value, tuple | list):
        return [plain(part) for part in value]
    if isinstance(value, float) and not np.isfinite(value):
        return str(value)
    return value.item() if isinstance(value, np.generic) else value


def words_of(command: str, named: str = "") -> list[str]:
    """The words of a command, as a shell splits them. Raises: AdapterUnavailable for a quotation that is not closed."""
    try:
        return shlex.split(command)
    except ValueError as error:
        raise AdapterUnavailable(f"{named}{command} cannot be read as a command: {error}; close every quotation") from error


class Program:
    """A program that runs until it fails; the next question starts it again."""

    def __init__(self, command: str) -> None:
        self.words = words_of(command)
        if not self.words:
            raise AdapterUnavailable("the command of the program is empty; give what starts it, such as 'python program.py'")
        try:
            self.tensors: Any = import_module("safetensors.numpy")
        except ImportError as error:
            raise AdapterUnavailable(f"programs need safetensors ({error}); {installing('program')}") from error
        self.folder = tempfile.TemporaryDirectory()
        self.child: subprocess.Popen[str] | None = None

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """Send a question. Raises: ProgramError for a missing or unreadable answer, or an error; Unsupported (refused)."""
        if self.child is None or self.child.poll() is not None:
            self._start()
        assert self.child is not None
        try:
            self.child.stdin.write(json.dumps(question) + "\n")  # type: ignore[union-attr]
            self.child.stdin.flush()  # type: ignore[union-attr]
            line = self.child.stdout.readline(LINE)  # type: ignore[union-attr]
        except OSError:
            line = ""
        if not line:
            raise ProgramError(f"the program {self._ended()}")
        try:
            answer = json.loads(line)
        except (ValueError, RecursionError):  # invalid, or nested too deeply for the JSON parser
            answer = None
        if not isinstance(answer, dict):
            self._end()
            told = "its standard output must hold only answers, one JSON object per line; print to standard error"
            raise ProgramError(f"the program printed {line[:SHOWN]!r}, which is not an answer; {told}")
        if "refused" in answer:
            raise Unsupported(f"the program says: {str(answer['refused'])[:LONGEST]}")
        if "error" in answer:
            raise ProgramError(f"the program says: {str(answer['error'])[:LONGEST]}")
        return answer

    def exchange(
        self, question: dict[str, Any], named: tuple[str, ...], given: tuple[Any, ...]
    ) -> tuple[dict[str, Any], Any]:
        """Ask with arguments. Returns the answer and its arrays: a single one as it is, several as a tuple."""
        arrays, values, types = {}, {}, {}
        for name, argument in zip(named, given, strict=False):
            for path, value in flat(name, argument):
                if isinstance(value, np.ndarray):
                    arrays[path] = np.ascontiguousarray(value)
                elif isinstance(value, type):
                    types[path] = value.__name__
                else:
                    values[path] = plain(value)
        inputs, outputs = self.files()
        self.tensors.save_file(arrays, inputs)
        answer = self.ask(question | {"inputs": str(inputs), "values": values, "types": types, "outputs": str(outputs)})
        names = answer.get("outputs", [])
        try:
            came = self.tensors.load_file(outputs) if names else {}
            taken = tuple(came[name] for name in names)
        except Exception as error:  # safetensors has its own exception class for unreadable files
            raise ProgramError(f"the outputs {names} cannot be read from the named file: {error}") from error
        return answer, taken[0] if len(taken) == 1 else taken

    def files(self) -> tuple[Path, Path]:
        """The files of inputs and outputs; there is nothing in that of outputs."""
        inputs, outputs = (Path(self.folder.name) / f"{name}.safetensors" for name in ("inputs", "outputs"))
        outputs.unlink(missing_ok=True)
        return inputs, outputs

    def _start(self) -> None:
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the program
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self.errors}
        try:
            self.child = subprocess.Popen(self.words, **pipes, encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            raise AdapterUnavailable(f"{shlex.join(self.words)} cannot be started: {error.strerror}") from error

    def close(self) -> None:
        """End the program, and remove the files that were exchanged."""
        if self.child is not None:
            self._end()
            for stream in (self.child.stdin, self.child.stdout, self.errors):
                stream.close()  # type: ignore[union-attr]
        self.folder.cleanup()

    def _end(self) -> None:
        assert self.child is not None
        self.child.kill()
        self.child.wait()

    def _ended(self) -> str:
        assert self.child is not None
        try:
            code = self.child.wait(LEAVING)
        except subprocess.TimeoutExpired:
            self._end()
            return "closed its output and was killed"
        self.errors.seek(max(0, self.errors.seek(0, 2) - LINE))
        lines = [line.strip() for line in self.errors.read(LINE).decode(errors="replace").splitlines() if line.strip()]
        how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return f"{how} | {lines[-1][:SHOWN]}" if lines else how


def function(program: Program, subject: str, operation: str) -> Callable[..., Any]:
    """The function that the suite calls for an operation of a program."""
    question = {"subject": subject, "operation": operation}

    def call(*given: Any) -> Any:
        return program.exchange({"do": "call"} | question, arguments_of(operation), given)[1]

    def open_session(*given: Any) -> Session:
        answer, _ = program.exchange({"do": "open"} | question, opened(operation), given)
        return session_of(operation)(program, answer.get("session", 0))

    run: Any = open_session if opened(operation) else call
    run.elsewhere = True
    return run


def adapter(command: str, device: str = "cpu") -> Adapter:
    """The adapter that a program declares. Raises: AdapterUnavailable if it cannot be started or read, or for a device."""
    if device != "cpu":
        raise AdapterUnavailable(f"a program chooses its own device, but --device is {device}; omit it")
    program = Program(command)
    try:
        try:
            said = program.ask({"do": "declare", "protocol": PROTOCOL})
        except ProgramError as error:
            raise AdapterUnavailable(f'{command} gave no answer to {{"do": "declare"}}: {error}') from error
        if (spoken := said.get("protocol", FIRST)) != PROTOCOL:
            raise ValueError(f"it speaks protocol {json.dumps(spoken)[:SHOWN]}, and this suite speaks {PROTOCOL}")
        subjects = tuple(_subject(program, _object(subject, "a subject")) for subject in said["subjects"])
        return Adapter(str(said["name"]), str(said["version"]), subjects, str(said.get("homepage", "")))
    except (ProgramError, ParameterError, Unsupported, KeyError, TypeError, ValueError, AttributeError) as error:
        told = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise AdapterUnavailable(f"{command}: its declaration is invalid: {told}") from error


def _subject(program: Program, said: dict[str, Any]) -> Subject:
    name = str(said["name"])
    operations = _object(said["operations"], f"operations of {name}")
    found = {
        o: _capability(function(program, name, o), _object(given, o)) for o, given in operations.items() if o in OPERATIONS
    }
    unknown = [operation for operation in operations if operation not in OPERATIONS]
    if unknown:
        raise ValueError(f"{', '.join(unknown)} is not an operation; the operations are {', '.join(OPERATIONS)}")
    return Subject(name, found, _object(said.get("absent", {}), f"absent of {name}"))


def _object(said: Any, what: str) -> dict[str, Any]:
    """The value if it is a JSON object. Raises: TypeError."""
    if not isinstance(said, dict):
        raise TypeError(f"{what} is {json.dumps(said)[:SHOWN]}; it must be a JSON object")
    return said


def _numbers(given: dict[str, Any]) -> dict[str, Any]:
    """The fields of a JSON object, in which infinity is a text."""
    return {name: float(value) if value in ("inf", "-inf") else value for name, value in given.items()}


def _capability(run: Callable[..., Any], said: dict[str, Any]) -> Capability:
    limits = _object(said.get("limits", {}), "limits")
    options = {name: tuple(values) for name, values in limits.get("options", {}).items()}
    sizes = {axis: (int(low), int(high)) for axis, (low, high) in limits.get("sizes", {}).items()}
    contract = _numbers(_object(said.get("contract", {}), "contract"))
    if isinstance(named := contract.get("approximations"), list):
        contract["approximations"] = tuple(Approximation(**_numbers(_object(one, "an approximation"))) for one in named)
    return Capability(run, NumericContract(**contract), Limits(options, sizes, limits.get("reason", Limits.reason)))
