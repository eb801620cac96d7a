"""A case as a pytest item."""

import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from ..report.stream import Result
from ..run.again import python
from ..run.plan import Job
from ..run.results import Setting, record
from ..run.runner import Alone
from .ids import identify


class CaseFailed(Exception):
    """A case that failed or stayed unknown; its text is the full report of the case."""


class CaseItem(pytest.Item):
    """One case of one subject."""

    def __init__(self, *, job: Job, setting: Setting, **given: Any) -> None:
        super().__init__(**given)
        self.job, self.setting = job, setting
        self.told = ""
        adapter, subject, _, operation = job.group
        self.add_marker(pytest.mark.ssmspec(adapter=adapter, subject=subject, operation=operation, family=job.case.family))

    def runtest(self) -> None:
        judgement, seconds = Alone(self.setting).judge(self.job)
        result = record(self.job.settled(judgement.case), judgement, self.setting, seconds)
        self.told = result.model_dump_json()
        if result.verdict == "known-failure":
            pytest.xfail(f"{result.reason} {result.link}".strip())
        if result.verdict != "pass":
            raise CaseFailed(account(result))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The report only: a traceback through the suite is of no use."""
        return told(excinfo) if isinstance(excinfo.value, CaseFailed) else super().repr_failure(excinfo)

    def reportinfo(self) -> tuple[Path, None, str]:
        return self.path, None, f"{self.job.subject.name}: {self.job.identity}"


class EmptyItem(pytest.Item):
    """A declared operation whose limits admit no case: it fails, because nothing was tested."""

    def __init__(self, *, result: Result, **given: Any) -> None:
        super().__init__(**given)
        self.result, self.told = result, ""
        self.add_marker(pytest.mark.ssmspec(adapter=result.adapter, subject=result.subject, operation=result.operation))

    def runtest(self) -> None:
        self.told = self.result.model_dump_json()
        raise CaseFailed(self.result.message)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        return told(excinfo) if isinstance(excinfo.value, CaseFailed) else super().repr_failure(excinfo)

    def reportinfo(self) -> tuple[Path, None, str]:
        return self.path, None, f"{self.result.subject}: {self.result.operation}"


def told(failure: pytest.ExceptionInfo[BaseException]) -> Any:
    """The text of a failure in the form of pytest's tracebacks; pytest's summary prints its first line only."""
    said = str(failure.value)
    made: Any = failure.getrepr(style="native")
    made.reprcrash.message = said.splitlines()[0]
    made.reprtraceback.reprentries[0].lines[:] = [f"{said}\n"]
    return made


def account(result: Result) -> str:
    """A failing case in words: the failure, its outputs, and the command that runs it again."""
    lines = [f"{result.verdict}: {result.message}", f"case    {result.case}", f"tests   {result.source}"]
    lines += [f"{o.name}  {o.utilisation:.3g} times its bound {o.bound:.3g}" for o in result.outputs]
    return "\n".join([*lines, f"rerun   {result.rerun}"])


def rerun(settled: dict[str, Any], job: Job, identity: str) -> str:
    """The command that runs one case again from where pytest was started, without options of the configuration file."""
    where = identify(job).rpartition("::")[0]
    by_name = Path(sys.argv[0]).stem in ("pytest", "py.test") and shutil.which("pytest") == str(Path(sys.argv[0]).absolute())
    words = [f"{where}::{identity}"]
    for name in settled["own"]:
        if name in ("tier", "subject", "operation", "explain", "report"):
            continue
        given = settled[name]
        for value in given if isinstance(given, list) else [given]:
            words += [f"--ssmspec-{name}", value]
    return f"{'' if by_name else f'{python()} -m '}pytest {shlex.join(words)}"
