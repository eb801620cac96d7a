"""Which sizes of an axis fail, with all else as in the smallest failing case."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ssmspec_ref.contract import Capability

from ...cases import Case
from ...judge.clock import Clock
from ...judge.shrink import within
from ...suite.specification import Specification
from ..extent import size_word
from .drawn import again, confirmed, often, passes
from .rules import Rule, rule

SECONDS = 15.0
"""The time for sizes."""
LONG, MULTIPLES, LARGE = 3, 10, 100
"""The shortest axis to vary around its size; how many multiples and places in blocks of it, and the largest of them."""
BLOCKS = (4, 8, 16, 32, 64)
FEW, MORE, ENOUGH = (1, 2, 3, 4, 5, 8, 9, 16, 17), (6, 10, 12, 14, 20), 6
"""Sizes of a short axis to try; further ones, if few of these are possible; and how many possible ones are enough."""
BOUNDARY, FAILING = 3, 2
"""Passing sizes, those nearest to a failing one, that are confirmed; and failing ones that must fail as often as the smallest
case."""
TILES = (32, 64)
"""Sizes to try if all of few small ones fail: a tail beside whole tiles has every small size."""
ROUNDS = 3
"""How often a rule is formed again from the sizes that refuted one."""


@dataclass
class Along:
    """The sizes of one axis: True where the case fails under one of the seeds, False where it passes under all. `sure` are
    those of the latter that passed further draws."""

    specification: Specification
    capability: Capability
    smallest: Case
    axis: str
    other: int
    clock: Clock
    seeds: Sequence[int]
    results: dict[int, bool] = field(default_factory=dict)
    sure: set[int] = field(default_factory=set)

    def case(self, size: int) -> Case | None:
        """The case with this size; None if there is none."""
        made = replace(self.smallest, sizes={**self.smallest.sizes, self.axis: size})
        fits = self.specification.ok(made.sizes) and within(self.specification, self.capability, made)
        return made if fits else None

    def tries(self, size: int) -> bool:
        """Try a size; whether the case can have it."""
        made = self.case(size)
        if made is not None and size not in self.results:
            drawn = (again(made, added) for added in self.seeds)
            self.results[size] = not all(passes(self.specification, self.capability, one, self.other) for one in drawn)
        return made is not None

    def confirm(self, size: int) -> None:
        """Draw a size that passed again."""
        made = self.case(size)
        if made is not None and size not in self.sure:
            self.sure.add(size)
            self.results[size] = not confirmed(self.specification, self.capability, made, self.other, self.seeds, self.clock)

    def often(self, size: int) -> bool:
        """Whether a size fails as often as the smallest case."""
        made = self.case(size)
        return made is not None and often(self.specification, self.capability, made, self.other, self.seeds, self.clock)

    def searched(self) -> None:
        """Try sizes around that of the case, or few small ones; then those between a failing one and the next below."""
        here = self.smallest.sizes[self.axis]
        waiting = sorted(_tried(here), key=lambda size: (size > here + 2, size)) if here >= LONG else list(FEW)
        if here < LONG and sum(self.case(size) is not None for size in FEW) < ENOUGH:
            waiting += MORE
        while not self.clock.ended:
            size = waiting.pop(0) if waiting else _between(self.results)
            if size is None or size in self.results or not (self.tries(size) or waiting):
                break
        if here < LONG and all(self.results.values()):
            for size in TILES:
                self.tries(size)

    def told(self, many: str) -> Rule | None:
        """A rule that held for sizes beside those from which it was formed; None without one."""
        for _ in range(ROUNDS):
            bad, good = (
                sorted(size for size, failed in self.results.items() if failed is wanted) for wanted in (True, False)
            )
            found = rule(bad, good, self.axis, many)
            if found is None or self.clock.ended:
                return None
            for size in found.further:
                self.tries(size)
            for size in _nearest(good, bad, BOUNDARY):
                self.confirm(size)
            if self.clock.ended:
                return None
            if all(found.fails(size) is failed for size, failed in self.results.items()):
                bad, good = (sorted(s for s, failed in self.results.items() if failed is wanted) for wanted in (True, False))
                sharp = all(self.often(size) for size in _nearest(bad, good, FAILING))
                return rule(bad, good, self.axis, many) if sharp else None
        return None


def sizes(
    specification: Specification,
    capability: Capability,
    smallest: Case,
    failing: Sequence[Case],
    other: int,
    clock: Clock,
    seeds: Sequence[int],
) -> str:
    """Which sizes of each axis fail, with everything else as in the smallest failing case; "" if all do, or none but its own.
    A failing case of a size that passes there is named beside it: more than this size decides."""
    told = []
    for axis in sorted(smallest.sizes, key=lambda axis: -smallest.sizes[axis]) if seeds else ():
        along = Along(specification, capability, smallest, axis, other, clock, seeds)
        along.searched()
        found = along.told(size_word(smallest.operation, axis, True))
        if found is not None:
            against = min((case for case in failing if not found.fails(case.sizes[axis])), key=Case.size, default=None)
            but = f", but with other sizes or options {specification.identify(against)} fails too" if against else ""
            told.append(found.says + but)
    return "; ".join(told)


def _nearest(some: Sequence[int], others: Sequence[int], most: int) -> list[int]:
    """Those of some sizes that are nearest to the others."""
    return sorted(some, key=lambda size: min(abs(size - one) for one in others))[:most]


def _between(results: Mapping[int, bool]) -> int | None:
    """A size between the smallest that fails and the largest below it, which passes; None if there is none."""
    least = min((size for size, failed in results.items() if failed), default=0)
    below = max((size for size in results if size < least), default=least)
    return (below + least) // 2 if below + 1 < least else None


def _tried(size: int) -> list[int]:
    """Sizes around a failing one, around its multiples and those of the block that it just exceeds, and with the same place
    in a block of a power of two."""
    near = {size + step for step in (-2, -1, 0, 1, 2)}
    multiples = {times * size + step for times in (2, 3) for step in (-1, 0, 1) if times * size < LARGE}
    exceeded = {times * (size - 1) + step for times in (2, 3) for step in (0, 1) if size - 1 in BLOCKS}
    blocks = {size + times * block for block in BLOCKS if abs(_place(size, block)) <= 1 for times in (-1, 1, 2)}
    blocks = {one for one in blocks if one < max(LARGE, size + 2)}
    whole = {block for block in BLOCKS if size < block <= 2 * size and block < LARGE}
    some = sorted({size, *near, *sorted(multiples | blocks)[:MULTIPLES], *whole, *exceeded} | {1, size // 2})
    return [one for one in some if one >= 1]


def _place(size: int, block: int) -> int:
    """How far a size is from the nearest multiple of a block."""
    return (size + block // 2) % block - block // 2
