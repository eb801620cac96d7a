"""What a failing case needs in order to fail: change one option, size or family at a time, and report the changes with which
it passes."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ssmspec_ref.contract import Capability

from ...cases import Case
from ...judge.clock import Clock
from ...judge.shrink import within
from ...judge.verdict import OTHER
from ...suite.specification import Specification
from ..extent import size_word
from .drawn import again, confirmed, draws, passes

MOST, SECONDS = 24, 20.0
"""Cases to try, and the time for them."""
OTHERS = 3
"""Other failing cases on which a change must have the same effect."""


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

    A change that another failing case already has is not reported, nor one with which another failing case still fails: the
    failure does not depend on it.
    """
    clock = clock or Clock(SECONDS)
    seeds = draws(specification, capability, smallest, other) if seeds is None else seeds
    if not seeds:
        return ""
    beside = sorted((case for case in failing if case != smallest), key=Case.size)[:OTHERS]
    found: dict[str, list[str]] = defaultdict(list)
    for _, (name, value, case) in zip(range(MOST), _neighbours(specification, capability, smallest), strict=False):
        if clock.ended:
            break
        if any(_has(one, name, value) for one in failing):
            continue
        drawn = (again(case, added) for added in seeds)
        if not all(passes(specification, capability, one, other) for one in drawn):
            continue
        alike = (made for one in beside if (made := _changed(specification, capability, one, name, value)))
        if all(passes(specification, capability, one, other) for one in alike) and confirmed(
            specification, capability, case, other, seeds, clock
        ):
            found[name].append(value)
    told = []
    for name, values in found.items():
        if name in smallest.sizes:
            one = smallest.sizes[name]
            told.append(f"{' or '.join(values)} {size_word(smallest.operation, name, values != ['1'])} instead of {one}")
        else:
            told.append(f"{name}={'|'.join(values)}")
    return f"with {'; or with '.join(told)}" if told else ""


def _changed(specification: Specification, capability: Capability, case: Case, name: str, value: str) -> Case | None:
    """Another case with the same change; None if it cannot have it."""
    if name in case.sizes:
        made = replace(case, sizes={**case.sizes, name: int(value)})
    elif name in case.options:
        made = replace(case, options={**case.options, name: value})
    else:
        made = replace(case, family=value)
    return made if specification.ok(made.sizes) and within(specification, capability, made) else None


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
