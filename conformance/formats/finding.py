"""What a report has to tell a reviewer: a finding for each kind of failure, and for each cell with unknown cases."""

import shlex
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from ..judge.raised import places
from ..report.failure_groups import FailureGroup, grouped
from ..report.reading import reading
from ..report.stream import Report, Result


@dataclass(frozen=True)
class Finding:
    """`verdict` is fail, unknown or known-failure; `text` is read from the top. `file` is the adapter's, relative to the
    working folder, "" if it lies elsewhere; `line` is where an exception was raised in it, or 1."""

    verdict: str
    adapter: str
    subject: str
    contract: str
    operation: str
    failing: str
    case: str
    failures: int
    text: str
    file: str
    line: int

    @property
    def rule(self) -> str:
        """What is broken, whoever breaks it."""
        return f"{self.operation or 'known-list'}/{self.failing or self.verdict}"

    @property
    def title(self) -> str:
        operation = self.operation or "the list of known failures"
        return f"{self.verdict}: {operation} of {self.subject}" + (f": {self.failing}" if self.failing else "")


def findings(report: Report) -> list[Finding]:
    """The failures in the order of the page, the worst first; then what stayed unknown."""
    loose: dict[tuple[str, ...], list[Result]] = defaultdict(list)
    for r in report.results:
        if r.verdict == "unknown" or (r.verdict == "fail" and not r.operation):
            loose[r.verdict, r.adapter, r.subject, r.contract, r.operation, r.failing].append(r)
    return [*map(_failed, grouped(report.diagnoses)), *map(_loose, loose.values())]


def _failed(group: FailureGroup) -> Finding:
    told, d = reading(group), group.first
    lines = [*(f"{name}: {said}" for name, said in told.first), *(f"again: {line}" for line in told.again)]
    names = (d.adapter, group.subjects, group.contracts, group.operations)
    return Finding(d.verdict, *names, d.failing, d.smallest, group.failures, "\n".join(lines), *position(d.rerun, d.message))


def _loose(same: list[Result]) -> Finding:
    r = same[0]
    text = "\n".join(part for part in (r.message, r.case and f"case: {r.case}", r.rerun and f"again: {r.rerun}") if part)
    names = (r.adapter, r.subject, r.contract, r.operation)
    return Finding(r.verdict, *names, r.failing, r.case, len(same), text, *position(r.rerun, r.message))


def position(rerun: str, message: str) -> tuple[str, int]:
    """The file of the adapter that a command names, and the line in it that raised; "" and 1 if it is not in this folder."""
    words = shlex.split(rerun)
    module = words[words.index("--adapter") + 1].partition(":")[0] if "--adapter" in words[:-1] else ""
    file = module_file(module) if module else ""
    lines = [int(line) for name, line in places(message) if file and name == Path(file).name]
    return file, lines[-1] if lines else 1


def module_file(module: str) -> str:
    """The file of a module below the working folder, relative to it; "" if there is none. Nothing is imported."""
    parts, here = module.split("."), Path.cwd()
    for root in dict.fromkeys([here, *(Path(entry).resolve() for entry in sys.path if entry)]):
        for path in (root.joinpath(*parts).with_suffix(".py"), root.joinpath(*parts, "__init__.py")):
            if path.is_file():
                return path.relative_to(here).as_posix() if path.is_relative_to(here) else ""
    return ""
