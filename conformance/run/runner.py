"""Run a plan: test every case, apply the list of known failures, find the smallest case of each failure."""

import shlex
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from ssmspec_ref.contract import Verdict

from ..cases import Case
from ..diagnose.changes.needs import needs
from ..diagnose.earlier.after import after
from ..diagnose.earlier.calls import in_a_row
from ..diagnose.facts import ORDER, facts
from ..diagnose.replay import replay
from ..diagnose.several import Cause, causes_apart
from ..errors import ConformanceError
from ..judge.clock import Clock, limited
from ..judge.diagnosis import Likeness, diverges, looks_like
from ..judge.shrink import shrink
from ..judge.verdict import OTHER, Judgement, Measured, judge
from ..report.stream import Diagnosis, Output, Result
from .again import command
from .calls import tail
from .known import Entry, Known
from .load import PROGRAM
from .plan import Job

VALUES = ("bound", "nan")
"""Kinds of failure for which the report says where the values are wrong and what explains them."""
CONDITIONS = ("overwritten", "again", "stale")
"""Further kinds for which the report says with which changes the case passes."""
DEPENDS = ("values", "inputs", "extent", "decides", "passes")
"""Facts that hold for the calls of the search only, if a failure depends on earlier calls."""
SMALLEST, LIKE, APART = 30.0, 20.0, 20.0
"""Seconds to look for the smallest case, for planted faults, and for several bugs."""
WINDOWS = 64
"""Windows of a history in which several bugs are told apart; each window adds outputs to compare."""
SEARCHED, REPLAYED = 8, 2
"""Subjects with the same failure for which the cause is searched, and whose failure is run again in a new process; the others
are reported without."""
SEARCH_BROKE = "ssmspec itself broke while it searched for the cause; the verdict does not depend on it"
REMEMBERED = 64
"""Cases before a failing one to run again if it passes alone."""
BROKE = "suite"
"""The kind of failure of a case on which the suite itself failed."""
WORD = {
    Verdict.PASS: "pass",
    Verdict.INAPPLICABLE: "inapplicable",
    Verdict.KNOWN_FAILURE: "known-failure",
    Verdict.UNKNOWN: "unknown",
    Verdict.FAIL: "fail",
}


