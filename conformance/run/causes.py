"""Why the cases of one kind of failure fail: their smallest case, and what explains it."""

from ssmspec_ref.contract import Verdict

from ..cases import Case
from ..diagnose.changes.needs import needs
from ..diagnose.earlier.after import after
from ..diagnose.earlier.calls import in_a_row
from ..diagnose.facts import ORDER, facts
from ..diagnose.replay import replay
from ..diagnose.several import Cause, causes_apart
from ..diagnose.takes import takes
from ..errors import ConformanceError
from ..judge.clock import Clock, limited
from ..judge.diagnosis import Likeness, diverges, looks_like
from ..judge.raised import RAISED, REFUSED
from ..judge.shrink import shrink
from ..judge.verdict import Judgement, judge
from ..report.stream import Diagnosis
from .calls import tail
from .load import PROGRAM
from .plan import Job
from .results import FULL, NONE, FailedCases, Setting, output, rerun

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
ABSENT = "no limit separates what it refuses from what it takes; if it takes no case, do not declare {operation}"
SEARCH_BROKE = "ssmspec itself broke while it searched for the cause; the verdict does not depend on it"


def diagnose(
    one: FailedCases, hints: list[Case], setting: Setting, search: bool = True, again: bool = True
) -> tuple[Diagnosis, Case]:
    """The smallest case of one kind of failure in a cell of the matrix. `search` enables the search for its cause, `again`
    running it again in a new process.
    """
    job, judgement, result = one.smallest
    case, like, told = job.case, Likeness(), dict[str, str]()
    before: list[str] = []
    if judgement.verdict is Verdict.FAIL and setting.explain != NONE and one.searched:
        try:
            case, judgement, like, told, before = _searched(one, hints, setting, search, again)
        except ConformanceError:
            raise
        except Exception as error:  # the case has failed already: a fault of the search must not lose that
            told = {"search": f"{SEARCH_BROKE} ({tail(error)})"}
    if judgement.kind in RAISED and result.verdict == "fail":
        as_json = job.given.startswith(PROGRAM)
        line = takes(job.specification, job.capability, case, *_cases(one, job), as_json)
        line = line or (ABSENT.format(operation=job.case.operation) if judgement.kind == REFUSED else "")
        told = ({"takes": line} if line else {}) | told
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
        diverges=diverges(operation, judgement, case.sizes),
        looks_like=like.equal,
        facts=told,
    )
    return diagnosis, case


def _cases(one: FailedCases, job: Job) -> tuple[list[Case], list[Case]]:
    """The failing and the passing cases of the cell that are of a job's specification."""
    failing = [found.case for found, *_ in one.found if found.specification is job.specification]
    return failing, [other.case for other in one.passed if other.specification is job.specification]


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
        like = likeness(one, job, case, look) if setting.explain == FULL else like
        failing, passing = _cases(one, job)
        given = job.specification, job.capability, case, failing, passing, judgement.seed, search
        told = facts(*given, explained=bool(like.equal))
    elif result.verdict == "fail" and judgement.kind in CONDITIONS and search:
        failing, _ = _cases(one, job)
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


def told_apart(one: FailedCases, whole: Diagnosis, smallest: Case, setting: Setting) -> list[Diagnosis]:
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
    failing, _ = _cases(one, job)
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
            "diverges": diverges(whole.operation, judgement, case.sizes),
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

    failed, _ = _cases(one, job)
    failing = [smallest, failed[0], failed[len(failed) // 2], failed[-1]]
    passing = (case for case in job.specification.cases("standard", job.capability.limits) if case not in failed)
    return looks_like(job.specification, job.capability, failing, passing, FAULTS, clock)
