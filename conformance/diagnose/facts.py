"""Everything reported about one kind of failure, in reading order."""

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ssmspec_ref.contract import Capability

from ..cases import Case
from ..judge.clock import Clock, limited
from ..judge.figures import apart
from ..judge.verdict import OTHER
from ..suite.specification import Specification
from .changed_inputs import IN_PART, WHOLE, explain
from .changed_outputs import patterns
from .changes.drawn import draws
from .changes.needs import SECONDS as PASSES
from .changes.needs import needs
from .changes.sizes import SECONDS as SIZES
from .changes.sizes import sizes
from .decisive import decisive
from .entries.decides import decides, ranges
from .equations.search import SECONDS as LINES
from .equations.search import changed_lines
from .extent import extent, place
from .observe import Observation, observe, observed
from .precision import other_order, overflow, wider
from .together import together

ORDER = (
    "values",
    "inputs",
    "extent",
    "behaves",
    "equation",
    "order",
    "decides",
    "passes",
    "sizes",
    "calls",
    "cases",
    "limits",
)
SECONDS = 30.0
"""The time of one search."""
TRIED, AGAIN = 4, 7919
"""Number of further failing cases that an explanation must fit, besides the smallest; and what is added to the seed of two of
them, which may agree by the chance of their draw."""
PASSING = 6
"""Number of passing cases that a changed line must leave as they are."""
UNEXPLAINED = "no single change of an input, an output or a line of the reference that was tried gives these outputs"
POSITIONS = re.compile(r" \d+ (all )?holds? what belongs to | and \d+ of |only at | times what ")
"""Words of an explanation that name positions, or a factor."""
MOSTLY = 0.5
"""A change that would alter more than twice what is wrong is not reported beside a pattern that explains all of it."""


def facts(
    specification: Specification,
    capability: Capability,
    smallest: Case,
    failing: Sequence[Case],
    passing: Sequence[Case],
    seed: int | None = None,
    search: bool = True,
    explained: bool = False,
) -> dict[str, str]:
    """`values`: expected and actual value at the first wrong element; `inputs`: what controls that row; `extent`: the wrong
    positions; `behaves`: changes of inputs or outputs that reproduce the result; `order`: another order of evaluation under
    which the failing cases hold; `decides`: the entries of masks, trees and
    counts without which the smallest case passes; `passes`: the options and sizes with which it passes; `sizes`: which sizes
    of its long axes fail; `cases`: what the failing cases have in common. `seed` is that of the failing inputs, if not the
    case's own; `explained` says that a planted fault gives the same outputs.
    """
    told: dict[str, str] = {}
    shown = smallest if seed is None else replace(smallest, seed=seed)
    first = observe(specification, capability, shown)
    if first is not None and first.beyond:
        told |= first_wrong(first, capability)
        if not search:
            told["order"] = other_order(specification, capability.contract, [first])
        if search:
            told["decides"] = decides(specification, capability, first, _at(first, first.beyond[0]))
    if search:
        other = OTHER if seed is None else seed
        cause = Clock(SECONDS)
        seen = tried(specification, capability, shown, failing)
        said, whole = causes(specification, capability, seen, cause, shown)
        told["behaves"] = "; ".join(said)
        told["order"] = other_order(limited(specification, Clock(SECONDS)), capability.contract, seen)
        line = Clock(LINES)
        told["equation"] = "" if whole else " or ".join(equation(specification, capability, seen, passing, line))
        seeds, change = draws(specification, capability, smallest, other), Clock(PASSES)
        told["passes"] = needs(specification, capability, smallest, failing, other, change, seeds)
        size = Clock(SIZES)
        told["sizes"] = sizes(specification, capability, smallest, failing, other, size, seeds)
        nothing = not (told["behaves"] or told["equation"] or explained)
        ended = [
            *([UNEXPLAINED] if seen and nothing else []),
            *cause.says("the cause"),
            *line.says("a changed equation"),
            *change.says("changes with which it passes"),
            *size.says("sizes that fail"),
        ]
        told["limits"] = "; ".join(ended)
    told["cases"] = together(failing, passing, smallest)
    return {name: told[name] for name in ORDER if told.get(name)}


def first_wrong(found: Observation, capability: Capability) -> dict[str, str]:
    """`values`, `inputs` and `extent` of the first wrong output."""
    number = found.beyond[0]
    want, placed = found.expected[number], _at(found, number)
    at = tuple(placed.values())
    came = found.came[number][at]
    expected, got = apart(float(want.value[at]), float(came), 8)
    values = f"{want.name} at {place(want.axes, at, found.case.sizes)}: expected {expected}, got {got}"
    return {
        "values": values,
        "inputs": decisive(found, number, placed, capability.contract),
        "extent": f"{want.name}: {extent(found, number)}{_windows(found)}",
    }


