"""Runs a plan: judges every case, holds it against the known failures, finds the smallest case of each failure."""

import shlex
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from ssmspec_ref.contract import Verdict

from .cases import Case
from .diagnosis import diverges, looks_like
from .judge import OTHER, Judgement, Measured, judge
from .known import Entry, Known
from .load import PROGRAM
from .plan import Job
from .report import Diagnosis, Output, Result, python_command
from .shrink import shrink

WORD = {
    Verdict.PASS: "pass",
    Verdict.INAPPLICABLE: "inapplicable",
    Verdict.KNOWN_FAILURE: "known-failure",
    Verdict.UNKNOWN: "unknown",
    Verdict.FAIL: "fail",
}


@dataclass
class Way:
    """One way of failing in one cell of the matrix: the cases that do, and how many were run there."""

    found: list[tuple[Job, Judgement, Result]] = field(default_factory=list)
    cases: int = 0

    @property
    def kind(self) -> tuple[str, str]:
        """Operation and way: the smallest case of one is tried on the others of its kind."""
        job, _, result = self.found[0]
        return job.case.operation, result.failing


@dataclass(frozen=True)
class Setting:
    """What holds for a whole run, in every process of it: the lists of known failures by adapter, the device, the seed of the
    inputs that come second, and how the suite is called again."""

    known: dict[str, Known]
    device: str = "cpu"
    seed: int = OTHER
    called: str = field(default_factory=python_command)


class Judges(Protocol):
    """Who judges the cases of a plan."""

    def judge(self, job: Job) -> tuple[Judgement, float]:
        """The judgement on one case, and the seconds that it took."""
        ...

    def diagnose(self, ways: list[Way]) -> list[Diagnosis]:
        """The smallest case behind each way of failing."""
        ...


@dataclass(frozen=True)
class Alone:
    """This process judges, one case after the other."""

    setting: Setting

    def judge(self, job: Job) -> tuple[Judgement, float]:
        started = time.perf_counter()
        judgement = judge(job.specification, job.capability, job.case, self.setting.seed)
        return judgement, time.perf_counter() - started

    def diagnose(self, ways: list[Way]) -> list[Diagnosis]:
        smallest: dict[tuple[str, str], list[Case]] = defaultdict(list)
        made = []
        for way in ways:
            diagnosis, case = diagnose(way, smallest[way.kind], self.setting)
            if case not in smallest[way.kind]:
                smallest[way.kind].append(case)
            made.append(diagnosis)
        return made


@dataclass
class Outcome:
    """What a run found."""

    results: list[Result] = field(default_factory=list)
    diagnoses: list[Diagnosis] = field(default_factory=list)

    @property
    def green(self) -> bool:
        return not any(result.verdict in ("fail", "unknown") for result in self.results)


def run(
    jobs: Iterable[Job],
    left_out: Iterable[Result],
    setting: Setting,
    write: Callable[[Result | Diagnosis], None] = lambda line: None,
    whole: bool = False,
    judges: Judges | None = None,
) -> Outcome:
    """Judge every case of a plan, in order.

    `whole` says that the plan leaves nothing out, so that an entry of a known-failure list which met no case is an error.
    """
    outcome = Outcome()
    judges = judges or Alone(setting)
    failed: dict[tuple[tuple[str, str, str, str], str, str, str], Way] = defaultdict(Way)
    counts: dict[tuple[str, str, str, str], int] = defaultdict(int)

    def add(result: Result) -> None:
        outcome.results.append(result)
        write(result)

    for result in left_out:
        add(result)
    for job in jobs:
        judgement, seconds = judges.judge(job)
        result = record(job, judgement, setting, seconds)
        add(result)
        counts[job.group] += 1
        if result.verdict in ("fail", "known-failure"):
            failed[job.group, result.failing, result.verdict, result.reason].found.append((job, judgement, result))
    for (group, *_), way in failed.items():
        way.cases = counts[group]
    for diagnosis in judges.diagnose(list(failed.values())):
        outcome.diagnoses.append(diagnosis)
        write(diagnosis)
    if whole:
        for name, entries in setting.known.items():
            for entry in entries.unmet():
                add(unmet(name, entry))
    return outcome


