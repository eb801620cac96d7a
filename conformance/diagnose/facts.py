"""Everything reported about one kind of failure, in reading order."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ssmspec_ref.contract import Capability

from ..cases import Case
from ..judge.figures import apart
from ..judge.verdict import OTHER
from ..suite.specification import Specification
from .changed_inputs import explain
from .changed_outputs import patterns
from .decisive import decisive
from .extent import extent, place
from .observe import Observation, observe, observed
from .precision import overflow, wider
from .probes import needs, sizes
from .together import together

ORDER = ("values", "inputs", "extent", "behaves", "passes", "sizes", "cases")
TRIED = 4
"""Number of further failing cases that an explanation must fit, besides the smallest."""
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
) -> dict[str, str]:
    """`values`: expected and actual value at the first wrong element; `inputs`: what controls that row; `extent`: the wrong
    positions; `behaves`: changes of inputs or outputs that reproduce the result; `passes`: the changes with which the
    smallest case passes; `sizes`: which sizes of its long axes fail; `cases`: what the failing cases have in common. `seed`
    is that of the failing inputs, if not the case's own.
    """
    told: dict[str, str] = {}
    shown = smallest if seed is None else replace(smallest, seed=seed)
    first = observe(specification, capability, shown)
    if first is not None and first.beyond:
        told |= _first(first, first.beyond[0], capability)
    if search:
        told["behaves"] = "; ".join(causes(specification, capability, shown, failing))
        other = OTHER if seed is None else seed
        told["passes"] = needs(specification, capability, smallest, failing, other)
        told["sizes"] = sizes(specification, capability, smallest, other)
    told["cases"] = together(failing, passing, smallest)
    return {name: told[name] for name in ORDER if told.get(name)}


def _first(found: Observation, number: int, capability: Capability) -> dict[str, str]:
    want, wrong = found.expected[number], np.argwhere(found.wrong(number))
    axes = want.axes.split()
    order = np.argsort(wrong[:, axes.index("t")], kind="stable") if "t" in axes else np.arange(len(wrong))
    at = tuple(int(i) for i in wrong[order[0]])
    came = found.came[number][at]
    expected, got = apart(float(want.value[at]), float(came), 8)
    values = f"{want.name} at {place(want.axes, at)}: expected {expected}, got {got}"
    return {
        "values": values,
        "inputs": decisive(found, number, dict(zip(axes, at, strict=True)), capability.contract),
        "extent": f"{want.name}: {extent(found, number)}",
    }


def causes(specification: Specification, capability: Capability, smallest: Case, failing: Sequence[Case]) -> list[str]:
    """Explanations by changed inputs, then by changed outputs. They are searched on a failing case with several positions
    along each axis, and must also fit other failing cases and the smallest."""
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
    spread = [failing[(n + 1) * len(failing) // TRIED - 1] for n in range(TRIED)]
    others = [o for o in observed(specification, capability, [*spread, smallest], TRIED + 1, False) if o.case != first.case]
    found = explain(specification, capability.contract, first, others)
    seen = [patterns(first, number, capability.contract) for number in first.beyond[:2]]
    if seen and all(seen):
        found = [one for one in found if one.covers >= MOSTLY]
    said = [f"as if {one.says}" + ("" if one.covers > 0.99 else f", in {one.covers:.0%} of the places") for one in found]
    said += dict.fromkeys(says for of in seen for says in of)
    if told := overflow((first, *others)):
        said.insert(0, told)
    if not said and (told := wider(specification, capability.contract, (first, *others))):
        said.append(told)
    return said