def _windows(found: Observation) -> str:
    """Which windows of a history have wrong outputs, if it is a history."""
    names = [want.name.rpartition(" window ")[2] for want in found.expected]
    every = {int(name) for name in names if name.isdecimal()}
    wrong = sorted({int(names[number]) for number in found.beyond if names[number].isdecimal()})
    if len(every) < 3 or not wrong:
        return ""
    return f"; wrong in {len(wrong)} of {len(every)} windows: {ranges(wrong)}"


def _at(found: Observation, number: int) -> dict[str, int]:
    """The first wrong place of an output, by axis: the first token, and there the first in memory."""
    wrong, axes = np.argwhere(found.wrong(number)), found.expected[number].axes.split()
    order = np.argsort(wrong[:, axes.index("t")], kind="stable") if "t" in axes else np.arange(len(wrong))
    return dict(zip(axes, map(int, wrong[order[0]]), strict=True))


def causes(
    specification: Specification,
    capability: Capability,
    seen: Sequence[Observation],
    clock: Clock | None = None,
    shown: Case | None = None,
) -> tuple[list[str], bool]:
    """Explanations by changed inputs, then by changed outputs; and whether a changed input explains all that is wrong and
    changes nothing else. Positions that are not those of the case `shown` are told with their case."""
    if not seen:
        return [], False
    first, *others = seen
    asked = limited(specification, clock or Clock(SECONDS))
    found = explain(asked, capability.contract, first, others)
    shapes = [
        [placed(specification, says, first.case, shown) for says in patterns(first, number, capability.contract)]
        for number in first.beyond[:2]
    ]
    if shapes and all(shapes):
        found = [one for one in found if one.covers >= MOSTLY]
    said = []
    for one in found:
        share = "" if one.covers > WHOLE or one.covers == IN_PART else f", in {one.covers:.0%} of the places"
        said.append(placed(specification, f"as if {one.says}{share}", first.case, shown))
    said += dict.fromkeys(says for of in shapes for says in of)
    if told := overflow((first, *others)):
        said.insert(0, told)
    if not said and (told := wider(asked, capability.contract, (first, *others))):
        said.append(told)
    return said, bool(found) and found[0].covers > WHOLE


def placed(specification: Specification, says: str, case: Case, shown: Case | None) -> str:
    """An explanation that names positions or a factor, with the case that has them, if that is not the one that is shown."""
    return f"{says} (in {specification.identify(case)})" if POSITIONS.search(says) and case != shown else says


def equation(
    specification: Specification,
    capability: Capability,
    seen: Sequence[Observation],
    passing: Sequence[Case],
    clock: Clock,
) -> list[str]:
    """Changes of one line of the reference that give the outputs of all failing cases `seen`, and spare the passing ones."""
    if not seen:
        return []
    small = sorted(passing, key=Case.size)
    some = [small[n * (len(small) - 1) // (PASSING - 1)] for n in range(PASSING if small else 0)]
    right = list(observed(specification, capability, some, len(some), True))
    lines = changed_lines(specification, capability.contract, seen, right, clock)
    return [f"as if {says}" for says in lines]


def tried(specification: Specification, capability: Capability, smallest: Case, failing: Sequence[Case]) -> list[Observation]:
    """The failing cases that an explanation must fit. The first has several positions along each axis; others and the
    smallest follow."""
    own = specification.defaults.items()

    def plain(case: Case) -> tuple[int, int, int]:
        """Few axes of one position, then few options, then small."""
        changed = sum(case.options.get(name, value) != value for name, value in own)
        return sum(size < 2 for size in case.sizes.values()), changed, case.size()

    wide = sorted(failing, key=plain)
    chosen = list(observed(specification, capability, wide, 1, False))
    if not chosen:
        return []
    (first,) = chosen
    small = sorted(failing, key=Case.size)[: 1 + 3 * len(failing) // 4]  # the reference of long histories takes its time
    spread = [small[n * (len(small) - 1) // (TRIED - 1)] for n in range(TRIED)]
    redrawn = [replace(case, seed=case.seed + AGAIN) for case in (first.case, smallest)]
    cases = [*spread, smallest, *redrawn]
    others = observed(specification, capability, cases, len(cases), False)
    return [first, *(other for other in others if other.case != first.case)]
