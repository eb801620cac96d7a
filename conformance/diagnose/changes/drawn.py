"""How often a changed case is drawn before it is said to pass."""

import math
from collections.abc import Sequence
from dataclasses import replace

from ssmspec_ref.contract import Capability, Verdict
from ssmspec_ref.errors import SpecError

from ...cases import Case
from ...judge.clock import Clock
from ...judge.verdict import judge
from ...suite.specification import Specification

STEP, FEWEST, SEEDS, ESTIMATED, CHANCE = 7919, 3, 16, 6, 0.01
"""What is added to a seed for another draw; fewest and most draws of a changed case; draws by which it is estimated how many
of them fail; and how often a change without effect may pass under all."""
FURTHER = 8
"""Fewest draws of a case by which its passing is confirmed."""


def draws(specification: Specification, capability: Capability, case: Case, other: int) -> tuple[int, ...]:
    """What to add to the seed of a case, so many that a change without effect passes under all by chance in one of 100; empty
    if more than `SEEDS` would be needed, because the case fails under few of its draws."""
    again = (replace(case, seed=case.seed + n * STEP) for n in range(1, ESTIMATED + 1))
    failed = sum(not passes(specification, capability, one, other) for one in again)
    right = 1 - (failed + 1) / (ESTIMATED + 2)
    needed = max(FEWEST, math.ceil(math.log(CHANCE) / math.log(right)))
    return tuple(n * STEP for n in range(needed)) if needed <= SEEDS else ()


def confirmed(
    specification: Specification, capability: Capability, case: Case, other: int, seeds: Sequence[int], clock: Clock
) -> bool:
    """Whether a case that passed under the seeds passes under as many further ones, and at least `FURTHER`. Many changes are
    tried, and a few of those without effect pass the first draws. Without time to find out it is not confirmed."""
    more = range(len(seeds), len(seeds) + max(len(seeds), FURTHER))
    return all(not clock.ended and passes(specification, capability, again(case, n * STEP), other) for n in more)


def often(
    specification: Specification, capability: Capability, case: Case, other: int, seeds: Sequence[int], clock: Clock
) -> bool:
    """Whether a case fails under at least half as many draws as the one that the number of seeds was estimated from: a rate
    that falls with a size is no limit of this size."""
    least, number = (1 - CHANCE ** (1 / len(seeds))) / 2, max(len(seeds), FURTHER)
    left = number - math.ceil(least * number)  # so many may pass
    for n in range(number):
        left -= not clock.ended and passes(specification, capability, again(case, n * STEP), other)
        if left < 0 or clock.ended:
            return False
    return True


def again(case: Case, added: int) -> Case:
    """The case with other numbers."""
    return replace(case, seed=case.seed + added)


def passes(specification: Specification, capability: Capability, case: Case, other: int) -> bool:
    """Whether a case passes; a case that cannot be drawn, such as a packed run without tokens, says nothing."""
    try:
        return judge(specification, capability, case, other).verdict is Verdict.PASS
    except SpecError:
        return False
