"""Reduce a failing case to the smallest one that fails in the same way: greedy, one change at a time, with a work limit."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from ssmspec_ref.contract import Capability, Verdict

from ..cases import Case
from ..suite.specification import Specification
from .clock import Clock
from .raised import origin
from .verdict import OTHER, Judgement, judge

BUDGET, SECONDS = 40, 30.0
"""Most runs for one failure, and the time for them."""
LONG = 16
"""Positions of an axis that is halved first."""


def shrink(
    specification: Specification,
    capability: Capability,
    case: Case,
    judgement: Judgement,
    hints: Iterable[Case] = (),
    budget: int = BUDGET,
    alike: Callable[[Case], bool] = lambda case: True,
    other: int = OTHER,
    clock: Clock | None = None,
) -> tuple[Case, Judgement]:
    """The smallest case found that fails in the same way, and its judgement.

    Only cases that are `alike` are tried: those covered by the same entry of the known failures, or by none. A hint, the
    smallest case of another subject, is taken if it fails here too. Otherwise a long axis is halved to its least failing
    size first. Then options return to their defaults, then the family, then each axis goes towards 1. A change is kept if the
    smaller case still fails. The search ends when no single change fails, or when the budget or the time is spent.
    """
    clock = clock or Clock(SECONDS)
    for hint in hints:
        if within(specification, capability, hint) and alike(hint) and hint.size() <= case.size():
            found = judge(specification, capability, hint, other)
            if alike_failures(found, judgement):
                return hint, found
    for axis in [axis for axis, size in case.sizes.items() if size > LONG]:
        case, judgement = _halved(specification, capability, case, judgement, axis, alike, other, clock)
    moved = True
    while moved and not clock.ended:
        moved = False
        for smaller in filter(alike, candidates(specification, capability, case)):
            budget -= 1
            if budget < 0 or clock.ended:
                return case, judgement
            found = judge(specification, capability, smaller, other)
            if alike_failures(found, judgement):
                case, judgement, moved = smaller, found, True
                break
    return case, judgement


def _halved(
    specification: Specification,
    capability: Capability,
    case: Case,
    judgement: Judgement,
    axis: str,
    alike: Callable[[Case], bool],
    other: int,
    clock: Clock,
) -> tuple[Case, Judgement]:
    """The case with one axis at the least size that fails in the same way, if every longer one does: found in halves."""
    passes = capability.limits.sizes.get(axis, (1, 1))[0] - 1
    while case.sizes[axis] - passes > 1 and not clock.ended:
        size = (case.sizes[axis] + passes) // 2
        smaller = replace(case, sizes={**case.sizes, axis: size})
        fits = specification.ok(smaller.sizes) and alike(smaller)
        found = judge(specification, capability, smaller, other) if fits else None
        if found is not None and alike_failures(found, judgement):
            case, judgement = smaller, found
        else:
            passes = size
    return case, judgement


def alike_failures(found: Judgement, wanted: Judgement) -> bool:
    """Whether two judgements fail in the same way: the type and position of an exception, or how a process ended."""
    if found.verdict is not Verdict.FAIL or found.kind != wanted.kind:
        return False
    return origin(found.kind, found.message) == origin(wanted.kind, wanted.message)


def within(specification: Specification, capability: Capability, case: Case) -> bool:
    """Whether a case belongs to this specification and is within the limits."""
    limits = capability.limits
    ours = case.operation == specification.operation and case.sizes.keys() == specification.base.keys()
    options = all(value in limits.options.get(name, (value,)) for name, value in case.options.items())
    sizes = all(low <= case.sizes[axis] <= high for axis, (low, high) in limits.sizes.items() if axis in case.sizes)
    return ours and options and sizes and case.options.keys() == {*specification.values, *specification.fixed}


def candidates(specification: Specification, capability: Capability, case: Case) -> Iterator[Case]:
    """Cases one change smaller, within the limits; for each part the largest change first."""
    limits = capability.limits
    for name, value in case.options.items():
        offered = [v for v in specification.values.get(name, ()) if v in limits.options.get(name, (v,))]
        for simpler in offered[: offered.index(value)] if value in offered else ():
            yield replace(case, options={**case.options, name: simpler})
    for family in specification.families[: specification.families.index(case.family)]:
        yield replace(case, family=family)
    for axis, size in case.sizes.items():
        low = limits.sizes.get(axis, (1, 1))[0]
        for smaller in sorted({low, low + 1, low + 2, size // 2, size - 2, size - 1}):
            sizes = {**case.sizes, axis: smaller}
            if low <= smaller < size and specification.ok(sizes):
                yield replace(case, sizes=sizes)
