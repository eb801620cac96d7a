"""Which cases are run on which subject, and what is left out for which reason."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from zlib import crc32

from ssmspec_ref.contract import OPERATIONS, Adapter, Capability, Subject

from .cases import Case
from .errors import UnknownCase, UnknownLimit, UnknownOperation
from .report import Result
from .shrink import within
from .suite import SPECIFICATIONS, find
from .suite.specification import Specification


@dataclass(frozen=True)
class Job:
    """One case on one subject. `given` is the adapter as named on the command line."""

    given: str
    adapter: Adapter
    subject: Subject
    capability: Capability
    specification: Specification
    case: Case

    @property
    def identity(self) -> str:
        return self.specification.identify(self.case)

    @property
    def group(self) -> tuple[str, str, str, str]:
        """What a cell of the matrix stands for."""
        return self.adapter.name, self.subject.name, str(self.capability.contract), self.case.operation


@dataclass(frozen=True)
class Selection:
    """What to run: a tier, and patterns for subjects and operations, or one case."""

    tier: str = "smoke"
    subject: str = "*"
    operation: str = "*"
    case: str | None = None
    shard: tuple[int, int] = (1, 1)
    """Which part of how many: the cases are dealt out in turn, so that those of one id are judged together."""

    @property
    def only(self) -> str:
        """What is selected, beside a shard; "" where nothing is left out."""
        chosen = {"subject": self.subject, "operation": self.operation, "case": self.case or "*"}
        return ", ".join(f"{name} {pattern}" for name, pattern in chosen.items() if pattern != "*")

    @property
    def whole(self) -> bool:
        """Whether nothing is left out, so that what was not met does not exist."""
        return not self.only and self.shard == (1, 1)


def plan(adapters: Mapping[str, Adapter], selection: Selection) -> tuple[list[Job], list[Result]]:
    """The cases to run, in order, and what is inapplicable.

    Raises: UnknownCase for a selection that selects nothing; UnknownOperation for a capability that is none; UnknownLimit.
    """
    for adapter in adapters.values():
        for subject in adapter.subjects:
            check_operations(adapter, subject)
            check_limits(adapter, subject)
    jobs: list[Job] = []
    left_out: list[Result] = []
    for given, adapter in adapters.items():
        for subject in adapter.subjects:
            if not fnmatchcase(subject.name, selection.subject):
                continue
            for operation in OPERATIONS:
                if fnmatchcase(operation, selection.operation):
                    found = list(_jobs(given, adapter, subject, operation, selection))
                    jobs += found
                    left_out += (
                        _outside(adapter, subject, operation, selection.case)
                        if selection.case
                        else _left_out(adapter, subject, operation, bool(found))
                    )
    if not jobs and not left_out:
        subjects = [subject for adapter in adapters.values() for subject in adapter.subjects]
        called = dict.fromkeys(subject.name for subject in subjects)
        had = dict.fromkeys(operation for subject in subjects for operation in subject.capabilities)
        raise UnknownCase(
            f"nothing to run: no subject {selection.subject!r} takes {selection.case or selection.operation!r}; "
            f"the subjects are {', '.join(called)}; they have {', '.join(had) or 'no operation'}"
        )
    part, parts = selection.shard
    jobs = [job for job in jobs if crc32(job.identity.encode()) % parts == part - 1]
    return jobs, left_out if part == 1 else []


def check_operations(adapter: Adapter, subject: Subject) -> None:
    """Raise UnknownOperation for a name that nothing would ever run."""
    unknown = [name for name in subject.capabilities if name not in OPERATIONS]
    if unknown:
        raise UnknownOperation(
            f"{adapter.name}, {subject.name}, declares {', '.join(unknown)}; the operations are {', '.join(OPERATIONS)}"
        )


def check_limits(adapter: Adapter, subject: Subject) -> None:
    """Raise UnknownLimit for a limit on an option, a value or an axis that no case has; it would limit nothing."""
    known = _options()
    axes = {axis for specification in SPECIFICATIONS for axis in specification.base}
    for operation, capability in subject.capabilities.items():
        options, sizes = capability.limits.options, capability.limits.sizes
        wrong = [name for name in options if name not in known]
        wrong += [f"{n}={v}" for n, values in options.items() for v in values if v not in known.get(n, {v})]
        wrong += [f"the axis {name}" for name in sizes if name not in axes]
        if wrong:
            has = [
                f"{n}={'|'.join(values)}"
                for s in SPECIFICATIONS
                if s.operation == operation
                for n, values in s.values.items()
            ]
            raise UnknownLimit(
                f"{adapter.name}, {subject.name}, limits {', '.join(wrong)}, which no case has; "
                f"{operation} has {', '.join(dict.fromkeys(has))}; the axes are {', '.join(sorted(axes))}"
            )


def _options() -> dict[str, set[str]]:
    """Every option of every operation, with its values."""
    known: dict[str, set[str]] = {}
    for specification in SPECIFICATIONS:
        for name, values in [*specification.values.items(), *((n, (v,)) for n, v in specification.fixed.items())]:
            known.setdefault(name, set()).update(values)
    return known


def _jobs(given: str, adapter: Adapter, subject: Subject, operation: str, selection: Selection) -> Iterator[Job]:
    capability = subject.capabilities.get(operation)
    if capability is None:
        return
    for specification in _taken(capability, operation):
        cases: Iterable[Case] = specification.cases(selection.tier, capability.limits)
        if selection.case is not None:
            only, case = find(selection.case)
            cases = [case] if only is specification and within(specification, capability, case) else []
        for case in cases:
            yield Job(given, adapter, subject, capability, specification, case)


def _outside(adapter: Adapter, subject: Subject, operation: str, identity: str) -> list[Result]:
    """A case that was asked for by its id, and that the limits of an operation exclude."""
    specification, case = find(identity)
    capability = subject.capabilities.get(operation)
    if capability is None or specification.operation != operation or within(specification, capability, case):
        return []
    reason = f"{identity}, which lies outside the limits ({capability.limits.reason})"
    return [_inapplicable(adapter, subject, str(capability.contract), operation, reason)]


def _taken(capability: Capability, operation: str) -> list[Specification]:
    """The specifications of an operation that the limits admit: for layers, those of the subject's kind."""
    offered = capability.limits.options
    return [
        s
        for s in SPECIFICATIONS
        if s.operation == operation and all(value in offered.get(name, (value,)) for name, value in s.fixed.items())
    ]


def _left_out(adapter: Adapter, subject: Subject, operation: str, runs: bool) -> list[Result]:
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
    reason = f"cases with {', '.join(out)} ({capability.limits.reason})"
    if specifications and not runs:
        return [_nothing_run(adapter, subject, str(capability.contract), operation)]
    return [_inapplicable(adapter, subject, str(capability.contract), operation, reason)] if out else []


def _nothing_run(adapter: Adapter, subject: Subject, contract: str, operation: str) -> Result:
    """What is declared and never run is not known to hold."""
    message = f"{operation} is declared, but its limits admit no case, so nothing was run; widen them or leave it out"
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