@dataclass
class FailedCases:
    """One kind of failure in one cell of the matrix: its cases, the passing cases, the subject's cases that ran before the
    first of them, and the number of cases run there."""

    found: list[tuple[Job, Judgement, Result]] = field(default_factory=list)
    passed: list[Job] = field(default_factory=list)
    before: list[Job] = field(default_factory=list)
    cases: int = 0

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
    smaller case is searched for each failure, and the command that runs one case again if it is not `conform run`."""

    known: dict[str, Known]
    device: str = "cpu"
    seed: int = OTHER
    called: str = field(default_factory=command)
    paths: dict[str, str] = field(default_factory=dict)
    shrinks: bool = True
    line: Callable[[Job, str], str] | None = None


class Judges(Protocol):
    """An object that runs the cases of a plan."""

    def judged(self, jobs: Mapping[int, Job]) -> Iterator[tuple[int, Judgement, float]]:
        """The index of a case, its judgement and the seconds that it took, in any order."""
        ...

    def diagnose(self, failures: list[FailedCases]) -> list[Diagnosis]:
        """The smallest case of each kind of failure."""
        ...


@dataclass(frozen=True)
class Alone:
    """Runs the cases in this process, one after the other."""

    setting: Setting

    def judge(self, job: Job) -> tuple[Judgement, float]:
        """Run one case. An internal error of the suite is reported, and leaves the case unknown."""
        started = time.perf_counter()
        try:
            judgement = judge(job.specification, job.capability, job.case, self.setting.seed)
        except ConformanceError:
            raise
        except Exception as error:
            judgement = Judgement(Verdict.UNKNOWN, BROKE, f"the suite itself broke on this case: {tail(error)}")
        return judgement, time.perf_counter() - started

    def judged(self, jobs: Mapping[int, Job]) -> Iterator[tuple[int, Judgement, float]]:
        for number, job in jobs.items():
            yield number, *self.judge(job)

    def diagnose(self, failures: list[FailedCases]) -> list[Diagnosis]:
        return [diagnosis for of in self.diagnosed(failures) for diagnosis in of]

    def diagnosed(self, failures: list[FailedCases]) -> list[list[Diagnosis]]:
        """For each kind of failure one diagnosis or, if several bugs were told apart in it, one for each of them."""
        smallest: dict[tuple[str, str], list[Case]] = defaultdict(list)
        searched = Counter[tuple[str, str]]()
        made = []
        for one in failures:
            searched[one.kind] += 1
            number = searched[one.kind]
            diagnosis, case = diagnose(one, smallest[one.kind], self.setting, number <= SEARCHED, number <= REPLAYED)
            if case not in smallest[one.kind]:
                smallest[one.kind].append(case)
            made.append(_told_apart(one, diagnosis, case, self.setting) if number <= REPLAYED else [diagnosis])
        return made


@dataclass
class Outcome:
    """The results of a run."""

    results: list[Result] = field(default_factory=list)
    diagnoses: list[Diagnosis] = field(default_factory=list)

    @property
    def green(self) -> bool:
        return not any(result.verdict in ("fail", "unknown") for result in self.results)

    @property
    def broke(self) -> bool:
        """Whether the suite itself failed on a case."""
        return any(result.failing == BROKE for result in self.results)


def run(
    jobs: Iterable[Job],
    left_out: Iterable[Result],
    setting: Setting,
    write: Callable[[Result | Diagnosis], None] = lambda line: None,
    whole: bool = False,
    judges: Judges | None = None,
    kept: Callable[[Job], tuple[Judgement, float] | None] = lambda job: None,
) -> Outcome:
    """Run every case of a plan. `write` receives each line immediately; the outcome is in the order of the plan.

    `whole` says that the plan leaves nothing out, so that an entry of a known-failure list that met no case is an error.
    `kept` gives the judgement of an earlier run on a case, if there is one; its result is already written.
    """
    outcome = Outcome()
    judges = judges or Alone(setting)
    found: dict[int, tuple[Judgement, Result]] = {}

    def add(result: Result) -> None:
        outcome.results.append(result)
        write(result)

    def judged(number: int, judgement: Judgement, seconds: float) -> Result:
        found[number] = judgement, record(numbered[number], judgement, setting, seconds)
        return found[number][1]

    for result in left_out:
        add(result)
    numbered = dict(enumerate(jobs))
    for number, job in numbered.items():
        if (old := kept(job)) is not None:
            judged(number, *old)
    for new in judges.judged({number: job for number, job in numbered.items() if number not in found}):
        write(judged(*new))
    outcome.results += [found[number][1] for number in numbered]
    for diagnosis in judges.diagnose(failed_cases(numbered, found)):
        outcome.diagnoses.append(diagnosis)
        write(diagnosis)
    if whole:
        for name, entries in setting.known.items():
            for entry in entries.unmet():
                add(unmet(name, entry))
    return outcome


def failed_cases(jobs: Mapping[int, Job], found: Mapping[int, tuple[Judgement, Result]]) -> list[FailedCases]:
    """The kinds of failure of a run, in the order of the plan."""
    failed: dict[tuple[tuple[str, str, str, str], str, str, str], FailedCases] = defaultdict(FailedCases)
    for number, job in jobs.items():
        judgement, result = found[number]
        if result.verdict in ("fail", "known-failure"):
            failed[job.group, result.failing, result.verdict, result.reason].found.append((job, judgement, result))
    counts = Counter(job.group for job in jobs.values())
    passed: dict[tuple[str, str, str, str], list[Job]] = defaultdict(list)
    for number, job in jobs.items():
        if found[number][1].verdict == "pass":
            passed[job.group].append(job)
    for (group, *_), one in failed.items():
        one.cases, one.passed = counts[group], passed[group]
        one.before = earlier(jobs, one.found[0][0])
    return list(failed.values())


def earlier(jobs: Mapping[int, Job], job: Job) -> list[Job]:
    """The last cases of a subject that ran before one of its cases."""
    own = [other for other in jobs.values() if other.group[:2] == job.group[:2]]
    return own[: own.index(job)][-REMEMBERED:]


def record(job: Job, judgement: Judgement, setting: Setting, seconds: float) -> Result:
    """The result of one case, after applying the list of known failures."""
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
        place=judgement.place,
        stricter=dict(judgement.stricter),
        drafts=judgement.drafts,
    )


def diagnose(
    one: FailedCases, hints: list[Case], setting: Setting, search: bool = True, again: bool = True
) -> tuple[Diagnosis, Case]:
    """The smallest case of one kind of failure in a cell of the matrix. `search` enables the search for its cause, `again`
    running it again in a new process.
    """
    job, judgement, result = one.smallest
    case, like, told = job.case, Likeness(), dict[str, str]()
    before: list[str] = []
    if judgement.verdict is Verdict.FAIL:
        try:
            case, judgement, like, told, before = _searched(one, hints, setting, search, again)
        except ConformanceError:
            raise
        except Exception as error:  # the case has failed already: a fault of the search must not lose that
            told = {"search": f"{SEARCH_BROKE} ({tail(error)})"}
    identity = job.specification.identify(case)
    worst = judgement.worst
    adapter, subject, contract, operation = job.group
    diagnosis = Diagnosis(
        adapter=adapter,
        subject=subject,
        contract=contract,
        operation=operation,
        verdict=result.verdict,  # type: ignore[arg-type]
        failures=len(one.found),
        cases=one.cases,
        smallest=identity,
        failing=judgement.kind or result.failing,
        message=judgement.message or result.message,
        output=output(worst) if worst else None,
        source=job.specification.source(case),
        reason=result.reason,
        link=result.link,
        rerun=rerun(job, identity, setting, judgement.seed, before),
        diverges=diverges(operation, judgement),
        looks_like=like.equal,
        facts=told,
    )
    return diagnosis, case


def _searched(
    one: FailedCases, hints: list[Case], setting: Setting, search: bool, again: bool
) -> tuple[Case, Judgement, Likeness, dict[str, str], list[str]]:
    """The smallest case and its judgement, the planted faults it equals or is near, the facts, and the cases before it."""
    job, judgement, result = one.smallest
    _, subject, contract, _ = job.group

    def alike(case: Case) -> bool:
        entry = setting.known[job.adapter.name].entry(subject, contract, job.specification.identify(case))
        return (entry.reason if entry else "") == result.reason

    case, like, told = job.case, Likeness(), dict[str, str]()
    before: list[str] = []
    size = Clock(SMALLEST)
    if setting.shrinks:
        case, judgement = shrink(
            job.specification, job.capability, job.case, judgement, hints, alike=alike, other=setting.seed, clock=size
        )
    look = Clock(LIKE)
    if result.verdict == "fail" and judgement.kind in VALUES:
        like = likeness(one, job, case, look)
        failing = [found.case for found, *_ in one.found if found.specification is job.specification]
        passing = [other.case for other in one.passed if other.specification is job.specification]
        told = facts(job.specification, job.capability, case, failing, passing, judgement.seed, search)
    elif result.verdict == "fail" and judgement.kind in CONDITIONS and search:
        failing = [found.case for found, *_ in one.found if found.specification is job.specification]
        other = setting.seed if judgement.seed is None else judgement.seed
        said = needs(job.specification, job.capability, case, failing, other)
        told = {"passes": said} if said else {}
    if like.nearest:
        told["nearest"] = like.nearest
    if result.verdict == "fail" and again:
        case, judgement, before, says, shown = _replayed(one, job, case, judgement, setting)
        if says:  # what was searched without the earlier calls may have other causes
            told = {name: said for name, said in told.items() if name not in DEPENDS} | shown
        if judgement.kind in VALUES and (says or case.options.get("repeat") == "often"):
            told |= {"calls": counted} if (counted := in_a_row(job.specification, job.capability, case)) else {}
        told |= {"replay": says} if says else {}
    ended = "; ".join([*size.says("the smallest case"), *look.says("planted faults"), *filter(None, [told.get("limits")])])
    told |= {"limits": ended} if ended else {}
    if "calls" in told:
        told = {name: said for name, said in told.items() if name not in ("decides", "passes")}
    first = [name for name in ORDER if name in told]
    return case, judgement, like, {name: told[name] for name in (*first, *(n for n in told if n not in first))}, before


def _told_apart(one: FailedCases, whole: Diagnosis, smallest: Case, setting: Setting) -> list[Diagnosis]:
    """The diagnoses of several bugs, or that of one. If ssmspec breaks in the search, the report says so and has the one."""
    try:
        return bugs(one, whole, smallest, setting) or [whole]
    except ConformanceError:
        raise
    except Exception as error:
        return [whole.model_copy(update={"facts": {**whole.facts, "search": f"{SEARCH_BROKE} ({tail(error)})"}})]


def bugs(one: FailedCases, whole: Diagnosis, smallest: Case, setting: Setting) -> list[Diagnosis]:
    """A diagnosis for each of several bugs; empty if there is one, or if they cannot be told apart."""
    job, *_ = one.smallest
    if whole.verdict != "fail" or whole.failing != "bound" or whole.looks_like or not setting.shrinks:
        return []
    if smallest.operation != job.case.operation or {"replay", "search", "calls"} & whole.facts.keys():
        return []
    if smallest.sizes.get("j", 0) > WINDOWS:
        return []
    failing = [found.case for found, *_ in one.found if found.specification is job.specification]
    clock = Clock(APART)
    causes = causes_apart(limited(job.specification, clock), job.capability, smallest, failing)
    if clock.noticed:  # what was not tried may be one cause of all
        limits = "; ".join([*filter(None, [whole.facts.get("limits")]), *clock.says("several bugs")])
        return [whole.model_copy(update={"facts": {**whole.facts, "limits": limits}})]
    return [_bug(job, whole, cause, f"{n} of {len(causes)}", setting) for n, cause in enumerate(causes, 1)]


def _bug(job: Job, whole: Diagnosis, cause: Cause, which: str, setting: Setting) -> Diagnosis:
    """The diagnosis of one of several bugs, on the cases that show it."""
    case = cause.cases[0]
    judgement = judge(job.specification, job.capability, case, setting.seed)
    told = facts(job.specification, job.capability, case, cause.cases, (), judgement.seed, search=False)
    told |= {"bug": f"{which} that the suite can tell apart; a failing case shows one of them or both", "behaves": cause.says}
    if cause.beside:
        told["behaves"] += f"; no case shows it without the other bug ({cause.beside})"
    else:
        told["passes"] = needs(job.specification, job.capability, case, cause.cases, setting.seed)
    identity, worst = job.specification.identify(case), judgement.worst
    return whole.model_copy(
        update={
            "smallest": identity,
            "message": judgement.message,
            "output": output(worst) if worst else None,
            "source": job.specification.source(case),
            "rerun": rerun(job, identity, setting, judgement.seed),
            "diverges": diverges(whole.operation, judgement),
            "facts": {name: told[name] for name in ("bug", *ORDER) if told.get(name)},
        }
    )


def _replayed(
    one: FailedCases, job: Job, smallest: Case, judgement: Judgement, setting: Setting
) -> tuple[Case, Judgement, list[str], str, dict[str, str]]:
    """The case to run again, its judgement, the cases to run before it, a sentence about it, and its first wrong place.

    If the smallest case passes in a new process, the first failing case of its operation is used: alone, or after those
    before it.
    """
    first, found, _ = next(f for f in one.found if f[0].specification is job.specification)
    alone = replay((job.specification, job.capability, smallest), (), setting.seed)
    if alone is None or alone.alone:
        return smallest, judgement, [], "", {}
    earlier = [(other.specification, other.capability, other.case) for other in one.before]
    again = replay((first.specification, first.capability, first.case), earlier, setting.seed)
    assert again is not None
    shown: dict[str, str] = {}
    if again.before:  # the numbers of the first line and those below it are of the same calls
        called = (first.specification, first.capability, first.case)
        same, shown = after(called, [earlier[number] for number in again.before], setting.seed)
        found = same or found
    return first.case, found, [one.before[number].identity for number in again.before], again.says, shown


def likeness(one: FailedCases, job: Job, smallest: Case, clock: Clock | None = None) -> Likeness:
    """The planted faults with the same outputs as a failure, or with similar ones."""
    from ..faults.catalogue import FAULTS

    failed = [found.case for found, *_ in one.found if found.specification is job.specification]
    failing = [smallest, failed[0], failed[len(failed) // 2], failed[-1]]
    passing = (case for case in job.specification.cases("standard", job.capability.limits) if case not in failed)
    return looks_like(job.specification, job.capability, failing, passing, FAULTS, clock)


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
