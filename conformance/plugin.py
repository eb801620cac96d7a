"""The suite inside somebody's pytest: every case of an adapter is a test.

    pytest --ssmspec-adapter my_kernels:adapter --ssmspec-tier smoke --ssmspec-report conformance-report

Options carry the prefix of the suite, since plain names such as --report belong to whoever came first. Without
--ssmspec-adapter nothing is collected, and nothing but this module is imported. A case that fails or stays unknown is a
failed test; a failure that is listed (--ssmspec-known) is an expected one. What is inapplicable is no test: it is told at the
end with its reason. With pytest-xdist the workers judge, and the process that they report to writes the report.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .plan import Job
    from .report import Diagnosis, Result
    from .run import Setting

OPTIONS = {
    "adapter": "An adapter that ships, or package.module:factory; may be given several times.",
    "tier": "smoke or standard.",
    "subject": "Only these subjects; a pattern.",
    "operation": "Only these operations; a pattern such as 'ssd.*'.",
    "device": "Where the implementation computes: cpu, cuda.",
    "known": "A list of known failures instead of the one that ships.",
    "report": "Folder for the report: JSON lines, a page, JUnit, a badge.",
}
DEFAULTS = {"tier": "smoke", "subject": "*", "operation": "*", "device": "cpu"}


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("ssmspec", "conformance of decode kernels (ssmspec)")
    for name, said in OPTIONS.items():
        action = "append" if name == "adapter" else "store"
        group.addoption(f"--ssmspec-{name}", action=action, dest=f"ssmspec_{name}", default=DEFAULTS.get(name), help=said)


def pytest_configure(config: pytest.Config) -> None:
    if config.option.ssmspec_adapter:
        config.pluginmanager.register(Run(config), "ssmspec-run")


class CaseFailed(Exception):
    """A case that failed or stayed unknown; its text is the whole account."""


class CaseItem(pytest.Item):
    """One case of one subject."""

    def __init__(self, *, job: Job, setting: Setting, **given: Any) -> None:
        super().__init__(**given)
        self.job, self.setting = job, setting
        self.told = ""
        self.add_marker("ssmspec")

    def runtest(self) -> None:
        from .run import Alone, record

        judgement, seconds = Alone(self.setting).judge(self.job)
        result = record(self.job, judgement, self.setting, seconds)
        self.told = result.model_dump_json()
        if result.verdict == "known-failure":
            pytest.xfail(f"{result.reason} {result.link}".strip())
        if result.verdict != "pass":
            raise CaseFailed(account(result))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The account alone: a traceback through the suite tells nothing."""
        return str(excinfo.value) if isinstance(excinfo.value, CaseFailed) else super().repr_failure(excinfo)

    def reportinfo(self) -> tuple[Path, None, str]:
        return self.path, None, self.name


class Suite(pytest.Collector):
    """The cases of every adapter asked for."""

    def __init__(self, *, run: Run, **given: Any) -> None:
        super().__init__(**given)
        self.run = run

    def collect(self) -> Iterator[CaseItem]:
        for job in self.run.jobs:
            name = f"{job.adapter.name}::{job.subject.name}[{job.capability.contract}]::{job.identity}"
            yield CaseItem.from_parent(self, name=name, job=job, setting=self.run.setting)


