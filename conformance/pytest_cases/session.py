"""One pytest session with the suite: which cases are selected, their results, the report."""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ssmspec_ref.contract import Verdict
from ssmspec_ref.options.words import nearest

from ..errors import ConformanceError, UnknownCase
from ..judge.verdict import Judgement
from ..progress.folder import RunFolder
from ..report.activity import not_exercised
from ..report.artefacts import write
from ..report.matrix import failures, left_out, matrix
from ..report.stream import Diagnosis, Result, header
from ..run.known import read_known
from ..run.load import ours
from ..run.open_adapters import Opening
from ..run.plan import Job, Selection, plan
from ..run.results import EXPLAIN, Setting, unmet
from ..run.runner import run
from ..starting import names
from ..suite.specification import TIERS
from .ids import ROOT, case_of, identify_empty, mistake, numbered
from .ids import names as named
from .items import CaseItem, EmptyItem, rerun

PART = "part"
"""The folder inside the report's folder for the report of some of the cases."""


class Run:
    """The suite in one pytest session."""

    def __init__(self, config: pytest.Config, given: dict[str, Any]) -> None:
        self.config, self.given = config, given
        self.ids: list[str] = given["ids"]
        self.opened, self.held = ExitStack(), ExitStack()
        self.planned = False
        self.folder: RunFolder | None = None
        self.chosen: list[tuple[str, Job]] = []
        self.left_out: list[Result] = []
        self.empty: list[tuple[str, Result]] = []
        self.results: list[Result] = []
        self.diagnoses: list[Diagnosis] = []
        self.written = ""

    @property
    def selection(self) -> Selection:
        return Selection(self.given["tier"], self.given["subject"], self.given["operation"])

    def plan(self) -> None:
        """Load the adapters and list their cases; a mistake ends the session as a usage error."""
        if self.planned:
            return
        for name, every in (("tier", TIERS), ("explain", EXPLAIN)):
            given = self.given[name]
            if given not in every:
                where = f"--ssmspec-{name}" if name in self.given["own"] else f"ssmspec_{name} in the configuration file"
                told = f"{given!r}{nearest(given, every)}; it must be one of {', '.join(every)}"
                raise pytest.UsageError(f"{where} is {told}")
        try:
            opening = Opening(names(self.given["adapter"], None), self.given["device"], False)
            self.adapters = self.opened.enter_context(opening.open())
            jobs, self.left_out = plan(self.adapters, self.selection)
            self.empty = [(identify_empty(r), r) for r in self.left_out if r.verdict == "unknown"]
            self.left_out = [r for r in self.left_out if r.verdict != "unknown"]
            self.planned_cases = len(jobs)
            self.chosen = self.choose(numbered(jobs))
            if not self.chosen and not self.empty:
                raise UnknownCase(self.nothing())
            path = Path(self.given["known"]) if self.given["known"] else None
            lists = {a.name: read_known(a.name if ours(given) else "", path) for given, a in self.adapters.items()}
            if self.given["report"] and not hasattr(self.config, "workerinput"):
                self.folder = self.held.enter_context(RunFolder(Path(self.given["report"])))
        except ConformanceError as error:
            raise pytest.UsageError(f"{type(error).__name__}: {error}") from error
        self.setting = Setting(lists, self.given["device"], line=self.rerun, explain=self.given["explain"])
        self.planned = True

    def rerun(self, job: Job, identity: str) -> str:
        return rerun(self.given, job, identity)

    def nothing(self) -> str:
        """Why a selection that names operations has no case."""
        reasons = dict.fromkeys(f"{r.adapter}: no {r.operation} ({r.reason})" for r in self.left_out)
        return f"no case was run, because the selected operations have none; {'; '.join(reasons)}"

    def choose(self, every: list[tuple[str, Job]]) -> list[tuple[str, Job]]:
        """The cases given on the command line; a case outside the tier is created from its id."""
        if not self.ids:
            return every
        found = []
        for given in self.ids:
            met = [one for one in every if named(given, one[0])]
            if not met and (identity := case_of(given)):
                met = [one for one in numbered(self.jobs_of(identity)) if named(given, one[0])]
            if not met and not any(named(given, name) for name, _ in self.empty):
                raise UnknownCase(mistake(given, self.adapters.values(), self.selection))
            found += [one for one in met if one not in found]
        self.empty = [one for one in self.empty if any(named(given, one[0]) for given in self.ids)]
        return found

    def jobs_of(self, identity: str) -> list[Job]:
        """One case on every subject that has it."""
        try:
            return plan(self.adapters, Selection(self.given["tier"], case=identity))[0]
        except UnknownCase:  # `mistake` says what is wrong with it
            return []

    @property
    def partial(self) -> bool:
        """Whether pytest ran only some of the cases: ids, -k, -m, --lf, or a session that stopped early."""
        return len(self.chosen) < self.planned_cases or len(self.results) < len(self.chosen) + len(self.empty)

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """With pytest-xdist mistakes are reported here; in a worker they would be internal errors of pytest."""
        workers = getattr(self.config.option, "dist", "no") != "no"
        if workers and not hasattr(self.config, "workerinput") and not self.given["unnamed"]:
            self.plan()

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, session: pytest.Session, items: list[pytest.Item]) -> None:
        """Cases come after the project's tests; -k, -m, --lf and --sw select among all of them."""
        if self.given["unnamed"]:
            return
        self.plan()
        suite = Suite.from_parent(session, name="ssmspec", nodeid="ssmspec", run=self)
        cases: list[pytest.Item | pytest.Collector] = list(suite.collect())
        items.extend(case for case in cases if isinstance(case, pytest.Item))
        session.ihook.pytest_collectreport(report=pytest.CollectReport(suite.nodeid, "passed", None, cases))  # to be counted

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Give the report's folder back at once if only some of the cases are selected: their report goes elsewhere."""
        ours = sum(isinstance(item, CaseItem | EmptyItem) for item in session.items)
        if self.planned and ours < self.planned_cases + len(self.empty):
            self.held.close()

    def pytest_keyboard_interrupt(self) -> None:
        """What is still held stays unfinished."""
        if self.folder is not None:
            self.folder.stop()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
        report = yield
        if isinstance(item, CaseItem | EmptyItem) and call.when == "call":
            report.ssmspec = item.told
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record the result of a case, from this process or from a worker."""
        if line := getattr(report, "ssmspec", ""):
            self.results.append(Result.model_validate_json(line))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """In the controller: find the smallest case of each kind of failure, and write the report."""
        if hasattr(self.config, "workerinput") or not self.results:
            return
        self.plan()
        self.diagnoses = self.diagnosed()
        if wrong := self.unused() + ([] if self.partial else not_exercised(self.results)):
            self.results += wrong
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if self.given["report"]:
            try:
                self.written = f"report: {self.write(Path(self.given['report']))}"
            except ConformanceError as error:
                self.written = f"{type(error).__name__}: {error}"
                session.exitstatus = pytest.ExitCode.USAGE_ERROR

    def pytest_unconfigure(self) -> None:
        self.held.close()
        self.opened.close()

    def unused(self) -> list[Result]:
        """Entries of the known lists that met no case, as `conform run` reports them: only if every case of a tier above
        smoke ran."""
        if self.partial or self.selection.only or self.given["tier"] == TIERS[0]:
            return []
        for r in self.results:  # the workers of pytest-xdist have their own lists
            self.setting.known[r.adapter].meet(r.subject, r.contract, r.case)
        return [unmet(name, entry) for name, known in self.setting.known.items() for entry in known.unmet()]

    def diagnosed(self) -> list[Diagnosis]:
        """The kinds of failure: failed cases are run again and shrunk; of those that passed it is known that they did."""
        cells = Counter((r.adapter, r.subject, r.contract, r.operation) for r in self.results)
        ran = {(r.adapter, r.subject, r.contract, r.case): r for r in self.results}
        if not any(r.verdict in ("fail", "known-failure") for r in ran.values()):
            return []

        def passed(job: Job) -> tuple[Judgement, float] | None:
            result = ran[*job.group[:3], job.identity]
            return (Judgement(Verdict.PASS), result.seconds) if result.verdict == "pass" else None

        jobs = [job for _, chosen in self.chosen for job in chosen.tried() if (*job.group[:3], job.identity) in ran]
        jobs = [job for job in jobs if ran[*job.group[:3], job.identity].verdict in ("pass", "fail", "known-failure")]
        found = run(jobs, [], self.setting, kept=passed).diagnoses
        return [d.model_copy(update={"cases": cells[d.adapter, d.subject, d.contract, d.operation]}) for d in found]

    def write(self, folder: Path) -> Path:
        """Write the report of this session. That of some of the cases goes to a separate folder, and says so."""
        versions = {a.name: a.version for a in self.adapters.values()}
        only = self.selection.only
        if self.partial:
            only = ", ".join(part for part in (only, f"{len(self.results)} cases that pytest chose") if part)
            self.held.close()
            folder = folder / PART
            self.folder = self.held.enter_context(RunFolder(folder))
        head = header(self.given["tier"], versions, self.given["device"], seeds=(self.setting.seed,), only=only)
        assert self.folder is not None
        self.folder.begin(head)
        self.folder.finish((*self.left_out, *self.results), self.diagnoses, write)
        return folder / "report.html"

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the matrix, and what was left out for which reason."""
        if not self.results:
            return
        told = StringIO()
        console = Console(file=told, width=max(80, terminalreporter._tw.fullwidth))
        console.print(left_out(self.left_out))
        console.print(failures(self.diagnoses, self.results, not self.written), soft_wrap=True)
        console.print(matrix(self.results, console))
        terminalreporter.section("ssmspec conformance")
        terminalreporter.write_line(told.getvalue().rstrip())
        if self.written:
            terminalreporter.write_line(self.written)


class Suite(pytest.Collector):
    """The cases of every given adapter."""

    def __init__(self, *, run: Run, **given: Any) -> None:
        super().__init__(**given)
        self.run = run

    def collect(self) -> Iterator[pytest.Item]:
        for identity, job in self.run.chosen:
            name = identity.removeprefix(f"{ROOT}::")
            yield CaseItem.from_parent(self, name=name, nodeid=identity, job=job, setting=self.run.setting)
        for identity, result in self.run.empty:
            name = identity.removeprefix(f"{ROOT}::")
            yield EmptyItem.from_parent(self, name=name, nodeid=identity, result=result)
