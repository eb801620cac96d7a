"""The folder of a run. One run owns it at a time, and nothing in it looks green before that run has ended.

A lock keeps other runs out. When a run takes the folder, the badge, the JUnit file and the page say "unfinished", and the
report of the previous run is emptied. Results are written as they arrive, so that an interrupted run can be resumed
(`resume`). At the end the report is written again, in the order of the plan, and replaces the other one atomically; then the
other files, the badge last. A run that is refused before its first case restores the folder; one that is interrupted does
not, at whatever moment.
"""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Protocol, TextIO

from filelock import FileLock, Timeout

from ssmspec_ref.errors import OptionError

from ..errors import ConformanceError, ReportError, RunBroken
from ..report.stream import SCHEMA, Diagnosis, Header, Report, Result, Writer, unwritable
from . import files
from .made import make, remove

REPORT, LOCK = "report.jsonl", ".lock"
SAID = "unfinished: the run is still going, or was stopped; `ssmspec conform run --resume` continues it"
UNFINISHED = {
    "badge.svg": (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="170" height="20" role="img" data-schema="{SCHEMA}" '
        'aria-label="conformance: unfinished"><title>conformance: unfinished</title><rect width="170" height="20" '
        'fill="#a3201d"/><text x="85" y="14" fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11" '
        'text-anchor="middle">conformance: unfinished</text></svg>\n'
    ),
    "report.html": f'<!doctype html><html lang="en"><meta charset="utf-8"><title>unfinished</title><p>{SAID}\n',
    "junit.xml": (
        '<?xml version="1.0" encoding="utf-8"?>\n<testsuites name="ssmspec conform" tests="1" failures="0" errors="1" '
        'skipped="0"><testsuite name="unfinished" tests="1" failures="0" errors="1" skipped="0"><testcase '
        f'classname="ssmspec" name="the run"><error type="unfinished" message="{SAID}" /></testcase>'
        "</testsuite></testsuites>\n"
    ),
}
"""The placeholder of each file made from a report, until the report is complete."""


class Artefacts(Protocol):
    """Writes the files made from a complete report beside it."""

    def __call__(self, folder: Path, report: Report) -> object: ...


