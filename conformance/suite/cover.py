"""The smoke tier: few cases of a table that cover every option value and family once.

It has the first case, one of the last family (which is called three times) with defaults only, and the one whose sizes are
no powers of two; then, repeatedly, the case that adds the most families and option values not yet covered, the smallest one
on ties. At least one has inputs that are views with gaps.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import combinations, product

from ..cases import Case

GAPS = "gaps"
TRIED = 4
"""Sizes that are tried of an axis: among as many in a row there is one that two, three or four divide."""


def cover(cases: Sequence[Case], always: Sequence[Case] = ()) -> list[Case]:
    """The selected cases of a table, in its order, those that are `always` selected among them."""
    if not cases:
        return []
    plain = [case for case in cases if case.seed == 0 and case.options == cases[0].options]
    last = [case for case in plain if case.sizes == cases[0].sizes][-1]
    chosen = list(dict.fromkeys([0, cases.index(last), *map(cases.index, always)]))
    wanted = set().union(*map(parts, cases)) - set().union(*(parts(cases[at]) for at in chosen))
    while wanted:
        best = max(range(len(cases)), key=lambda at: (len(parts(cases[at]) & wanted), -cases[at].size()))
        chosen.append(best)
        wanted -= parts(cases[best])
    return [cases[at] for at in sorted(chosen)]


def parts(case: Case) -> set[Hashable]:
    """What a case covers: its family, the value of each of its options, gaps."""
    return {case.family, *case.options.items(), *([GAPS] if case.seed else [])}


def no_powers_of_two(
    sizes: Mapping[str, int], limits: Mapping[str, tuple[int, int]], ok: Callable[[Mapping[str, int]], bool]
) -> dict[str, int]:
    """Valid sizes near the given ones, of which none is a power of two where the limits have others that are valid: with odd
    sizes where possible, or with even ones if more axes can be changed so."""
    tried = {axis: others(size, *limits[axis]) for axis, size in sizes.items() if power_of_two(size)}
    even = {axis: sorted(some, key=lambda size: size % 2) for axis, some in tried.items()}
    return min((moved(sizes, ways, ok) for ways in (tried, even)), key=lambda found: sum(map(power_of_two, found.values())))


def moved(
    sizes: Mapping[str, int], tried: Mapping[str, list[int]], ok: Callable[[Mapping[str, int]], bool]
) -> dict[str, int]:
    """The sizes with the first valid one of those that are tried of each axis. One axis is changed at a time, twice, since
    some sizes are valid once others have changed; then two at a time, since some must be equal."""
    found = dict(sizes)
    for together in (1, 1, 2):
        for axes in combinations([axis for axis in tried if power_of_two(found[axis])], together):
            chosen = (dict(zip(axes, values, strict=True)) for values in product(*(tried[axis] for axis in axes)))
            found |= next((some for some in chosen if ok({**found, **some})), {})
    return found


def power_of_two(size: int) -> bool:
    """Whether a size is a power of two."""
    return size & (size - 1) == 0


def others(size: int, low: int, high: int) -> list[int]:
    """Sizes near a power of two, within the limits, that are not one: first the larger ones."""
    near = [*range(size + 1, size + 2 + TRIED), *range(size - 1, max(size - 2 - TRIED, 0), -1)]
    return [n for n in near if low <= n <= high and not power_of_two(n)][:TRIED]
