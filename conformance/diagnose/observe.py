"""Call a case once more and keep its inputs, the expected outputs and the actual outputs."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from ssmspec_ref.contract import Capability, Verdict
from ssmspec_ref.errors import SpecError
from ssmspec_ref.shapes import Array

from ..cases import Case
from ..judge.columns import as_kept
from ..judge.verdict import compare, expectation
from ..run.calls import bench_of
from ..suite.called import Arguments
from ..suite.expected import Expected
from ..suite.specification import Specification


@dataclass(frozen=True)
class Observation:
    """The result of one call. `passes` says that every output was within its bound."""

    case: Case
    arguments: Arguments
    expected: list[Expected]
    came: tuple[Array, ...]
    passes: bool

    def wrong(self, number: int) -> Array:
        """Which elements of one output exceed their bound."""
        want, came = self.expected[number], self.came[number].astype(np.float64)
        with np.errstate(invalid="ignore"):
            return ~(np.abs(came - want.value) <= want.bound) & judged(want)

    @property
    def beyond(self) -> list[int]:
        """The indices of the wrong outputs."""
        return [number for number in range(len(self.expected)) if self.wrong(number).any()]


def judged(want: Expected) -> Array:
    """The elements that are compared."""
    return np.broadcast_to(np.True_ if want.judged is None else want.judged, want.value.shape)


def observe(specification: Specification, capability: Capability, case: Case) -> Observation | None:
    """None if the call gave nothing comparable (an error, another shape, other weights), or what is expected overflows."""
    arguments = specification.draw(case, capability.contract)
    answer = bench_of(capability).start(specification, capability, arguments, False, False)()
    if answer.failed or answer.came.used is not None:
        return None
    try:
        expected = expectation(specification, case, capability.contract, arguments, None)
    except SpecError:
        return None
    if not all(np.isfinite(want.value[judged(want)]).all() for want in expected):
        return None  # options of a search may not fit each other: a delta rule with long keys grows without a limit
    found = compare(expected, answer.came.outputs, capability.contract)
    if found.kind not in ("", "bound", "nan") or found.verdict not in (Verdict.PASS, Verdict.FAIL):
        return None
    kept = as_kept(expected, answer.came.outputs)
    return Observation(case, arguments, kept, answer.came.outputs, found.verdict is Verdict.PASS)


def observed(
    specification: Specification, capability: Capability, cases: Iterable[Case], most: int, passes: bool
) -> Iterator[Observation]:
    """Observations of the first cases that the implementation passes, or fails.

    If a failing case gives values that are not finite, and still fails with `CALM` in the entries that must not be read, it
    is called so: a value that is not finite says nothing of what was computed.
    """
    seen: list[Case] = []
    count = 0
    for case in cases:
        if case in seen or count == most:
            continue
        seen.append(case)
        found = observe(specification, capability, case)
        if found is not None and found.passes is passes:
            count += 1
            yield found if passes else _calm(specification, capability, found)


def _calm(specification: Specification, capability: Capability, found: Observation) -> Observation:
    values = zip(found.expected, found.came, strict=True)
    if "dead" not in specification.rare or all(np.isfinite(came[judged(want)]).all() for want, came in values):
        return found
    again = observe(specification, capability, replace(found.case, options={**found.case.options, "dead": "calm"}))
    return found if again is None or again.passes else again
