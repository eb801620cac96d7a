"""Run transformers in float64 throughout and compare it with the reference: any remaining difference is mathematical.

    python -m conformance.adapters.transformers.exact [--tier standard]

Every layer runs the suite's scripts after `guard.reroute`, so this must be a separate process. The error of a case is
max |actual - reference| / max |reference|, the largest of output, window and state. If transformers is right it is at most
1e-12; a case on the list of known failures must be far above that, or it is not a failure. Exits with 1 otherwise.
"""

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import typer

from conformance.cases import Case
from conformance.main import run_command
from conformance.run.known import Entry, read_known
from conformance.suite.layers import SPECIFICATIONS
from conformance.suite.specification import Specification
from ssmspec_ref.contract import FLOAT64, Capability
from ssmspec_ref.layers import layer
from ssmspec_ref.layers.mixer import new_state
from ssmspec_ref.options.words import one_of
from ssmspec_ref.shapes import Array

from . import guard, others
from .subjects import adapter

LIMIT = 1e-12
"""Relative; float64 rounding in layers of this size stays below 1e-14."""
FAILING = 1e-9
"""A known failure must be above this; a smaller difference would be rounding."""


@dataclass(frozen=True)
class Row:
    """One operation of one layer: the largest error of cases that must pass, and the smallest of its known failures."""

    name: str
    operation: str
    cases: int
    worst: float
    known: int
    least: float

    @property
    def holds(self) -> bool:
        return self.worst <= LIMIT and self.least >= FAILING

    def __str__(self) -> str:
        right = f"{self.cases:3d} cases {self.worst:8.1e}" if self.cases else " " * 18
        wrong = f"   {self.known:3d} known failures, from {self.least:.1e}" if self.known else ""
        return f"{self.name:18s} {self.operation:17s} {right}{wrong}{'' if self.holds else '   DIFFERS'}"


def relative(came: Array, reference: Array) -> float:
    """max |actual - reference| / max |reference|; inf for NaN or another shape."""
    if came.shape != reference.shape:
        return math.inf
    size = np.max(np.abs(reference), initial=0.0)
    error = np.max(np.abs(came - reference), initial=0.0)
    found = float(error if size == 0 else error / size)
    return math.inf if math.isnan(found) else found


def error_of(specification: Specification, capability: Capability, case: Case) -> float:
    """The error of one case; inf if the layer raises."""
    record, script = specification.draw(case, FLOAT64)
    try:
        came = specification.run(capability, (record, script))
    except RuntimeError:
        return math.inf
    used, rows = came.used or record, script.u.shape[0]
    out, after = layer.scan(new_state(used.mixer, rows), script.u, used, script.counted)
    seen = np.where(script.counted[:, :, None], came.outputs[0], 0.0)
    return max(relative(seen, out), relative(came.outputs[-2], after.M), relative(came.outputs[-1], after.S))


def row(subject: Any, specification: Specification, tier: str, entries: list[Entry]) -> Row:
    """All cases of an operation on one layer."""
    capability = subject.capabilities[specification.operation]
    right: list[float] = []
    wrong: list[float] = []
    for case in specification.cases(tier, capability.limits):
        identity = specification.identify(case)
        listed = any(entry.matches(subject.name, str(capability.contract), identity) for entry in entries)
        (wrong if listed else right).append(error_of(specification, capability, case))
    worst, least = max(right, default=0.0), min(wrong, default=math.inf)
    return Row(subject.name, specification.operation, len(right), worst, len(wrong), least)


def rows(tier: str) -> Iterator[Row]:
    """Every layer that fits a record, then the others."""
    entries = read_known("transformers").entries
    for subject in adapter().subjects:
        for specification in SPECIFICATIONS:
            capability = subject.capabilities.get(specification.operation)
            if capability and specification.fixed["kind"] in capability.limits.options["kind"]:
                yield row(subject, specification, tier, entries)
    for name, pairs in others.LAYERS.items():
        errors = [relative(came, reference) for _, came, reference in pairs()]
        yield Row(name, "prefill, continue", len(errors), max(errors), 0, math.inf)


def main(tier: Annotated[str, typer.Option(help="smoke or standard.")] = "smoke") -> int:
    one_of("--tier", tier, ("smoke", "standard"))
    guard.reroute()
    held = True
    for line in rows(tier):
        print(line, flush=True)
        held = held and line.holds
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(run_command(main))
