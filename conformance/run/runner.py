"""Run a plan: test every case, apply the list of known failures, find the smallest case of each failure."""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from ssmspec_ref.contract import Verdict

from ..cases import Case
from ..errors import ConformanceError
from ..judge.raised import RAISED, origin
from ..judge.verdict import VOID, Judgement, judge
from ..report.stream import Diagnosis, Result
from .calls import tail
from .causes import diagnose, told_apart
from .plan import Job
from .results import BROKE, FULL, FailedCases, Setting, not_run, record, unmet

SEARCHED, REPLAYED = 8, 2
"""Subjects with the same failure for which the cause is searched, and whose failure is run again in a new process; the others
are reported without."""
REMEMBERED = 64
"""Cases before a failing one to run again if it passes alone."""


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
        """Run one case; of a drawn one under whose bound zeros pass, its spares, until one shows something. An internal error
        of the suite is reported, and leaves the case unknown."""
        started = time.perf_counter()
        try:
            for one in job.tried():
                judgement = judge(one.specification, one.capability, one.case, self.setting.seed)
                if judgement.kind != VOID:
                    break
            judgement = replace(judgement, case="" if one.case == job.case else one.identity)
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
            full = self.setting.explain == FULL and one.searched
            search, again = (full and number <= most for most in (SEARCHED, REPLAYED))
            diagnosis, case = diagnose(one, smallest[one.kind], self.setting, search, again)
            if case not in smallest[one.kind]:
                smallest[one.kind].append(case)
            made.append(told_apart(one, diagnosis, case, self.setting) if again else [diagnosis])
        return made


BAD = ("fail", "unknown")
"""Verdicts of which a run may stop after a number of cases."""
STOPPED = "the run stopped after {} that failed or stayed unknown"


@dataclass
class Outcome:
    """The results of a run."""

    results: list[Result] = field(default_factory=list)
    diagnoses: list[Diagnosis] = field(default_factory=list)

    @property
    def green(self) -> bool:
        return not any(result.verdict in (*BAD, "not-run") for result in self.results)

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
    most: int | None = None,
    judged_all: Callable[[list[Result]], None] = lambda results: None,
) -> Outcome:
    """Run every case of a plan. `write` receives each line immediately; the outcome is in the order of the plan.

    `whole` says that the plan leaves nothing out, so that an entry of a known-failure list that met no case is an error.
    `kept` gives the judgement of an earlier run on a case, if there is one; its result is already written. After `most` cases
    that failed or stayed unknown no other case is run. `judged_all` receives the results before a failure is explained.
    """
    outcome = Outcome()
    judges = judges or Alone(setting)
    found: dict[int, tuple[Judgement, Result]] = {}

    def add(result: Result) -> None:
        outcome.results.append(result)
        write(result)

    def judged(number: int, judgement: Judgement, seconds: float) -> Result:
        numbered[number] = numbered[number].settled(judgement.case)
        found[number] = judgement, record(numbered[number], judgement, setting, seconds)
        return found[number][1]

    for result in left_out:
        add(result)
    numbered = dict(enumerate(jobs))
    for number, job in numbered.items():
        if (old := kept(job)) is not None:
            judged(number, *old)
    bad = 0
    for new in judges.judged({number: job for number, job in numbered.items() if number not in found}):
        write(result := judged(*new))
        bad += result.verdict in BAD
        if bad == most:
            break
    why = STOPPED.format(f"{bad} case{'' if bad == 1 else 's'}")
    outcome.results += [found[n][1] if n in found else not_run(job, why) for n, job in numbered.items()]
    failed = failed_cases({number: job for number, job in numbered.items() if number in found}, found)
    judged_all(outcome.results)
    for diagnosis in judges.diagnose(failed):
        outcome.diagnoses.append(diagnosis)
        write(diagnosis)
    if whole and len(found) == len(numbered):
        for name, entries in setting.known.items():
            for entry in entries.unmet():
                add(unmet(name, entry))
    return outcome


def failed_cases(jobs: Mapping[int, Job], found: Mapping[int, tuple[Judgement, Result]]) -> list[FailedCases]:
    """The kinds of failure of a run, in the order of the plan. The same exception from one line is searched once."""
    failed: dict[tuple[tuple[str, str, str, str], str, str, str, str], FailedCases] = defaultdict(FailedCases)
    for number, job in jobs.items():
        judgement, result = found[number]
        if result.verdict in ("fail", "known-failure"):
            line = origin(result.failing, result.message) if result.failing in RAISED else ""
            failed[job.group, result.failing, line, result.verdict, result.reason].found.append((job, judgement, result))
    counts = Counter(job.group for job in jobs.values())
    passed: dict[tuple[str, str, str, str], list[Job]] = defaultdict(list)
    for number, job in jobs.items():
        if found[number][1].verdict == "pass":
            passed[job.group].append(job)
    seen: set[tuple[str, ...]] = set()
    for (group, failing, line, *verdict), one in failed.items():
        one.cases, one.passed = counts[group], passed[group]
        one.before = earlier(jobs, one.found[0][0])
        exception = (group[0], failing, line, *verdict)
        one.searched = not line or exception not in seen
        seen.add(exception)
    return list(failed.values())


def earlier(jobs: Mapping[int, Job], job: Job) -> list[Job]:
    """The last cases of a subject that ran before one of its cases."""
    own = [other for other in jobs.values() if other.group[:2] == job.group[:2]]
    return own[: own.index(job)][-REMEMBERED:]
