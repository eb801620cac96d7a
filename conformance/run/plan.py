"""Choose which cases to run on which subject, and record what is left out and why."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache, partial
from zlib import crc32

from ssmspec_ref.contract import ASKED, OPERATIONS, Adapter, Capability, Limits, Subject
from ssmspec_ref.options.words import nearest

from ..cases import Case
from ..errors import MalformedAdapter, UnknownCase, UnknownLimit, UnknownOperation
from ..judge.shrink import within
from ..judge.verdict import OTHER
from ..report.stream import Result
from ..suite import SPECIFICATIONS, find, of_operation
from ..suite.specification import DRAWN, Specification

SPARES = 4
"""Cases of each operation that are drawn in addition to one for each drawn case. Of 492 drawn cases none had bounds so wide
that zeros pass (float64, and bf16 with states of fp32 and bf16)."""


@dataclass(frozen=True)
class Job:
    """One case on one subject. `given` is the adapter as named on the command line; `drawn`, whether the sizes are of the
    run's seed, and not of a table. `spares` are drawn cases to run in its place, in this order, where zeros would pass."""

    given: str
    adapter: Adapter
    subject: Subject
    capability: Capability
    specification: Specification
    case: Case
    drawn: bool = False
    spares: tuple[Case, ...] = ()

    @property
    def identity(self) -> str:
        return self.specification.identify(self.case)

    @property
    def group(self) -> tuple[str, str, str, str]:
        """The cell of the matrix to which a case belongs."""
        return self.adapter.name, self.subject.name, str(self.capability.contract), self.case.operation

    def tried(self) -> Iterator["Job"]:
        """The job, and the same with each of its spares."""
        yield self
        for case in self.spares:
            yield replace(self, case=case)

    def settled(self, case: str) -> "Job":
        """The job of which a case was judged, by its id; "" is that of the job itself."""
        return next(job for job in self.tried() if job.identity == case) if case else self


@dataclass(frozen=True)
class Selection:
    """What to run: a tier, and patterns for subjects and operations, or one case."""

    tier: str = "smoke"
    subject: str = "*"
    operation: str = "*"
    case: str | None = None
    before: tuple[str, ...] = ()
    """Cases of the same subjects to run before the selected case, in this order."""
    shard: tuple[int, int] = (1, 1)
    """The shard, and the number of shards. Cases are distributed in turn; those with the same id are in the same shard."""
    seed: int = OTHER
    """The seed of the cases whose sizes are drawn when a run starts."""
    failed: tuple[tuple[str, str, str], ...] = ()
    """Adapter, subject and id of cases to run again, in place of those of the tier."""

    @property
    def only(self) -> str:
        """What is selected, apart from a shard; "" if nothing is left out."""
        chosen = {"subject": self.subject, "operation": self.operation, "case": self.case or "*"}
        again = [f"{len(self.failed)} that failed before"] if self.failed else []
        return ", ".join([*again, *(f"{name} {pattern}" for name, pattern in chosen.items() if pattern != "*")])

    @property
    def whole(self) -> bool:
        """Whether nothing is left out, so that entries that met no case are known to be unused."""
        return not self.only and self.shard == (1, 1)


def plan(adapters: Mapping[str, Adapter], selection: Selection) -> tuple[list[Job], list[Result]]:
    """The cases to run, in order, and what is inapplicable.

    Raises: UnknownCase if nothing is selected; UnknownOperation for an unknown capability; UnknownLimit; MalformedAdapter for
    two adapters with the same name.
    """
    check_names(adapters)
    known = _options(), {axis for specification in SPECIFICATIONS for axis in specification.base}
    for adapter in adapters.values():
        for subject in adapter.subjects:
            check_operations(adapter, subject)
            check_limits(adapter, subject, *known)
    operations = [operation for operation in OPERATIONS if fnmatchcase(operation, selection.operation)]
    jobs: list[Job] = []
    left_out: list[Result] = []
    for given, adapter in adapters.items():
        for subject in adapter.subjects:
            if selection.subject != subject.name and not fnmatchcase(subject.name, selection.subject):
                continue
            if selection.failed:
                again = [case for made, name, case in selection.failed if (made, name) == (adapter.name, subject.name)]
                jobs += _named(given, adapter, subject, again, selection.operation)
                continue
            if selection.case:
                named = list(_named(given, adapter, subject, [selection.case], selection.operation))
                jobs += [*_named(given, adapter, subject, selection.before), *named]
                left_out += [] if named else _outside(adapter, subject, operations, selection.case)
                continue
            for operation in operations:
                tier = list(_jobs(given, adapter, subject, operation, selection))
                jobs += tier
                left_out += _left_out(adapter, subject, operation, bool(tier), selection.tier)
    if not jobs and not left_out:
        subjects = [subject for adapter in adapters.values() for subject in adapter.subjects]
        called = dict.fromkeys(subject.name for subject in subjects)
        had = dict.fromkeys(operation for subject in subjects for operation in subject.capabilities)
        near = "" if any(fnmatchcase(name, selection.subject) for name in called) else nearest(selection.subject, called)
        near = near or nearest(selection.operation, had)
        sought = selection.case or selection.operation
        who = "no subject" if selection.subject == "*" else f"no subject {selection.subject!r}"
        what = f"there is {who}" if sought == "*" else f"{who} has {sought!r}"
        raise UnknownCase(
            f"nothing to run: {what}{near}; "
            f"the subjects are {', '.join(called)}; they have {', '.join(had) or 'no operation'}"
        )
    part, parts = selection.shard
    jobs = [job for job in jobs if crc32(job.identity.encode()) % parts == part - 1]
    return jobs, left_out if part == 1 else []