def record(job: Job, judgement: Judgement, setting: Setting, seconds: float) -> Result:
    """The result of one case, in the light of the list of known failures."""
    adapter, subject, contract, operation = job.group
    verdict, entry, wrong = setting.known[adapter].apply(subject, contract, job.identity, judgement.verdict)
    return Result(
        adapter=adapter,
        subject=subject,
        contract=contract,
        operation=operation,
        case=job.identity,
        verdict=WORD[verdict],  # type: ignore[arg-type]
        failing="known-list" if wrong else judgement.kind,
        message=wrong or judgement.message,
        source=job.specification.source(job.case),
        outputs=tuple(output(m) for m in judgement.outputs),
        seconds=seconds,
        rerun=rerun(job, job.identity, setting, judgement.seed),
        reason=entry.reason if entry else "",
        link=entry.link if entry else "",
    )


def diagnose(way: Way, hints: list[Case], setting: Setting) -> tuple[Diagnosis, Case]:
    """The smallest case behind one way of failing in a cell of the matrix."""
    job, judgement, result = min(way.found, key=lambda f: f[0].case.size())
    _, subject, contract, _ = job.group

    def alike(case: Case) -> bool:
        entry = setting.known[job.adapter.name].entry(subject, contract, job.specification.identify(case))
        return (entry.reason if entry else "") == result.reason

    case, like = job.case, ""
    if judgement.verdict is Verdict.FAIL:
        case, judgement = shrink(
            job.specification, job.capability, job.case, judgement, hints, alike=alike, other=setting.seed
        )
        like = likeness(way, job, case) if result.verdict == "fail" and judgement.kind == "bound" else ""
    identity = job.specification.identify(case)
    worst = judgement.worst
    adapter, subject, contract, operation = job.group
    diagnosis = Diagnosis(
        adapter=adapter,
        subject=subject,
        contract=contract,
        operation=operation,
        verdict=result.verdict,  # type: ignore[arg-type]
        failures=len(way.found),
        cases=way.cases,
        smallest=identity,
        failing=judgement.kind or result.failing,
        message=judgement.message or result.message,
        output=output(worst) if worst else None,
        source=job.specification.source(case),
        reason=result.reason,
        link=result.link,
        rerun=rerun(job, identity, setting, judgement.seed),
        diverges=diverges(operation, judgement),
        looks_like=like,
    )
    return diagnosis, case


def likeness(way: Way, job: Job, smallest: Case) -> str:
    """The planted fault that a way of failing equals, if any."""
    from .faults.catalogue import FAULTS

    failed = [found.case for found, *_ in way.found if found.specification is job.specification]
    failing = [smallest, failed[0], failed[len(failed) // 2], failed[-1]]
    passing = (case for case in job.specification.cases("standard", job.capability.limits) if case not in failed)
    return looks_like(job.specification, job.capability, failing, passing, FAULTS)


def output(measured: Measured) -> Output:
    return Output(
        name=measured.name,
        state=measured.state,
        utilisation=measured.utilisation,
        error=measured.error,
        bound=measured.bound,
        first=measured.first,
        void=measured.void,
    )


def rerun(job: Job, identity: str, setting: Setting, seed: int | None = None) -> str:
    """The line that runs one case on one subject again."""
    program = job.given.removeprefix(PROGRAM)
    words = ["run", *(["--adapter", job.given] if program == job.given else ["--program", program])]
    words += ["--subject", job.subject.name, "--case", identity]
    words += [] if setting.device == "cpu" else ["--device", setting.device]
    words += [] if seed is None else ["--seed", str(seed)]
    return f"{setting.called} {shlex.join(words)}"


def unmet(adapter: str, entry: Entry) -> Result:
    """The failure of an entry of a known-failure list that met no case."""
    return Result(
        adapter=adapter,
        subject=entry.subject,
        contract=entry.contract,
        operation="",
        case=entry.case,
        verdict="fail",
        failing="known-list",
        message="listed as a known failure, but it matches no case that was run; correct or remove the entry",
    )
