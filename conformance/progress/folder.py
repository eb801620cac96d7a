"""The folder of a run. One run owns it at a time, and nothing in it looks green before that run has ended.

A lock keeps other runs out. When a run takes the folder, the page, the JUnit file and the badge of the previous run are
marked "unfinished", and its report is emptied. Results are written as they arrive, so that an interrupted run can be resumed
(`resume`). At the end the report is written again, in the order of the plan, and replaces the other one atomically. A run
that is refused before its first case restores the folder.
"""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Protocol, TextIO

from filelock import FileLock, Timeout

from ..errors import ReportError, RunBroken
from ..report.stream import SCHEMA, Diagnosis, Header, Report, Result, Writer, unwritable

REPORT, LOCK = "report.jsonl", ".lock"
SAID = "unfinished: the run is still going, or was stopped; `ssmspec conform run --resume` continues it"
UNFINISHED = {
    "report.html": f'<!doctype html><html lang="en"><meta charset="utf-8"><title>unfinished</title><p>{SAID}\n',
    "junit.xml": (
        '<?xml version="1.0" encoding="utf-8"?>\n<testsuites name="ssmspec conform" tests="1" failures="0" errors="1" '
        'skipped="0"><testsuite name="unfinished" tests="1" failures="0" errors="1" skipped="0"><testcase '
        f'classname="ssmspec" name="the run"><error type="unfinished" message="{SAID}" /></testcase>'
        "</testsuite></testsuites>\n"
    ),
    "badge.svg": (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="170" height="20" role="img" data-schema="{SCHEMA}" '
        'aria-label="conformance: unfinished"><title>conformance: unfinished</title><rect width="170" height="20" '
        'fill="#a3201d"/><text x="85" y="14" fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11" '
        'text-anchor="middle">conformance: unfinished</text></svg>\n'
    ),
}
"""The placeholder of each file made from a report, until the report is complete."""


class Artefacts(Protocol):
    """Writes the files made from a complete report beside it."""

    def __call__(self, folder: Path, report: Report) -> object: ...


class RunFolder:
    """A folder owned by one run. Use as a context manager; call `begin` before the first case, `finish` after the last.

    `resuming`: the existing report is continued, and kept until `begin`.

    Raises: ReportError for a folder that another run owns or that cannot be written; RunBroken if the report disappears while
    the run writes it.
    """

    def __init__(self, path: Path, resuming: bool = False) -> None:
        self.path, self.resuming = path, resuming
        self.before: dict[str, bytes] = {}
        self.stream: TextIO | None = None

    def __enter__(self) -> "RunFolder":
        self.made = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.lock = FileLock(self.path / LOCK)
            self.lock.acquire(timeout=0)
        except Timeout as error:
            raise ReportError(
                f"another run writes to {self.path}; wait until it has ended, or name another folder with --report"
            ) from error
        except OSError as error:
            raise unwritable(self.path, error) from error
        try:
            self._take()
        except OSError as error:
            self._leave()
            raise unwritable(self.path, error) from error
        return self

    def __exit__(self, *error: object) -> None:
        if self.stream is not None:
            self._close()
        self._leave()

    def begin(self, head: Header, kept: Iterable[Result] = ()) -> None:
        """Open the report with the results kept from the interrupted run; other files in the folder are removed."""
        new = self.path / (f"{REPORT}.new" if self.resuming else REPORT)
        try:
            self._mark(UNFINISHED)
            self.stream = new.open("w", encoding="utf-8")
            self.writer = Writer(self.stream, head)
            for result in kept:
                self.writer.add(result)
            os.replace(new, self.path / REPORT)
        except OSError as error:
            raise unwritable(self.path, error) from error
        self.before.clear()

    def add(self, line: Result | Diagnosis) -> None:
        """Write a line immediately."""
        self._check()
        try:
            self.writer.add(line)
        except OSError as error:
            raise _unwritten(self.path / REPORT, error) from error

    def finish(self, results: Iterable[Result], diagnoses: Iterable[Diagnosis], artefacts: Artefacts) -> Report:
        """Write the complete report in the order of the plan, and the files made from it."""
        self._check()
        self._close()
        lines: tuple[list[Result], list[Diagnosis]] = (list(results), list(diagnoses))
        new = self.path / f"{REPORT}.new"
        try:
            with new.open("w", encoding="utf-8") as stream:
                writer = Writer(stream, self.writer.head)
                for result in lines[0]:
                    writer.add(result)
                for diagnosis in lines[1]:
                    writer.add(diagnosis)
                footer = writer.close()
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(new, self.path / REPORT)
            report = Report(self.writer.head, *lines, footer)
            artefacts(self.path, report)
        except OSError as error:
            raise _unwritten(self.path / REPORT, error) from error
        return report

    def _take(self) -> None:
        """Keep the existing files, in case the run is refused, and mark them as unfinished."""
        kept = [*UNFINISHED, *([] if self.resuming else [REPORT])]
        self.before = {name: (self.path / name).read_bytes() for name in kept if (self.path / name).is_file()}
        self._mark(self.before)

    def _mark(self, names: Iterable[str]) -> None:
        for name in names:
            _replace(self.path / name, UNFINISHED.get(name, "").encode())

    def _leave(self) -> None:
        """Release the folder; if no case was run, restore it, as far as the disk has space."""
        with suppress(OSError):
            for name, content in self.before.items():
                _replace(self.path / name, content)
        self.lock.release()
        if self.made and self.stream is None:
            with suppress(OSError):
                for name in (LOCK, REPORT, *UNFINISHED):
                    (self.path / name).unlink(missing_ok=True)
                    (self.path / f"{name}.new").unlink(missing_ok=True)
                for folder in self.made:
                    folder.rmdir()

    def _check(self) -> None:
        """Raise RunBroken if the report being written is no longer the one in the folder."""
        assert self.stream is not None
        try:
            there, ours = os.stat(self.path / REPORT), os.fstat(self.stream.fileno())
        except OSError as error:
            raise _broken(self.path / REPORT, "was removed") from error
        if not os.path.samestat(there, ours):
            raise _broken(self.path / REPORT, "was replaced")

    def _close(self) -> None:
        assert self.stream is not None
        try:
            self.stream.close()
        except OSError:  # a failed write was reported when it happened
            return


def _broken(path: Path, what: str) -> RunBroken:
    return RunBroken(f"{path} {what} during the run; run again, and let nothing else write to that folder")


def _unwritten(path: Path, error: OSError) -> RunBroken:
    where = error.filename or path
    return RunBroken(
        f"{where} cannot be written ({error.strerror}), and the run is unfinished; free some space, or name another folder "
        "with --report, and run again"
    )


def _replace(path: Path, content: bytes) -> None:
    """Replace the content of a file atomically."""
    new = path.with_name(f"{path.name}.new")
    new.write_bytes(content)
    os.replace(new, path)


def publish(
    folder: Path, head: Header, results: Iterable[Result], diagnoses: Iterable[Diagnosis], artefacts: Artefacts
) -> Report:
    """Write a report whose lines are all known. Raises: ReportError, RunBroken."""
    with RunFolder(folder) as owned:
        owned.begin(head)
        return owned.finish(results, diagnoses, artefacts)
