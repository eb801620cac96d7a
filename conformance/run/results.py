"""The settings and the results of a run: the record of a case, and the cases that fail in one way."""

import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from ssmspec_ref.contract import Verdict

from ..judge.verdict import OTHER, Judgement, Measured
from ..report.stream import Output, Result
from .again import command
from .known import Entry, Known
from .load import PROGRAM
from .plan import Job

BROKE = "suite"
"""The kind of failure of a case on which the suite itself failed."""
WORD = {
    Verdict.PASS: "pass",
    Verdict.INAPPLICABLE: "inapplicable",
    Verdict.KNOWN_FAILURE: "known-failure",
    Verdict.UNKNOWN: "unknown",
    Verdict.FAIL: "fail",
}
NONE, QUICK, FULL = "none", "quick", "full"
EXPLAIN = (NONE, QUICK, FULL)
"""How much of a failure is explained: nothing beyond the verdict of its cases; also the smallest case and its first wrong
value; also the cause."""


@dataclass
class FailedCases:
    """One kind of failure in one cell of the matrix: its cases, the passing cases, the subject's cases that ran before the
    first of them, and the number of cases run there; `searched`: no other kind of the run is the same exception."""

    found: list[tuple[Job, Judgement, Result]] = field(default_factory=list)
    passed: list[Job] = field(default_factory=list)
    before: list[Job] = field(default_factory=list)
    cases: int = 0
    searched: bool = True

    @property
    def kind(self) -> tuple[str, str]:
        """Operation and kind of failure: the smallest case of one is tried on the others of its kind."""
        job, _, result = self.found[0]
        return job.case.operation, result.failing

    @property
    def smallest(self) -> tuple[Job, Judgement, Result]:
        return min(self.found, key=lambda found: found[0].case.size())


@dataclass(frozen=True)
class Setting:
    """The settings of a whole run, in every process: the lists of known failures by adapter, the device, the seed of the
    randomised second inputs, the command that calls the suite again, the path that an adapter needs before it, whether a
    smaller case is searched for each failure, the command that runs one case again if it is not `conform run`, and how much
    of a failure is explained (`EXPLAIN`)."""

    known: dict[str, Known]
    device: str = "cpu"
    seed: int = OTHER
    called: str = field(default_factory=command)
    paths: dict[str, str] = field(default_factory=dict)
    shrinks: bool = True
    line: Callable[[Job, str], str] | None = None
    explain: str = FULL


def record(job: Job, judgement: Judgement, setting: Setting, seconds: float) -> Result:
    """The result of one case, after applying the list of known failures."""
    adapter, subject, contract, _ = job.group
    verdict, entry, wrong = setting.known[adapter].apply(subject, contract, job.identity, judgement.verdict)
    return Result(
        **_names(job),
        verdict=WORD[verdict],  # type: ignore[arg-type]
        failing="known-list" if wrong else judgement.kind,
        message=wrong or judgement.message,
        outputs=tuple(output(m) for m in judgement.outputs),
        seconds=seconds,
        rerun=rerun(job, job.identity, setting, judgement.seed),
        reason=entry.reason if entry else "",
        link=entry.link if entry else "",
        place=judgement.place,
        stricter=dict(judgement.stricter),
        drafts=judgement.drafts,
    )


def not_run(job: Job, why: str) -> Result:
    """The result for a case that a run left when it stopped early."""
    return Result(**_names(job), verdict="not-run", reason=why)


def _names(job: Job) -> dict[str, Any]:
    """What a result says of its job, whatever came of it."""
    names = dict(zip(("adapter", "subject", "contract", "operation"), job.group, strict=True))
    return names | {"case": job.identity, "source": job.specification.source(job.case), "drawn": job.drawn}


def output(measured: Measured) -> Output:
    return Output(
        name=measured.name,
        state=measured.state,
        utilisation=measured.utilisation,
        error=measured.error,
        bound=measured.bound,
        first=measured.first,
        void=measured.void,
        expected=measured.expected,
        got=measured.got,
        picture=measured.picture,
        at=measured.at,
    )


def rerun(job: Job, identity: str, setting: Setting, seed: int | None = None, before: Iterable[str] = ()) -> str:
    """The command that runs one case on one subject again, after those `before` it."""
    if setting.line:
        return setting.line(job, identity)
    program = job.given.removeprefix(PROGRAM)
    words = ["run", *(["--adapter", job.given] if program == job.given else ["--program", program])]
    words += ["--subject", job.subject.name, *(word for one in before for word in ("--before", one)), "--case", identity]
    words += [] if setting.device == "cpu" else ["--device", setting.device]
    words += [] if seed is None else ["--seed", str(seed)]
    return f"{setting.paths.get(job.given, '')}{setting.called} {shlex.join(words)}"


def unmet(adapter: str, entry: Entry) -> Result:
    """A failure for an entry of a known-failure list that met no case."""
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
