"""Runs a plan: judges every case, holds it against the known failures, finds the smallest case of each failure."""

import shlex
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ssmspec_ref.contract import Verdict

from .cases import Case
from .judge import Judgement, Measured, judge
from .known import Known
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
Way = tuple[tuple[str, str, str, str], str, str, str]
"""A cell of the matrix, and a way of failing in it: how, whether it is listed, and the reason that is listed."""


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
    known: dict[str, Known],
    write: Callable[[Result | Diagnosis], None] = lambda line: None,
    whole: bool = False,
    device: str = "cpu",
) -> Outcome:
    """Judge every case of a plan, in order.

    `whole` says that the plan leaves nothing out, so that an entry of a known-failure list which met no case is an error.
    """
    outcome = Outcome()
    failed: dict[Way, list[tuple[Job, Judgement, Result]]] = defaultdict(list)
    counts: dict[tuple[str, str, str, str], int] = defaultdict(int)

    def add(result: Result) -> None:
        outcome.results.append(result)
        write(result)

    for result in left_out:
        add(result)
    for job in jobs:
        started = time.perf_counter()
        judgement = judge(job.specification, job.capability, job.case)
        result = record(job, judgement, known[job.adapter.name], time.perf_counter() - started, device)
        add(result)
        counts[job.group] += 1
        if result.verdict in ("fail", "known-failure"):
            failed[job.group, result.failing, result.verdict, result.reason].append((job, judgement, result))
    smallest: dict[tuple[str, str], list[Case]] = defaultdict(list)
    for (group, failing, _, _), failures in failed.items():
        hints = smallest[group[-1], failing]
        diagnosis, case = diagnose(failures, counts[group], hints, known[failures[0][0].adapter.name], device)
        if case not in hints:
            hints.append(case)
        outcome.diagnoses.append(diagnosis)
        write(diagnosis)
    if whole:
        for name, entries in known.items():
            for entry in entries.unmet():
                add(_unmet(name, entry.subject, entry.contract, entry.case))
    return outcome


def record(job: Job, judgement: Judgement, known: Known, seconds: float, device: str) -> Result:
    """The result of one case, in the light of the list of known failures."""
    adapter, subject, contract, operation = job.group
    verdict, entry, wrong = known.apply(subject, contract, job.identity, judgement.verdict)
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
        rerun=rerun(job, job.identity, device),
        reason=entry.reason if entry else "",
        link=entry.link if entry else "",
    )


def diagnose(
    failures: list[tuple[Job, Judgement, Result]], cases: int, hints: list[Case], known: Known, device: str
) -> tuple[Diagnosis, Case]:
    """The smallest case behind one way of failing in a cell of the matrix."""
    job, judgement, result = min(failures, key=lambda f: f[0].case.size())
    _, subject, contract, _ = job.group

    def alike(case: Case) -> bool:
        entry = known.entry(subject, contract, job.specification.identify(case))
        return (entry.reason if entry else "") == result.reason

    case = job.case
    if judgement.verdict is Verdict.FAIL:
        case, judgement = shrink(job.specification, job.capability, job.case, judgement, hints, alike=alike)
    identity = job.specification.identify(case)
    worst = judgement.worst
    adapter, subject, contract, operation = job.group
    diagnosis = Diagnosis(
        adapter=adapter,
        subject=subject,
        contract=contract,
        operation=operation,
        verdict=result.verdict,  # type: ignore[arg-type]
        failures=len(failures),
        cases=cases,
        smallest=identity,
        failing=judgement.kind or result.failing,
        message=judgement.message or result.message,
        output=output(worst) if worst else None,
        source=job.specification.source(case),
        reason=result.reason,
        link=result.link,
        rerun=rerun(job, identity, device),
    )
    return diagnosis, case


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


def rerun(job: Job, identity: str, device: str) -> str:
    """The line that runs one case on one subject again."""
    words = ["run", "--adapter", job.given, "--subject", job.subject.name, "--case", identity]
    words += [] if device == "cpu" else ["--device", device]
    return f"{python_command()} {shlex.join(words)}"


def _unmet(adapter: str, subject: str, contract: str, case: str) -> Result:
    return Result(
        adapter=adapter,
        subject=subject,
        contract=contract,
        operation="",
        case=case,
        verdict="fail",
        failing="known-list",
        message="listed as a known failure, but it matches no case that was run; correct or remove the entry",
    )
