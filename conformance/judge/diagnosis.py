"""Describe a failure: where it first deviates from the expected output, and which planted fault gives the same result.

A fault is named if its outputs are within twice the bound of the implementation's on every failing case tried, if it fails
these cases as well, and if it passes those that the implementation passes. Twice, because both round. Outputs that must be
bitwise equal have the bound 0, but both round if they are computed instead; then the largest bound of the case is used. The
bound of a right element says little of a wrong one that is larger: it may differ by a thousandth of its error, and at most
twice the largest bound. With few and small cases several faults may be indistinguishable; then all are named.
"""

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ssmspec_ref.contract import Capability, Verdict
from ssmspec_ref.errors import Unsupported
from ssmspec_ref.records import each
from ssmspec_ref.shapes import Array

from ..cases import Case
from ..diagnose.extent import place
from ..diagnose.observe import Observation, judged, observed
from ..run.calls import placed
from ..run.sessions import WINDOWS
from ..suite.specification import Specification
from .clock import Clock
from .shrink import within
from .verdict import Judgement, Measured, expectation

if TYPE_CHECKING:
    from ..faults.fault import Fault

SECONDS = 30.0
"""The time to look for a planted fault."""
NEAR, RANKED = 0.5, 3
"""The fraction of the error that a fault must explain to be reported as near, and how many are reported."""
EXPLAINED = 1000
"""An element that is wrong may differ from the fault's by this part of its error."""
FAILING, PASSING = 4, 2
"""Number of cases of each kind on which a fault must agree."""
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
"""Operations that verify windows of several tokens."""
CLASS = re.compile(r" Bug class [^.]*\.")
"""What the class of a fault means; shown beside the fault."""
FOUND = "tokens found"
"""How many tokens a prefix cache has of a prompt."""
BUFFER = "the state behind checkpoint and ring"


def diverges(operation: str, judgement: Judgement, sizes: Mapping[str, int] | None = None) -> str:
    """Operation, part and position of the first wrong element, and what is right beside it; "" if no bound applied."""
    beyond = [m for m in judgement.outputs if not m.utilisation <= 1]
    if judgement.verdict is not Verdict.FAIL or not beyond:
        return ""
    first = beyond[0]
    at = place(" ".join(first.first), tuple(first.first.values()), sizes) if first.first else ""
    text = f"{operation}, in {_part(operation, first)}" + (f": {at}" if at else "")
    number = judgement.outputs.index(first)
    behind = [m for m in judgement.outputs[number + 1 :] if m.utilisation <= 1 and _when(m) == _when(first)]
    right = ["all before"] * (number > 0) + [_part(operation, m) for m in behind]
    return text + (f"; right: {', '.join(right)}" if right else "")


def _when(measured: Measured) -> str:
    """The window of an output; "" if there is only one."""
    return " ".join(measured.name.split()[2:])


def _part(operation: str, measured: Measured) -> str:
    if measured.name.startswith(FOUND):
        return f"the number of {measured.name}"
    name, _, rest = measured.name.partition(" ")
    buffered = name == "S" and ".buffered_" in operation
    part = BUFFER if buffered else PARTS.get(name, "the output")
    return f"{part} {rest}" if rest else part


@dataclass(frozen=True)
class Likeness:
    """`equal` names the planted faults with the implementation's outputs, and the class and source of the first; `nearest`
    ranks faults with similar outputs. Either is "" if there is none."""

    equal: str = ""
    nearest: str = ""


def looks_like(
    specification: Specification,
    capability: Capability,
    failing: Iterable[Case],
    passing: Iterable[Case],
    faults: Iterable["Fault"],
    clock: Clock | None = None,
) -> Likeness:
    """The planted faults with the implementation's outputs, or with the most similar ones."""
    clock = clock or Clock(SECONDS)
    tried = [*observed(specification, capability, failing, FAILING, False)]
    if not tried:
        return Likeness()
    tried += observed(specification, capability, passing, PASSING, True)
    equal: dict[str, Fault] = {}
    agrees = ""
    near: dict[str, tuple[float, Fault]] = {}
    for fault in faults:
        own = _of(fault, specification.operation)
        if own is None or fault.name in equal:
            continue
        if clock.ended:
            break
        every, share = True, 1.0
        taken = [one for one in tried if within(specification, own, one.case)]
        if 2 * sum(not one.passes for one in taken) < sum(not one.passes for one in tried):
            continue  # a fault that takes no pools, say, says nothing of cases with pools
        for one in taken:
            same, explained = _compared(specification, capability, own, one)
            every, share = every and same, min(share, explained)
            if not every and share <= NEAR:
                break
        if every:
            equal[fault.name] = fault
            bad = sum(not one.passes for one in taken)
            agrees = agrees or f"{bad} failing and {len(taken) - bad} passing cases"
        elif share > NEAR:
            near[fault.name] = (share, fault)
    return Likeness(_named(list(equal.values()), agrees), "" if equal else _ranked(near))