def check_names(adapters: Mapping[str, Adapter]) -> None:
    """Raise MalformedAdapter for two adapters with the same name: their results would be counted as those of one."""
    named: dict[str, str] = {}
    for given, adapter in adapters.items():
        if (other := named.setdefault(adapter.name, given)) != given:
            raise MalformedAdapter(f"{other} and {given} are both named {adapter.name!r}; give each its own name")


def check_operations(adapter: Adapter, subject: Subject) -> None:
    """Raise UnknownOperation for a declared name that is not an operation, and would never be run."""
    unknown = [name for name in subject.capabilities if name not in OPERATIONS]
    if unknown:
        near = nearest(unknown[0], OPERATIONS)
        raise UnknownOperation(
            f"{adapter.name}, {subject.name}, declares {', '.join(unknown)}{near}; the operations are {', '.join(OPERATIONS)}"
        )


def check_limits(adapter: Adapter, subject: Subject, known: Mapping[str, Collection[str]], axes: Collection[str]) -> None:
    """Raise UnknownLimit for a limit on an option, a value or an axis that no case has, and that would have no effect."""
    for operation, capability in subject.capabilities.items():
        options, sizes = capability.limits.options, capability.limits.sizes
        wrong = [name for name in options if name not in known]
        wrong += [f"{n}={v}" for n, values in options.items() for v in values if v not in known.get(n, {v})]
        wrong += [f"the axis {name}" for name in sizes if name not in axes]
        if wrong:
            has = [option for specification in of_operation(operation) for option in specification.offered_text]
            given = wrong[0].partition("=")[2]
            here = [name.partition("=")[0] for name in has]
            near = nearest(given, known.get(wrong[0].partition("=")[0], ())) if given else nearest(wrong[0], [*here, *axes])
            raise UnknownLimit(
                f"{adapter.name}, {subject.name}, limits {', '.join(wrong)}, which no case has{near}; "
                f"{operation} has {', '.join(dict.fromkeys(has))}; the axes are {', '.join(sorted(axes))}"
            )


def _options() -> dict[str, set[str]]:
    """Every option of every operation, with its values."""
    known: dict[str, set[str]] = {}
    for specification in SPECIFICATIONS:
        for name, values in specification.offered.items():
            known.setdefault(name, set()).update(values)
    return known


def _jobs(given: str, adapter: Adapter, subject: Subject, operation: str, selection: Selection) -> Iterator[Job]:
    capability = subject.capabilities.get(operation)
    if capability is None:
        return
    for specification in _taken(capability, operation):
        made = partial(Job, given, adapter, subject, capability, specification)
        tabled = _once(specification, specification.cases(selection.tier, capability.limits))
        yield from map(made, tabled.values())
        most = DRAWN.get(selection.tier, 0)
        drawn = _once(specification, specification.drawn(selection.tier, capability.limits, selection.seed, most + SPARES))
        new = [case for name, case in drawn.items() if name not in tabled]
        yield from (made(case, drawn=True, spares=tuple(new[most + n :: most])) for n, case in enumerate(new[:most]))


def _once(specification: Specification, cases: Iterable[Case]) -> dict[str, Case]:
    """Each case once, by its id."""
    return {specification.identify(case): case for case in cases}


