"""What a failure looks like: where it is first apart from what must come, and which planted fault computes the same.

A fault is named where its outputs are within twice the bound of the implementation's on every failing case that is tried,
where it fails these cases as well, and where it passes what the implementation passes. Twice: both round. What must come bit
for bit has the bound 0, and where it is computed instead both round too: there the largest bound of the case counts. Few and
small cases may not tell two faults apart; then all are named.
"""

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ssmspec_ref.contract import Capability, Verdict
from ssmspec_ref.errors import Unsupported
from ssmspec_ref.records import each
from ssmspec_ref.shapes import Array

from .bench import bench_of, placed
from .cases import Case
from .judge import Judgement, Measured, compare, expectation
from .program import WINDOWS
from .shrink import within
from .suite.specification import Expected, Specification

if TYPE_CHECKING:
    from .faults.catalogue import Fault

FAILING, PASSING = 4, 2
"""Cases of each kind on which a fault must agree."""
PARTS = {
    "M": "the window of the convolution",
    "S": "the recurrent state",
    "K": "the keys of the cache",
    "V": "the values of the cache",
    "tokens": "the emitted tokens",
    "path": "the accepted path",
    "advanced": "the count of what is accepted",
    "ended": "the end of the run",
}
SEVERAL = tuple(way for way in WINDOWS if way != "buffered_step")
"""Ways to verify windows of several tokens."""
CLASS = re.compile(r" Bug class [^.]*\.")
"""What a fault says of its class, which is told beside it."""
BUFFER = "the state behind checkpoint and ring"
AXES = {"b": "row", "t": "token", "h": "head", "l": "slot", "w": "tap", "n": "state", "g": "group", "k": "key channel"}


def diverges(operation: str, judgement: Judgement) -> str:
    """Operation, part and place of what is first beyond its bound, and what beside it is right; "" where no bound decided."""
    beyond = [m for m in judgement.outputs if not m.utilisation <= 1]
    if judgement.verdict is not Verdict.FAIL or not beyond:
        return ""
    first = beyond[0]
    place = ", ".join(f"{AXES.get(axis, 'channel')} {index}" for axis, index in first.first.items())
    text = f"{operation}, in {_part(operation, first)}" + (f": {place}" if place else "")
    at = judgement.outputs.index(first)
    behind = [m for m in judgement.outputs[at + 1 :] if m.utilisation <= 1 and _when(m) == _when(first)]
    right = ["all before"] * (at > 0) + [_part(operation, m) for m in behind]
    return text + (f"; right: {', '.join(right)}" if right else "")


def _when(measured: Measured) -> str:
    """The window of an output; "" where there is one only."""
    return " ".join(measured.name.split()[2:])


def _part(operation: str, measured: Measured) -> str:
    name, _, rest = measured.name.partition(" ")
    buffered = name == "S" and ".buffered_" in operation
    part = BUFFER if buffered else PARTS.get(name, "the output")
    return f"{part} {rest}" if rest else part


def looks_like(
    specification: Specification,
    capability: Capability,
    failing: Iterable[Case],
    passing: Iterable[Case],
    faults: Iterable["Fault"],
) -> str:
    """The first planted fault whose outputs are those of an implementation, with its class and source, and the names of the
    others; "" where none is."""
    tried = [*_observed(specification, capability, failing, FAILING, False)]
    if not tried:
        return ""
    tried += _observed(specification, capability, passing, PASSING, True)
    equal: dict[str, Fault] = {}
    for fault in faults:
        own = _of(fault, specification.operation)
        if own is not None and all(_same(specification, own, *observed) for observed in tried):
            equal.setdefault(fault.name, fault)
    if not equal:
        return ""
    (first, *others), failed = equal.values(), sum(not passes for *_, passes in tried)
    agrees = f"{failed} failing and {len(tried) - failed} passing cases"
    says = CLASS.sub("", first.says)
    named = f"equals the planted fault `{first.name}` on {agrees}; bug class {first.bug_class}: {says}"
    return named + (f" So do {', '.join(f'`{fault.name}`' for fault in others)}." if others else "")