class Run:
    """One run of the suite in one session of pytest."""

    def __init__(self, config: pytest.Config) -> None:
        config.addinivalue_line("markers", "ssmspec: a case of the conformance suite")
        self.config = config
        self.jobs: list[Job] = []
        self.results: list[Result] = []
        self.diagnoses: list[Diagnosis] = []
        self.written = ""

    def plan(self) -> None:
        """Load the adapters and list their cases; a mistake ends the session as a mistake of its usage."""
        from .errors import ConformanceError
        from .known import read_known
        from .load import load
        from .plan import Selection, plan
        from .run import Setting
        from .starting import names
        from .suite.specification import TIERS

        given = {name: getattr(self.config.option, f"ssmspec_{name}") for name in OPTIONS}
        if given["tier"] not in TIERS:
            raise pytest.UsageError(f"--ssmspec-tier came as {given['tier']!r}; give one of {', '.join(TIERS)}")
        try:
            self.adapters = {name: load(name, given["device"]) for name in names(given["adapter"], None)}
            selection = Selection(given["tier"], given["subject"], given["operation"])
            self.jobs, self.left_out = plan(self.adapters, selection)
            path = Path(given["known"]) if given["known"] else None
            self.setting = Setting({a.name: read_known(a.name, path) for a in self.adapters.values()}, given["device"])
        except ConformanceError as error:
            raise pytest.UsageError(f"{type(error).__name__}: {error}") from error

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """With pytest-xdist a mistake is told here: in a worker it would be an error of pytest's own."""
        if not hasattr(self.config, "workerinput") and getattr(self.config.option, "dist", "no") != "no":
            self.plan()

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, session: pytest.Session, items: list[pytest.Item]) -> None:
        """The cases come behind the tests of the project, and -k and -m choose among them all."""
        self.plan()
        suite = Suite.from_parent(session, name="ssmspec", nodeid="ssmspec", run=self)
        items.extend(suite.collect())

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
        report = yield
        if isinstance(item, CaseItem) and call.when == "call":
            report.ssmspec = item.told
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """What a case came to, from this process or from a worker."""
        from .report import Result

        if line := getattr(report, "ssmspec", ""):
            self.results.append(Result.model_validate_json(line))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Where no other process is reported to: the smallest case of each way of failing, and the report."""
        from .errors import ReportError

        if hasattr(self.config, "workerinput") or not self.results:
            return
        if not self.jobs:
            self.plan()
        self.diagnoses = self.diagnosed()
        if self.config.option.ssmspec_report:
            try:
                self.written = f"report: {self.write(Path(self.config.option.ssmspec_report))}"
            except ReportError as error:
                self.written = f"ReportError: {error}"
                session.exitstatus = pytest.ExitCode.USAGE_ERROR

    def diagnosed(self) -> list[Diagnosis]:
        """The ways of failing: cases that failed are judged again, and made smaller."""
        from .run import run

        cells = Counter((r.adapter, r.subject, r.contract, r.operation) for r in self.results)
        bad = {(r.adapter, r.subject, r.contract, r.case) for r in self.results if r.verdict in ("fail", "known-failure")}
        jobs = [job for job in self.jobs if (*job.group[:3], job.identity) in bad]
        found = run(jobs, [], self.setting).diagnoses
        return [d.model_copy(update={"cases": cells[d.adapter, d.subject, d.contract, d.operation]}) for d in found]

    def write(self, folder: Path) -> Path:
        """The report of this session."""
        from .artefacts import write
        from .plan import Selection
        from .report import Writer, header, opened

        option, versions = self.config.option, {a.name: a.version for a in self.adapters.values()}
        with opened(folder) as stream:
            chosen = Selection(option.ssmspec_tier, option.ssmspec_subject, option.ssmspec_operation)
            head = header(chosen.tier, versions, option.ssmspec_device, seeds=(self.setting.seed,), only=chosen.only)
            writer = Writer(stream, head)
            for result in (*self.left_out, *self.results):
                writer.add(result)
            for diagnosis in self.diagnoses:
                writer.add(diagnosis)
            writer.close()
        write(folder)
        return folder / "report.html"

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """The matrix, and what was left out for which reason."""
        from io import StringIO

        from rich.console import Console

        from .matrix import failures, left_out, matrix

        if not self.results:
            return
        told = StringIO()
        console = Console(file=told, width=max(80, terminalreporter._tw.fullwidth))
        console.print(left_out(self.left_out))
        console.print(failures(self.diagnoses, self.results), soft_wrap=True)
        console.print(matrix(self.results, console))
        terminalreporter.section("ssmspec conformance")
        terminalreporter.write_line(told.getvalue().rstrip())
        if self.written:
            terminalreporter.write_line(self.written)


def account(result: Result) -> str:
    """A failing case in words: what came, its outputs, and the line that runs it again."""
    lines = [f"{result.verdict}: {result.message}", f"case    {result.case}", f"source  {result.source}"]
    lines += [f"{o.name}  {o.utilisation:.3g} of its bound {o.bound:.3g}" for o in result.outputs]
    return "\n".join([*lines, f"rerun   {result.rerun}"])
