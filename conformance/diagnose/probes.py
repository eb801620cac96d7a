"""What a failing case needs in order to fail: change one option, size or family at a time, and report the changes with which
it passes, and the sizes of one axis that fail."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ssmspec_ref.contract import Capability, Verdict
from ssmspec_ref.errors import SpecError

from ..cases import Case
from ..judge.clock import Clock
from ..judge.shrink import within
from ..judge.verdict import OTHER, judge
from ..suite.specification import Specification
from .extent import size_word

MOST, SECONDS = 24, 20.0
"""Cases to try, and the time for them."""
LONG, MULTIPLES, LARGE, SHOWN = 3, 10, 100, 8
"""The shortest axis to vary around its size; how many multiples and places in blocks of it, and the largest of them; how many
sizes to list."""
SIZES = 15.0
"""The time for sizes."""
BLOCKS = (4, 8, 16, 32, 64)
FEW, ALIKE = (1, 2, 3, 4, 5, 8, 9, 16, 17), 2
"""Sizes of a short axis to try; and fewest sizes that fail, and that pass, for a rule about multiples."""
STEP, FEWEST, SEEDS, ESTIMATED, CHANCE = 7919, 3, 16, 6, 0.01
"""What is added to a seed for another draw; fewest and most draws of a changed case; draws by which it is estimated how many
of them fail; and how often a change without effect may pass under all."""


def needs(
    specification: Specification,
    capability: Capability,
    smallest: Case,
    failing: Sequence[Case] = (),
    other: int = OTHER,
    clock: Clock | None = None,
    seeds: Sequence[int] | None = None,
) -> str:
    """The single changes with which the smallest failing case passes under every seed tried; "" if there are none.

    A change that another failing case already has is not reported: the failure does not depend on it.
    """
    clock = clock or Clock(SECONDS)
    seeds = draws(specification, capability, smallest, other) if seeds is None else seeds
    if not seeds:
        return ""
    passes: dict[str, list[str]] = defaultdict(list)
    for _, (name, value, case) in zip(range(MOST), _neighbours(specification, capability, smallest), strict=False):
        if clock.ended:
            break
        if any(_has(one, name, value) for one in failing):
            continue
        drawn = (replace(case, seed=case.seed + added) for added in seeds)
        if all(_passes(specification, capability, one, other) for one in drawn):
            passes[name].append(value)
    told = []
    for name, values in passes.items():
        if name in smallest.sizes:
            one = smallest.sizes[name]
            told.append(f"{' or '.join(values)} {size_word(smallest.operation, name, values != ['1'])} instead of {one}")
        else:
            told.append(f"{name}={'|'.join(values)}")
    return f"with {'; or with '.join(told)}" if told else ""


def sizes(
    specification: Specification, capability: Capability, smallest: Case, other: int, clock: Clock, seeds: Sequence[int]
) -> str:
    """Which sizes of each axis fail, with everything else as in the smallest failing case; "" if all do, or none but its own.

    A size fails if it does under one of the seeds, and passes if it does under all.
    """
    told = []
    for axis in sorted(smallest.sizes, key=lambda axis: -smallest.sizes[axis]) if seeds else ():
        here, results = smallest.sizes[axis], dict[int, bool]()
        waiting = sorted(_tried(here), key=lambda size: (size > here + 2, size)) if here >= LONG else list(FEW)
        while not clock.ended:
            size = waiting.pop(0) if waiting else _between(results)
            if size is None or size in results:
                break
            case = replace(smallest, sizes={**smallest.sizes, axis: size})
            if specification.ok(case.sizes) and within(specification, capability, case):
                drawn = (replace(case, seed=case.seed + added) for added in seeds)
                results[size] = not all(_passes(specification, capability, one, other) for one in drawn)
            elif not waiting:
                break
        bad, good = (sorted(size for size, failed in results.items() if failed is wanted) for wanted in (True, False))
        if says := rule(bad, good, axis, size_word(smallest.operation, axis, True)):
            told.append(says)
    return "; ".join(told)


def draws(specification: Specification, capability: Capability, case: Case, other: int) -> tuple[int, ...]:
    """What to add to the seed of a case, so many that a change without effect passes under all by chance in one of 100; empty
    if more than `SEEDS` would be needed, because the case fails under few of its draws."""
    again = (replace(case, seed=case.seed + n * STEP) for n in range(1, ESTIMATED + 1))
    failed = sum(not _passes(specification, capability, one, other) for one in again)
    right = 1 - (failed + 1) / (ESTIMATED + 2)
    needed = max(FEWEST, math.ceil(math.log(CHANCE) / math.log(right)))
    return tuple(n * STEP for n in range(needed)) if needed <= SEEDS else ()


def _between(results: Mapping[int, bool]) -> int | None:
    """A size between the smallest that fails and the largest below it, which passes; None if there is none."""
    least = min((size for size, failed in results.items() if failed), default=0)
    below = max((size for size in results if size < least), default=least)
    return (below + least) // 2 if below + 1 < least else None


def _tried(size: int) -> list[int]:
    """Sizes around a failing one, around its multiples, and with the same place in a block of a power of two."""
    near = {size + step for step in (-2, -1, 0, 1, 2)}
    multiples = {times * size + step for times in (2, 3) for step in (-1, 0, 1) if times * size < LARGE}
    blocks = {size + times * block for block in BLOCKS if abs(_place(size, block)) <= 1 for times in (-1, 1, 2)}
    blocks = {one for one in blocks if one < max(LARGE, size + 2)}
    whole = {block for block in BLOCKS if size < block <= 2 * size and block < LARGE}
    some = sorted({size, *near, *sorted(multiples | blocks)[:MULTIPLES], *whole} | {1, size // 2})
    return [one for one in some if one >= 1]


def _place(size: int, block: int) -> int:
    """How far a size is from the nearest multiple of a block."""
    return (size + block // 2) % block - block // 2


def rule(fails: Sequence[int], passes: Sequence[int], axis: str, many: str) -> str:
    """What separates the sizes that fail from those that pass, in words; "" if nothing simple does, or too few were tried."""
    if not fails or not passes:
        return ""
    least = min(fails)
    tried = f"of {len(fails) + len(passes)} numbers of {many} ({axis}) from {min(*fails, *passes)} to {max(*fails, *passes)}"
    below, above = [size for size in passes if size < least], [size for size in passes if size > least]
    if below and not above:
        return f"{tried} all from {least} on fail, and all up to {max(below)} pass"
    if len(fails) == 1:
        return f"{tried} only {fails[0]} fails"
    if max(fails) < min(passes):
        return f"{tried} all up to {max(fails)} fail, and all from {min(passes)} on pass"
    if len(passes) == 1:
        return f"{tried} only {passes[0]} passes"
    for some, others, verb in ((fails, passes, "fail"), (passes, fails, "pass")):
        for block in range(2, max(some) + 1):
            ours = {size % block for size in some}
            if (
                len(some) >= ALIKE
                and len(others) >= ALIKE
                and len(ours) == 1
                and not ours & {size % block for size in others}
            ):
                return f"{tried} only those {verb} that are {_of(ours.pop(), block)}"
    if below and 3 * len(above) <= len(fails):
        return f"{tried} all up to {max(below)} pass, and of the others only {_listed(above)}"
    return ""


def _of(left: int, block: int) -> str:
    if left == 0:
        return f"multiples of {block}"
    if block == 2:
        return "odd"
    return f"one less than a multiple of {block}" if left == block - 1 else f"{left} more than a multiple of {block}"


def _listed(sizes: Sequence[int]) -> str:
    return ", ".join(map(str, sizes[:SHOWN])) + (", .." if len(sizes) > SHOWN else "")


def _passes(specification: Specification, capability: Capability, case: Case, other: int) -> bool:
    """Whether a case passes; a case that cannot be drawn, such as a packed run without tokens, says nothing."""
    try:
        return judge(specification, capability, case, other).verdict is Verdict.PASS
    except SpecError:
        return False


def _has(case: Case, name: str, value: str) -> bool:
    """Whether a case has this value of an option, of an axis, or of the family."""
    sizes = {axis: str(size) for axis, size in case.sizes.items()}
    return value == (sizes | dict(case.options) | {"family": case.family}).get(name)


def _neighbours(specification: Specification, capability: Capability, case: Case) -> Iterator[tuple[str, str, Case]]:
    for name, value in case.options.items():
        for other in specification.values.get(name, ()):
            if other != value:
                changed = replace(case, options={**case.options, name: other})
                if (name, other) == ("slots", "padded") and case.sizes.get("b") == 1:
                    continue  # the only row is padding: nothing is compared
                if within(specification, capability, changed):
                    yield name, other, changed
    for axis, size in case.sizes.items():
        for near in (size - 1, size + 1, size + 2):
            sizes = {**case.sizes, axis: near}
            if near >= 1 and specification.ok(sizes) and within(specification, capability, replace(case, sizes=sizes)):
                yield axis, str(near), replace(case, sizes=sizes)
    for family in specification.families:
        if family != case.family:
            yield "family", family, replace(case, family=family)