def _of(fault: "Fault", operation: str) -> Capability | None:
    """What a fault does for an operation.

    A fault of a scan is one of a step too, over a window of one token, and one of windows, whose states are kept; a fault of
    windows verified in one way is one of those that are verified in another.
    """
    rule, _, name = operation.partition(".")
    had = fault.subject.capabilities
    scan = had.get(f"{rule}.scan")
    if operation in had or rule == "conv":
        return had.get(operation)
    if name in WINDOWS:
        other = next((had[f"{rule}.{way}"] for way in SEVERAL if f"{rule}.{way}" in had), None)
        return other or (scan and replace(scan, run=partial(Stepped, scan.run)))
    if scan is None or name != "step":
        return None

    def step(S: Array, token: Any, params: Any) -> Any:
        kind = getattr(sys.modules[type(token).__module__], type(token).__name__.replace("Token", "Window"))
        came = scan.run(S, kind(**{n: None if a is None else a[:, None] for n, a in vars(token).items()}), params)
        return came[0][:, 0], came[1]

    return replace(scan, run=step)


class Stepped:
    """Windows of chains, decoded by a scan of one token after the other; of the states one is restored."""

    def __init__(self, scan: Callable[..., Any], S: Array, params: Any) -> None:
        self.scan, self.S, self.params = scan, S, params

    def verify(self, window: Any, parents: Array | None = None) -> Array:
        if parents is not None:
            raise Unsupported("a scan reads chains; a tree has other faults")
        outputs, self.kept = [], [self.S]
        for t in range(next(iter(vars(window).values())).shape[1]):
            output, S = self.scan(self.kept[-1], each(lambda a, t=t: a[:, t : t + 1], window), self.params)
            outputs.append(output)
            self.kept.append(S.astype(np.float64))
        return np.concatenate(outputs, axis=1)

    def commit(self, advanced: Array, path: Array) -> None:
        self.S = np.stack(self.kept)[advanced, np.arange(len(advanced))]

    def state(self) -> Array:
        return self.S


def _observed(
    specification: Specification, capability: Capability, cases: Iterable[Case], most: int, passes: bool
) -> Iterator[tuple[Case, Any, list[Expected], tuple[Any, ...], bool]]:
    """Cases with their inputs, what must come, and what came, where the implementation fails them, or passes them."""
    found, seen = 0, list[Case]()
    for case in cases:
        if case in seen:
            continue
        seen.append(case)
        arguments = specification.draw(case, capability.contract)
        answer = bench_of(capability).start(specification, capability, arguments, False, False)()
        if answer.failed or answer.came.used is not None:
            continue
        expected = expectation(specification, case, capability.contract, arguments, None)
        judgement = compare(expected, answer.came.outputs, capability.contract)
        if judgement.verdict is (Verdict.PASS if passes else Verdict.FAIL) and judgement.kind in ("", "bound"):
            found += 1
            yield case, arguments, expected, answer.came.outputs, passes
        if found == most:
            return


def _same(
    specification: Specification,
    own: Capability,
    case: Case,
    arguments: Any,
    expected: list[Expected],
    came: Any,
    passes: bool,
) -> bool:
    """Whether a fault gives what came, and passes or fails with it."""
    if not within(specification, own, case):
        return False
    try:
        outputs = specification.run(own, placed(arguments, False)).outputs
    except Exception:  # a fault that raises gives nothing
        return False
    if len(outputs) != len(came):
        return False
    apart, largest = False, max(np.max(want.bound, initial=0.0) for want in expected)
    for want, theirs, ours in zip(expected, outputs, came, strict=True):
        if not isinstance(theirs, np.ndarray) or theirs.shape != ours.shape:
            return False
        judged = np.broadcast_to(np.True_ if want.judged is None else want.judged, want.value.shape)
        both_round = 2 * np.where(want.bound > 0, want.bound, largest)
        with np.errstate(invalid="ignore"):  # what a fault leaves unwritten may be a signalling NaN
            theirs, ours = theirs.astype(np.float64), ours.astype(np.float64)
            between, error = np.abs(theirs - ours), np.abs(theirs - want.value)
        if not np.all((between <= both_round)[judged]):
            return False
        apart |= not np.all((error <= want.bound)[judged])
    return apart is not passes
