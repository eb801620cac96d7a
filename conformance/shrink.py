"""From a failing case to the smallest that fails in the same way: greedy, one change at a time, bounded work."""

from collections.abc import Iterator
from dataclasses import replace

from ssmspec_ref.contract import Capability, Verdict

from .cases import Case
from .judge import Judgement, judge
from .suite.specification import Specification

BUDGET = 80
"""Runs for one failure."""


def shrink(
    specification: Specification, capability: Capability, case: Case, judgement: Judgement, budget: int = BUDGET
) -> tuple[Case, Judgement]:
    """The smallest case found that fails in the same way, and its judgement.

    Options go back to their defaults first, then the family, then each axis towards 1. A change is kept where the smaller
    case still fails; the search ends where no single change does, or when the budget is spent.
    """
    moved = True
    while moved:
        moved = False
        for smaller in candidates(specification, capability, case):
            budget -= 1
            if budget < 0:
                return case, judgement
            found = judge(specification, capability, smaller)
            if found.verdict is Verdict.FAIL and found.kind == judgement.kind:
                case, judgement, moved = smaller, found, True
                break
    return case, judgement


def candidates(specification: Specification, capability: Capability, case: Case) -> Iterator[Case]:
    """Cases one change smaller, within the limits, the boldest change of each part first."""
    limits = capability.limits
    for name, value in case.options.items():
        offered = [v for v in specification.options.get(name, ()) if v in limits.options.get(name, (v,))]
        for simpler in offered[: offered.index(value)] if value in offered else ():
            yield replace(case, options={**case.options, name: simpler})
    for family in specification.families[: specification.families.index(case.family)]:
        yield replace(case, family=family)
    for axis, size in case.sizes.items():
        low = limits.sizes.get(axis, (1, 1))[0]
        for smaller in sorted({low, low + 1, low + 2, size // 2, size - 1}):
            sizes = {**case.sizes, axis: smaller}
            if low <= smaller < size and specification.ok(sizes):
                yield replace(case, sizes=sizes)
