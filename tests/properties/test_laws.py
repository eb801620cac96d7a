"""Every law holds for the reference, the engine and the interpreted kernels, and finds the faults listed beside it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance.adapters import reference
from conformance.faults.recurrences import laws as faults
from conformance.run.load import load
from property_tests.laws.recurrence_laws import LAWS, Law
from property_tests.laws.relations import Broken, given_of
from ssmspec_fast.adapters import kernels as kernel_adapter
from ssmspec_ref.contract import Subject

ALL = ("ssd", "delta", "selective", "shortconv", "mamba3")
TREES_APART = {"shortconv", "mamba3"}
"""Kinds of which no subject of the kernels' adapter has both a scan and a tree."""
FAMILIES = st.sampled_from(["gentle", "normal", "strong"])
BY_NAME = {law.name: law for law in LAWS}


def with_scans(name: str) -> list[tuple[str, Subject]]:
    """The subjects of an adapter that have a recurrence, with its kind."""
    return [(kind, s) for s in load(name).subjects for kind in ALL if f"{kind}.scan" in s.capabilities]


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
def test_a_law_holds_for_the_reference(law: Law) -> None:
    subjects = [(kind, s) for s in reference.adapter().subjects for kind in ALL if law.takes(kind, s)]
    assert {kind for kind, _ in subjects} == set(law.kinds)

    @settings(max_examples=4, derandomize=True, deadline=None, database=None)
    @given(st.sampled_from(subjects), FAMILIES, st.integers(0, 999))
    def check(subject: tuple[str, Subject], family: str, seed: int) -> None:
        law.holds(given_of(*subject, family, seed))

    check()


@pytest.mark.parametrize("name", ["ssmspec_fast", "ssmspec_fast.adapters.kernels:adapter"])
@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
def test_a_law_holds_for_the_engine_and_its_kernels(law: Law, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row by row bits are promised in fp32, the format of the bitwise mode; on PyTorch's operations by that mode alone."""
    monkeypatch.setattr(kernel_adapter, "INTERPRETED", (("fp32", "fp32"),))
    subjects = [
        (kind, s)
        for kind, s in with_scans(name)
        if law.takes(kind, s) and s.capabilities[f"{kind}.scan"].contract.io == "fp32"
        if name != "ssmspec_fast" or law.name != "batch_permutation" or "rows" in s.capabilities[f"{kind}.scan"].bitwise
    ]
    lacking = TREES_APART if "verify_tree" in law.needs else set()
    assert {kind for kind, _ in subjects} == set(law.kinds) - (lacking if name.endswith("kernels:adapter") else set())
    for number, (kind, subject) in enumerate(subjects):
        law.holds(given_of(kind, subject, ("gentle", "normal")[number % 2], number))


@pytest.mark.parametrize(
    ("law", "fault"), [(law.name, fault) for law in LAWS for fault in law.kills], ids=lambda value: value
)
def test_a_law_finds_the_faults_beside_it(law: str, fault: str) -> None:
    for kind in BY_NAME[law].kinds:
        with pytest.raises(Broken):
            BY_NAME[law].holds(given_of(kind, faults.of_name(kind, fault), "gentle", 1))


@pytest.mark.parametrize("kind", ALL)
def test_a_right_one_breaks_no_law(kind: str) -> None:
    for law in LAWS:
        if kind in law.kinds:
            law.holds(given_of(kind, faults.subject(kind), "gentle", 1))


def test_every_fault_is_some_laws() -> None:
    every = {run.__name__ for run in (*faults.SCANS, *faults.TREES)} - {"right"}
    assert every == {fault for law in LAWS for fault in law.kills}
