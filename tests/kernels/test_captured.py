"""The kernels captured in a graph and replayed with other inputs: a CUDA graph on a GPU, a list in the interpreter."""

from collections.abc import Iterator
from typing import Any

import pytest

from conformance.cases import Case
from conformance.judge.verdict import judge
from conformance.suite import of_operation
from conformance.suite.graph.replayed import replayed
from conformance.suite.specification import Specification
from ssmspec_fast.adapters.kernels import adapter
from ssmspec_ref.contract import Capability, Subject, Verdict

from . import device

IN_CI = (
    ("conv", "conv.commit", "padded"),
    ("conv", "conv.step", "shuffled"),
    ("selective_scan", "selective.verify_tree", "padded"),
    ("ssd_scan", "ssd.step", "padded"),
    ("kda_scan", "delta.step", "shuffled"),
    ("shortconv_packed", "shortconv.scan_packed", "shuffled"),
    ("shortconv_buffered", "shortconv.buffered_verify", "rows"),
    ("shortconv_commit", "shortconv.verify_replay", "rows"),
    ("attention", "attention.compact", "rows"),
    ("acceptance", "acceptance.greedy", "rows"),
)
"""One of each kind of argument that changes between replays; all others run nightly."""


def declared() -> Iterator[tuple[Subject, Specification, Capability]]:
    for subject in adapter("cuda" if device.COMPILED else "cpu").subjects:
        for operation, capability in subject.capabilities.items():
            yield from ((subject, of, capability) for of in of_operation(operation))


def cases() -> Iterator[Any]:
    """Every case of every subject, those of CI unmarked."""
    for subject, specification, capability in declared():
        for case in filter(replayed, specification.cases("standard", capability.limits)):
            chosen = (subject.name, case.operation, case.options.get("slots", "rows")) in IN_CI
            named = f"{subject.name}-{specification.identify(case)}"
            marks = () if chosen else (pytest.mark.nightly,)
            yield pytest.param(specification, capability, case, id=named, marks=marks)


@pytest.mark.parametrize(("specification", "capability", "case"), list(cases()))
def test_a_captured_kernel_reads_its_inputs_again(specification: Specification, capability: Capability, case: Case) -> None:
    found = judge(specification, capability, case)
    assert found.verdict is Verdict.PASS, f"{found.kind}: {found.message}"


def test_every_kernel_is_captured_or_says_why_not() -> None:
    for subject, specification, capability in declared():
        if "graph" in specification.rare:
            captured = "replayed" in capability.limits.options["graph"]
            assert captured or capability.uncaptured, f"{subject.name}, {specification.operation}"
