"""The limits of an adapter: what they leave out is not run, and what takes its place is. Smoke has no blind sizes."""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from conformance.adapters.reference_parts.pools import EVERY, no_states, over_pools
from conformance.faults.memory import strides
from conformance.faults.recurrences import guarded
from conformance.judge.draw import POISON
from conformance.judge.verdict import judge
from conformance.meta import failing, jobs
from conformance.run.calls import leaves
from conformance.suite import SPECIFICATIONS
from conformance.suite.recurrences import RECURRENCES
from conformance.suite.specification import OWN_CASES, Specification
from ssmspec_ref.contract import FLOAT64, Capability, Limits

from .judging import FP32, NAMES, passes

every = pytest.mark.parametrize("specification", SPECIFICATIONS, ids=NAMES)
SIZES = ((1, 4), (2, 2), (1, 17), (3, 8), (16, 64), (64, 128))
"""Limits that are tried on each axis."""


def limited(options: dict[str, tuple[str, ...]], sizes: Any = None) -> Limits:
    return Capability(print, FLOAT64, Limits(options, sizes or {})).limits


@every
def test_of_an_option_only_the_values_that_are_named_are_run(specification: Specification) -> None:
    for name, values in specification.offered.items():
        for named in {values[1:], values[-1:]} - {()}:
            limits = limited({name: named})
            assert {case.options[name] for case in specification.cases("standard", limits)} <= {*named}, (name, named)
            assert {case.options[name] for case in specification.drawn("deep", limits, 3)} <= {*named}, (name, named)


@every
def test_what_is_named_in_place_of_a_default_has_as_many_cases(specification: Specification) -> None:
    """The rows of the table are the same, but for that option; the option's own cases and those of other values aside."""
    for name, values in specification.values.items():
        many = len(list(specification.tabled(limited({name: values[:1]}))))
        for value in values[1:]:
            few = len(list(specification.tabled(limited({name: (value,)}))))
            assert few >= many - len(specification.further) - 3 or value in OWN_CASES.get(name, ()), (name, value, few, many)


@every
def test_values_with_cases_of_their_own_are_run_in_these(specification: Specification) -> None:
    for name in OWN_CASES.keys() & specification.values.keys():
        own = [value for value in OWN_CASES[name] if value in specification.values[name]]
        found = list(specification.cases("standard", limited({name: tuple(own)}))) if own else []
        assert {case.options[name] for case in found} == {*own}


WITHOUT = [s for s in SPECIFICATIONS if "none" in s.values.get("slots", ())]


@pytest.mark.parametrize("specification", WITHOUT, ids=lambda s: s.operation)
def test_an_implementation_without_an_initial_state_has_as_many_cases_as_others(specification: Specification) -> None:
    for tier in ("smoke", "standard"):
        some, none = (list(specification.cases(tier, limited({"slots": (way,)}))) for way in ("rows", "none"))
        assert len(none) >= len(some)
        assert Counter(case.family for case in none) >= Counter(case.family for case in some)
        assert {(*case.sizes.values(),) for case in some} <= {(*case.sizes.values(),) for case in none}


@pytest.mark.parametrize(
    "specification", [s for s in WITHOUT if not s.operation.startswith("conv")], ids=lambda s: s.operation
)
def test_an_implementation_without_an_initial_state_passes_in_all_of_them(specification: Specification) -> None:
    """It takes None for the state, and knows nothing else."""
    rule = RECURRENCES[specification.operation.partition(".")[0]]
    right = over_pools(Capability(rule.definition.scan, FLOAT64, EVERY), no_states(rule))

    def run(S: Any, *given: Any) -> Any:
        assert S is None
        return right.run(S, *given)

    capability = Capability(run, FLOAT64, Limits({"slots": ("none",)}))
    for case in specification.cases("smoke", capability.limits):
        passes(judge(specification, capability, case))


def uneven(size: int) -> bool:
    return size.bit_count() > 1


@every
def test_in_smoke_each_axis_has_a_size_that_is_no_power_of_two(specification: Specification) -> None:
    smoke = list(specification.cases("smoke", limited({})))
    blind = [axis for axis in specification.base if not any(uneven(case.sizes[axis]) for case in smoke)]
    assert blind == []


@every
def test_within_limits_too_wherever_a_size_that_is_none_is_valid(specification: Specification) -> None:
    for axis in specification.base:
        for low, high in SIZES:
            limits = limited({}, {axis: (low, high)})
            smoke = list(specification.cases("smoke", limits))
            valid = any(
                specification.ok({**case.sizes, axis: size})
                for case in smoke
                for size in range(low, high + 1)
                if uneven(size)
            )
            assert not valid or any(uneven(case.sizes[axis]) for case in smoke), (axis, low, high)
            assert all(low <= case.sizes[axis] <= high for case in smoke)


@pytest.mark.parametrize("fault", strides.BLOCKS, ids=lambda fault: fault.name)
def test_a_stride_of_a_block_fails_in_smoke(fault: Any) -> None:
    assert any(failing(job, 0) for job in jobs(fault.subject, fault.operation, "smoke"))


@every
def test_dead_entries_hold_ordinary_values_in_some_case(specification: Specification) -> None:
    """What a padding row, a rejected token or a stale slot holds in production."""
    if "dead" not in specification.values:
        return
    ordinary = "plausible" if "plausible" in specification.values["dead"] else "finite"
    cases = [c for c in specification.cases("standard", Limits()) if c.options["dead"] == ordinary and c.family != "wide"]
    assert cases
    for case in cases[:4]:
        found = [a for a in leaves(specification.draw(case, FP32)) if isinstance(a, np.ndarray) and a.dtype.kind == "f"]
        assert not any(np.isnan(a).any() or (a == POISON).any() for a in found), specification.identify(case)


@pytest.mark.parametrize("fault", guarded.FAULTS, ids=lambda fault: f"{fault.name}-{fault.operation}")
def test_a_read_that_a_guard_hides_shows_with_ordinary_values_alone(fault: Any) -> None:
    found = [job for job in jobs(fault.subject, fault.operation) if "plausible" in job.specification.values["dead"]]
    plausible = [job for job in found if job.case.options["dead"] == "plausible"]
    assert any(failing(job, 0) for job in plausible)
    for job in plausible[:1]:
        for dead in job.specification.values["dead"]:
            same = replace(job, case=replace(job.case, options={**job.case.options, "dead": dead}))
            assert dead == "plausible" or not failing(same, 0), dead