def _named(equal: list["Fault"], agrees: str) -> str:
    if not equal:
        return ""
    first, *others = equal
    says = CLASS.sub("", first.says)
    named = f"equals the planted fault `{first.name}` on {agrees}; bug class {first.bug_class}: {says}"
    return named + (f" So do {', '.join(f'`{fault.name}`' for fault in others)}." if others else "")


def _ranked(near: "dict[str, tuple[float, Fault]]") -> str:
    """The nearest faults; of the first also what it does."""
    told = [
        (f"`{fault.name}` (explains {share:.0%} of the error)", CLASS.sub("", fault.says))
        for share, fault in sorted(near.values(), key=lambda one: -one[0])[:RANKED]
    ]
    if not told:
        return ""
    (first, does), *others = told
    return f"{first}: {does}" + (f" Then {', '.join(name for name, _ in others)}." if others else "")


def _of(fault: "Fault", operation: str) -> Capability | None:
    """The capability of a fault for an operation.

    A fault of a scan is also tried as one of a step (a window of one token) and of windows (its states are kept); a fault of
    windows verified in one way is also tried for those verified in another.
    """
    rule, _, name = operation.partition(".")
    had = fault.subject.capabilities
    scan = had.get(f"{rule}.scan") or _unmasked(had.get(f"{rule}.scan_masked"), rule)
    if operation in had:
        return had[operation]
    if operation == f"{rule}.scan":
        return _unmasked(had.get(f"{rule}.scan_masked"), rule)
    if rule == "conv":
        return _one_input(had.get("conv.scan") or _unmasked(had.get("conv.scan_masked"), rule)) if name == "step" else None
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


def _unmasked(masked: Capability | None, rule: str) -> Capability | None:
    """A fault of a masked scan as a fault of a scan: every token is real."""
    if masked is None:
        return None

    def scan(S: Array, window: Any, params: Any) -> Any:
        if rule == "conv":
            return masked.run(S, window, np.ones(window.shape[:2], dtype=bool), params)
        live = np.ones(next(iter(vars(window).values())).shape[:2], dtype=bool)
        return masked.run(S, window, params, live)

    return replace(masked, run=scan)


def _one_input(scan: Capability | None) -> Capability | None:
    """A fault of the convolution over several inputs as a fault for a single input."""
    if scan is None:
        return None

    def step(M: Array, u: Array, params: Any) -> Any:
        y, M_next = scan.run(M, u[:, None], params)
        return y[:, 0], M_next

    return replace(scan, run=step)


class Stepped:
    """Windows of chains, decoded token by token with a scan; commit restores one of the states."""

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


def _compared(
    specification: Specification, capability: Capability, own: Capability, found: Observation
) -> tuple[bool, float]:
    """Whether a fault gives the same outputs, and passes or fails in the same way; and the fraction of the error that it
    explains (1 for a passing case that it passes)."""
    try:
        with np.errstate(all="ignore"):  # its warnings are not the user's
            outputs = specification.run(own, placed(found.arguments, False)).outputs
    except Exception:  # a fault that raises gives no outputs
        return False, 0.0
    if len(outputs) != len(found.came):
        return False, 0.0
    bounds = [want.bound for want in found.expected]
    if own.contract != capability.contract:  # a fault in float32 resembles one in float64, but rounds more
        theirs = expectation(specification, found.case, own.contract, found.arguments, None)
        bounds = [np.maximum(a, b.bound) for a, b in zip(bounds, theirs, strict=True)]
    largest = max(np.max(bound, initial=0.0) for bound in bounds)
    apart, same, off, error = False, True, 0.0, 0.0
    for want, bound, theirs, ours in zip(found.expected, bounds, outputs, found.came, strict=True):
        if not isinstance(theirs, np.ndarray) or theirs.shape != ours.shape:
            return False, 0.0
        counts = judged(want)
        both_round = 2 * np.where(bound > 0, bound, largest)
        with np.errstate(invalid="ignore", over="ignore"):  # memory that a fault leaves unwritten may be a signalling NaN
            theirs, ours = theirs.astype(np.float64)[counts], ours.astype(np.float64)[counts]
            between, wrong = np.abs(theirs - ours), np.abs(theirs - want.value[counts])
            alike = (theirs == ours) | (np.isnan(theirs) & np.isnan(ours))  # also where both overflow
            off_by = np.abs(ours - want.value[counts])
            explained = np.where(off_by > bound[counts], np.minimum(off_by / EXPLAINED, 2 * largest), 0.0)
            same &= bool(np.all((between <= np.maximum(both_round[counts], explained)) | alike))
            apart |= not np.all(wrong <= bound[counts])
            scale = max(float(np.max(np.abs(want.value[counts]), initial=0.0)), 1e-30)
            off += float(np.sum(np.square(between / scale)))
            error += float(np.sum(np.square(np.abs(ours - want.value[counts]) / scale)))
    if found.passes:
        return same and not apart, 0.0 if apart else 1.0
    share = 1 - np.sqrt(off / error) if error > 0 and np.isfinite(off) else 0.0
    return same and apart, share if apart else 0.0