class RunFolder:
    """A folder owned by one run. Use as a context manager; call `begin` before the first case, `finish` after the last.

    `resuming`: the existing report is continued, and kept until `begin`. `before` is what the files held when the run took
    the folder: their content, the target of a link, or None for no file.

    Raises: ReportError for a folder that another run owns or that cannot be written; RunBroken if the report disappears while
    the run writes it.
    """

    def __init__(self, path: Path, resuming: bool = False) -> None:
        self.path, self.resuming = path, resuming
        self.before: dict[str, bytes | str | None] = {}
        self.stream: TextIO | None = None
        self.taken = self.complete = self.stopped = False

    def __enter__(self) -> "RunFolder":
        made: list[Path] = []
        try:
            made = make(self.path)
            self.lock = FileLock(self.path / LOCK)
            self.lock.acquire(timeout=0)
        except Timeout as error:
            raise ReportError(
                f"another run writes to {self.path}; wait until it has ended, or name another folder with --report"
            ) from error
        except OSError as error:
            remove([], made)
            raise unwritable(self.path, error) from error
        self.made = made
        try:
            self._take()
        except OSError as error:
            self._restore()
            self.lock.release()
            raise unwritable(self.path, error) from error
        except BaseException:
            if self.taken:
                self._unfinish()
                self._empty()
            self.lock.release()
            raise
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        refused = isinstance(error, ConformanceError | OptionError) and not isinstance(error, RunBroken)
        if self.stream is not None:
            self._close()
        elif (error is None or refused) and not self.stopped:
            self._restore()
        self.lock.release()

    def begin(self, head: Header, kept: Iterable[Result] = ()) -> None:
        """Open the report, with the results kept from the interrupted run."""
        try:
            self._mark()
            with files.replaced(self.path / REPORT) as stream:
                self.writer = Writer(stream, head)
                for result in kept:
                    self.writer.add(result)
        except OSError as error:
            raise unwritable(self.path, error) from error
        self.stream = stream
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
        try:
            with files.replaced(self.path / REPORT) as stream:
                writer = Writer(stream, self.writer.head)
                for result in lines[0]:
                    writer.add(result)
                for diagnosis in lines[1]:
                    writer.add(diagnosis)
                footer = writer.close()
            stream.close()
            report = Report(self.writer.head, *lines, footer)
            artefacts(self.path, report)
        except BaseException as error:
            self._unfinish()
            if isinstance(error, OSError):
                raise _unwritten(self.path / REPORT, error) from error
            raise
        self.complete = True
        return report

    def stop(self) -> None:
        """Say that the run was interrupted: its folder is not restored."""
        self.stopped = True

    @property
    def state(self) -> str:
        """The state of the report, for a run that was interrupted."""
        if self.complete:
            return f"the report in {self.path} is complete"
        if self.taken:
            return f"the report in {self.path} is unfinished; --resume continues it"
        return f"the run had not begun, and {self.path} is as it was"

    def _take(self) -> None:
        """Keep the existing files, in case the run is refused, and mark them as unfinished."""
        names = [*UNFINISHED, *([] if self.resuming else [REPORT])]
        self.before = {name: _held(self.path / name) for name in names}
        self.taken = True
        files.sweep(self.path)
        self._mark()
        self._empty()

    def _empty(self) -> None:
        """Empty the report of an earlier run, which this one does not continue."""
        if self.before.get(REPORT) is not None:
            files.write(self.path / REPORT, "")

    def _mark(self) -> None:
        for name, said in UNFINISHED.items():
            files.write(self.path / name, said)

    def _unfinish(self) -> None:
        """Mark every file again: none of a run that was stopped while it wrote them looks complete. A file that cannot be
        marked, on a full disk, is removed."""
        for name, said in UNFINISHED.items():
            path = self.path / name
            with suppress(OSError):
                if files.read(path) == said.encode():
                    continue
            with suppress(OSError):
                path.unlink()
            with suppress(OSError):
                files.write(path, said)

    def _restore(self) -> None:
        """Restore the folder as it was, as far as the disk has space."""
        for name, held in self.before.items():
            path = self.path / name
            with suppress(OSError):
                if isinstance(held, bytes):
                    files.write(path, held)
                    continue
                path.unlink(missing_ok=True)
                if held is not None:
                    path.symlink_to(held)
        if self.made:
            remove([self.path / LOCK, self.path / REPORT], self.made)

    def _check(self) -> None:
        """Raise RunBroken if the report being written is no longer the one in the folder."""
        assert self.stream is not None
        try:
            there, ours = os.lstat(self.path / REPORT), os.fstat(self.stream.fileno())
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


def _held(path: Path) -> bytes | str | None:
    """The content of a file, the target of a link, None if there is neither. Raises: OSError for a folder or a FIFO."""
    if path.is_symlink():
        return os.readlink(path)
    try:
        return files.read(path)
    except FileNotFoundError:
        return None


def _broken(path: Path, what: str) -> RunBroken:
    return RunBroken(f"{path} {what} during the run; run again, and let nothing else write to that folder")


def _unwritten(path: Path, error: OSError) -> RunBroken:
    where = error.filename or path
    return RunBroken(
        f"{where} cannot be written ({error.strerror}), and the run is unfinished; free some space, or name another folder "
        "with --report, and run again"
    )


def publish(
    folder: Path, head: Header, results: Iterable[Result], diagnoses: Iterable[Diagnosis], artefacts: Artefacts
) -> Report:
    """Write a report whose lines are all known. Raises: ReportError, RunBroken."""
    with RunFolder(folder) as owned:
        owned.begin(head)
        return owned.finish(results, diagnoses, artefacts)
