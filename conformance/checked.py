"""Check the adapter itself: one case of each operation. The findings are about the adapter, not about its numbers.

Wrong values are found by `run`. An adapter can be wrong in how it is called, what it returns, and in which form.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ssmspec_ref.contract import OPERATIONS, Adapter, Capability

from .judge.raised import REFUSED
from .judge.verdict import judge
from .run.plan import Selection, plan
from .run.sessions import opened
from .suite.specification import Specification

ADVICE = {
    "error": "it raised",
    REFUSED: "it refused a case that its limits claim",
    "crash": "its process ended",
    "timeout": "it gave no answer",
    "memory": "it used too much memory",
    "garbled": "it sent an invalid answer",
    "printed": "it printed",
    "outputs": "wrong number of outputs",
    "shape": "an output has another shape",
    "dtype": "an output has another type",
    "nan": "an output holds NaN or infinity",
    "mutated": "it wrote into its inputs",
    "used": "it used other weights",
    "void": "its contract is too wide",
}
"""Kinds of failure caused by the adapter."""
METHODS = {
    "layer": "a layer with forward(u, live=None) -> out, state() -> M, S, and rollback(tokens)",
    "speculate": "an object with verify(inputs, parents=None) -> y, commit(advanced, path), and state() -> M, S",
    "life": "an object with begin, feed, fork, end, evict, export, take and state (`ssmspec_ref.contract.States`)",
    "windows": "an object with verify(window, parents=None) -> y, commit(advanced, path), and state() -> S",
}


@dataclass(frozen=True)
class Finding:
    """The result of one case of one operation of a subject; `right` if nothing is wrong with the adapter."""

    subject: str
    operation: str
    case: str
    right: bool
    says: str


def checked(adapters: Mapping[str, Adapter]) -> Iterator[Finding]:
    """One case of each operation, and each kind of it. Raises: what planning raises."""
    jobs, left_out = plan(adapters, Selection("smoke"))
    for result in left_out:
        if result.verdict == "unknown":
            yield Finding(result.subject, result.operation, "", False, result.message)
    seen: list[tuple[str, str, int]] = []
    for job in jobs:
        key = job.adapter.name + job.subject.name, str(job.capability.contract), id(job.specification)
        if key not in seen:
            seen.append(key)
            yield Finding(job.subject.name, job.case.operation, job.identity, *_tried(job.specification, job.capability))


def _tried(specification: Specification, capability: Capability) -> tuple[bool, str]:
    case = next(iter(specification.cases("smoke", capability.limits)))
    found = judge(specification, capability, case)
    if found.kind not in ADVICE:
        values = (
            "the values are within their bounds"
            if not found.kind
            else f"the values are not within their bounds: {found.message}"
        )
        return True, f"called; the outputs fit {capability.contract}; {values}"
    return False, f"{ADVICE[found.kind]}: {found.message}\nneeded: {signature(case.operation)}"


def signature(operation: str) -> str:
    """How an operation is called, and what it returns."""
    names = opened(operation)
    if not names:
        return OPERATIONS[operation]
    group = operation.split(".")[0]
    return f"run({', '.join(names)}) -> {METHODS.get(group, METHODS['windows'])}"