def _named(given: str, adapter: Adapter, subject: Subject, ids: Iterable[str], operation: str = "*") -> Iterator[Job]:
    """The cases of these ids that the subject offers."""
    for identity in ids:
        specification, case = find(identity)
        capability = subject.capabilities.get(specification.operation)
        wanted = fnmatchcase(specification.operation, operation)
        if wanted and capability is not None and within(specification, capability, case):
            yield Job(given, adapter, subject, capability, specification, case)


def _outside(adapter: Adapter, subject: Subject, operations: Collection[str], identity: str) -> list[Result]:
    """The result for a case that was given by its id but is excluded by the limits of its operation."""
    operation = find(identity)[1].operation
    capability = subject.capabilities.get(operation)
    if capability is None or operation not in operations:
        return []
    reason = f"{identity}, which lies outside the limits ({capability.limits.reason})"
    return [_inapplicable(adapter, subject, str(capability.contract), operation, reason)]


def _taken(capability: Capability, operation: str) -> list[Specification]:
    """The specifications of an operation within the limits; for layers, those of the subject's kind."""
    offered = capability.limits.options
    return [
        specification
        for specification in of_operation(operation)
        if all(value in offered.get(name, (value,)) for name, value in specification.fixed.items())
    ]


@cache
def _every(operation: str, number: int, tier: str) -> tuple[Case, ...]:
    """The cases of a tier, without limits, of one of the specifications of an operation."""
    return tuple(of_operation(operation)[number].cases(tier, Limits()))


def _outside_limits(capability: Capability, operation: str, tier: str) -> int:
    """How many cases of a tier the limits of a capability exclude."""
    numbered = enumerate(of_operation(operation))
    return sum(not within(one, capability, case) for number, one in numbered for case in _every(operation, number, tier))


def _left_out(adapter: Adapter, subject: Subject, operation: str, runs: bool, tier: str) -> list[Result]:
    capability = subject.capabilities.get(operation)
    if capability is None:
        group = operation.split(".")[0]
        names = (operation, group, "")
        reason = next((subject.absent[name] for name in names if name in subject.absent), "not declared")
        return [_inapplicable(adapter, subject, "", operation, reason)]
    specifications = _taken(capability, operation)
    out = dict.fromkeys(part for s in specifications for part in s.excluded(capability.limits))
    if not specifications:
        out["every kind that the suite has"] = None
    unasked = [part for part in out if _unasked(part, capability.limits)]
    captured = [part for part in unasked if part.startswith("graph=")]
    declared = [part for part in out if part not in unasked]
    unasked = [part for part in unasked if part not in captured]
    why = f"cannot be captured: {capability.uncaptured}" if capability.uncaptured else "give a Graph to opt in"
    told = ((declared, capability.limits.reason), (unasked, "name them in the limits to opt in"), (captured, why))
    reason = "; ".join(f"{_gathered(parts)} ({because})" for parts, because in told if parts)
    if specifications and not runs:
        return [_nothing_run(adapter, subject, str(capability.contract), operation)]
    made = _inapplicable(adapter, subject, str(capability.contract), operation, reason)
    count = _outside_limits(capability, operation, tier)
    return [made.model_copy(update={"outside": count})] if out else []


def _gathered(parts: Iterable[str]) -> str:
    """Options with their values, such as `D=head|channel, z=on`; what is no option stands as it is."""
    values: dict[str, list[str]] = {}
    for part in parts:
        name, _, value = part.partition("=")
        values.setdefault(name, []).append(value)
    return ", ".join(f"{name}={'|'.join(some)}" if some != [""] else name for name, some in values.items())


def _unasked(part: str, limits: Limits) -> bool:
    """Whether an option is left out because it is run only for those who name it, and not because of a limit."""
    name = part.partition("=")[0]
    return name in ASKED and limits.options.get(name) == (ASKED[name],)


def _nothing_run(adapter: Adapter, subject: Subject, contract: str, operation: str) -> Result:
    """A declared operation of which nothing is run is unknown, not passed."""
    message = (
        f"{operation} is declared, but its limits admit no case, so nothing was run; widen the limits or remove the operation"
    )
    return Result(
        adapter=adapter.name, subject=subject.name, contract=contract, operation=operation, case="", verdict="unknown",
        failing="limits", message=message,
    )  # fmt: skip


def _inapplicable(adapter: Adapter, subject: Subject, contract: str, operation: str, reason: str) -> Result:
    return Result(
        adapter=adapter.name,
        subject=subject.name,
        contract=contract,
        operation=operation,
        case="",
        verdict="inapplicable",
        reason=reason,
    )
