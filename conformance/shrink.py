"""From a failing case to the smallest that fails in the same way: greedy, one change at a time, bounded work."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from ssmspec_ref.contract import Capability, Verdict

from .cases import Case
from .judge import OTHER, Judgement, judge
from .suite.specification import Specification

BUDGET = 40
"""Runs for one failure."""


def shrink(
    specification: Specification,
    capability: Capability,
    case: Case,
    judgement: Judgement,
    hints: Iterable[Case] = (),
    budget: int = BUDGET,
    alike: Callable[[Case], bool] = lambda case: True,
    other: int = OTHER,
) -> tuple[Case, Judgement]:
    """The smallest case found that fails in the same way, and its judgement.

    Only cases that are `alike` are tried: those which the same entry of the known failures covers, or none.
    A hint, the smallest case of another subject, is taken as it is where it fails here too. Otherwise options go back to
    their defaults first, then the family, then each axis towards 1. A change is kept where the smaller case still fails; the
    search ends where no single change does, or when the budget is spent.
    """
    for hint in hints:
        if within(specification, capability, hint) and alike(hint) and hint.size() <= case.size():
            found = judge(specification, capability, hint, other)
            if found.verdict is Verdict.FAIL and found.kind == judgement.kind:
                return hint, found
    moved = True
    while moved:
        moved = False
        for smaller in filter(alike, candidates(specification, capability, case)):
            budget -= 1
            if budget < 0:
                return case, judgement
            found = judge(specification, capability, smaller, other)
            if found.verdict is Verdict.FAIL and found.kind == judgement.kind:
                case, judgement, moved = smaller, found, True
                break
    return case, judgement


def within(specification: Specification, capability: Capability, case: Case) -> bool:
    """Whether a case is of this specification and within the limits."""
    limits = capability.limits
    ours = case.operation == specification.operation and case.sizes.keys() == specification.base.keys()
    options = all(value in limits.options.get(name, (value,)) for name, value in case.options.items())
    sizes = all(low <= case.sizes[axis] <= high for axis, (low, high) in limits.sizes.items() if axis in case.sizes)
    return ours and options and sizes and case.options.keys() == {*specification.values, *specification.fixed}


def candidates(specification: Specification, capability: Capability, case: Case) -> Iterator[Case]:
    """Cases one change smaller, within the limits, the boldest change of each part first."""
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
