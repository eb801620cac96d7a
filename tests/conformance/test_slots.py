"""Pools of slots, windows verified twice, windows of a convolution without their oldest column: asked for, tested, caught."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from conformance.adapters.reference_parts.pools import WAYS, no_states, over_pools, pooled
from conformance.faults.catalogue import of_name
from conformance.faults.memory import beginnings, far_inputs, offsets, pools
from conformance.faults.windows import Right
from conformance.isolation.memory import taken
from conformance.judge.verdict import judge
from conformance.suite import SPECIFICATIONS
from conformance.suite.recurrences import RECURRENCES as WITH_WINDOWS
from ssmspec_ref import conv, ssd, state_format
from ssmspec_ref.contract import FLOAT64, Capability, Limits, NumericContract, Verdict
from ssmspec_ref.errors import NoRoom, SlotError
from ssmspec_ref.layers.recurrences import RECURRENCES
from ssmspec_ref.shapes import Array
from ssmspec_ref.slots import APART, Pool, far, is_far

from .judging import FP32, SPECIFICATION, failing, judged, of, passes, planned

WINDOWED = [kind.name for kind in WITH_WINDOWS.values() if kind.alone]


PLAIN = {"slots": "rows", "far": "none", "verify": "once"}
"""The value of an option that asks for nothing."""


def cases_of(capability: Capability, operation: str, option: str = "slots") -> list[Any]:
    return [job for job in planned({operation: capability}, "standard")[0] if option in job.case.options]


def failed(capability: Capability, operation: str, option: str = "slots") -> set[str]:
    """The values of an option with which a capability fails."""
    jobs = [job for job in cases_of(capability, operation, option) if job.case.options[option] != PLAIN[option]]
    assert jobs
    return {job.case.options[option] for job in failing(jobs)}


FAULTS: list[tuple[Any, str, set[str]]] = [
    (pools.FAULTS, "slots", {*WAYS.options["slots"]}),
    (offsets.FAULTS, "slots", {"far"}),
    (beginnings.FAULTS, "slots", {"fresh", "none"}),
    (far_inputs.FAULTS, "far", {*far_inputs.WAYS.options["far"]}),
]
"""Planted faults, the option with which they fail, and the values of it that may show them."""


@pytest.mark.parametrize(
    ("fault", "option", "values"),
    [pytest.param(f, *rest, id=f"{rest[0]}-{f.name}") for faults, *rest in FAULTS for f in faults],
)
def test_a_fault_of_memory_fails_where_an_option_asks_for_it_and_only_there(
    fault: Any, option: str, values: set[str]
) -> None:
    capability, operation = fault.capability, fault.operation
    assert set() < failed(capability, operation, option) <= values
    without = capability if option == "far" else replace(capability, limits=Limits())
    passes(of(next(job for job in cases_of(without, operation, option) if job.case.options[option] == PLAIN[option])))


def test_what_is_right_over_rows_and_looks_up_slots_passes() -> None:
    assert not failed(Capability(pooled(ssd.scan), FLOAT64, WAYS), "ssd.scan")


KEPT: list[tuple[str, NumericContract]] = [
    ("ssd.step", NumericContract(state="int8", state_scale="row")),
    ("ssd.scan", NumericContract(state="int16", state_scale=3)),
    ("delta.step", NumericContract(state="fp8_e4m3", state_scale="row")),
    ("selective.scan", NumericContract(state="int8", state_scale="row", error_feedback="int4")),
]


@pytest.mark.parametrize(("operation", "contract"), KEPT, ids=str)
def test_every_slot_of_a_pool_holds_what_the_format_of_the_state_holds(operation: str, contract: NumericContract) -> None:
    """An implementation whose memory is codes and scales must be able to give back the slots that it does not write."""
    specification = SPECIFICATION[operation]
    for way in ("shuffled", "padded", "apart"):
        held, *_ = specification.draw(specification.case({"b": 5}, {"slots": way}, specification.families[-1], 0), contract)
        axis = -2 if operation.startswith("delta") else -1
        assert np.array_equal(state_format.keep(held.states, contract, axis).value, held.states)


def compact(held: Any, window: Any, params: Any) -> Any:
    y, rows = ssd.scan(held.rows, window, params)
    return y, held.written(rows)


def refuse(*given: Any, **more: Any) -> None:
    raise OSError("Cannot allocate memory")


@pytest.mark.parametrize(
    ("run", "place", "there", "said"),
    [
        (compact, "", None, "not 2^31 elements apart"),
        (pooled(ssd.scan), "ssmspec_ref.slots.mmap.mmap", refuse, " GiB"),
        (pooled(ssd.scan), "conformance.run.calls.taken", [0, 1 << 30], "allocated 1024 MiB"),
    ],
    ids=["a pool that comes back compact", "no addresses", "addresses that take memory"],
)
def test_what_says_nothing_of_slots_far_apart_is_not_judged(
    run: Any, place: str, there: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if place:
        held = iter(there) if isinstance(there, list) else None
        monkeypatch.setattr(place, there if held is None else lambda: next(held))
    (job,) = (job for job in cases_of(Capability(run, FLOAT64, WAYS), "ssd.scan") if job.case.options["slots"] == "far")
    found = of(job)
    assert (found.verdict, found.kind) == (Verdict.UNKNOWN, "unjudged")
    assert said in found.message


def test_slots_far_apart_hold_what_they_should_and_take_little_memory() -> None:
    before = taken()
    a = far((4, 3, 5))
    a[:] = np.arange(60).reshape(4, 3, 5)
    assert is_far(a)
    assert not is_far(np.zeros((4, 3, 5)))
    assert a[1:2].ctypes.data - a[0:1].ctypes.data == APART * 8
    assert np.array_equal(a, np.arange(60).reshape(4, 3, 5))
    assert taken() - before < 1 << 20
    with pytest.raises(NoRoom, match="more than the"):
        far((2, 1 << 16, 1 << 16))


@pytest.mark.parametrize("name", ["KeepsTheFirstWindow", "ReplaysWhenVerified"])
def test_a_second_verification_shows_what_the_first_left(name: str) -> None:
    fault = of_name(name)
    again = replace(fault.capability, contract=FLOAT64)
    assert failed(again, fault.operation, "verify") == {"twice"}
    once = replace(again, limits=Limits(sizes=again.limits.sizes))
    assert {job.case.options["verify"] for job in cases_of(once, fault.operation, "verify")} == {"once"}


def test_pools_are_tested_only_where_limits_ask_for_them() -> None:
    plain = Capability(ssd.scan, FLOAT64)
    asking = replace(plain, limits=Limits({"slots": ("rows", "padded")}))
    for capability, ways in ((plain, {"rows"}), (asking, {"rows", "padded"})):
        assert {job.case.options["slots"] for job in cases_of(capability, "ssd.scan")} == ways


@pytest.mark.parametrize("way", ["shuffled", "padded", "apart"])
def test_a_pool_has_slots_that_no_row_names_and_rows_as_its_way_says(way: str) -> None:
    specification = SPECIFICATION["ssd.step"]
    held = specification.draw(specification.case({"b": 5}, {"slots": way}, "gentle", 0), FP32)[0]
    assert len(held.states) > 2 * len(held.read)
    assert (held.read < 0).any() == (way == "padded")
    assert (len(np.unique(held.read)) < 5) == (way in ("apart", "padded"))
    assert np.any(held.read != held.write) == (way == "apart")
    rest = specification.draw(specification.case({"b": 5}, {}, "gentle", 0), FP32)[1:]
    expected = specification.expect((held, *rest), FP32, None)
    free = np.setdiff1d(np.arange(len(held.states)), held.write)
    assert not expected[1].bound[free].any()
    assert np.array_equal(expected[1].value[free], held.states[free])


@pytest.mark.parametrize(
    ("read", "write", "said"),
    [
        ([0, 1], [2, 2], "both name slot 2"),
        ([0, -1], [1, 2], "row 1 reads slot -1 and writes slot 2"),
        ([0, 1], [1, 2], "row 0 writes slot 1, which row 1 reads"),
        ([0, 4], [1, 2], "the pool has 4"),
    ],
)
def test_a_pool_that_no_order_of_rows_can_serve_is_refused(read: list[int], write: list[int], said: str) -> None:
    with pytest.raises(SlotError, match=said):
        Pool(np.zeros((4, 2)), np.array(read), np.array(write))


CONV = "conv.scan/b2,t7,c6,w4/plain/normal/s0"


@pytest.mark.parametrize(("columns", "kind"), [(slice(1, None), ""), (slice(-1), "bound"), (slice(2, None), "shape")])
def test_a_window_without_its_oldest_column_is_compared_as_it_is(columns: slice, kind: str) -> None:
    def cut(M: Array, u: Array, params: Any) -> tuple[Array, Array]:
        y, after = conv.scan(M, u, params)
        return y, after[:, :, columns]

    assert judged(Capability(cut, FLOAT64, bitwise=() if kind else ("rows", "split")), CONV).kind == kind


def test_a_layer_may_keep_w_minus_one_columns() -> None:
    class Narrow(Right):
        def state(self) -> tuple[Array, Array]:
            M, S = super().state()
            return M[:, :, 1:], S

    passes(judged(Narrow, "layer.step/b2,t5,j3,g2,h4,p4,n5,w4/kind=mamba2/gentle/s0"))


@pytest.mark.parametrize("kind", RECURRENCES.values(), ids=lambda kind: kind.name)
def test_a_scan_that_begins_with_zeros_where_it_has_no_states_passes(kind: Any) -> None:
    for operation in ("scan", "scan_masked"):
        capability = over_pools(Capability(kind.definition.scan, FLOAT64), no_states(kind))
        assert not failed(capability, f"{kind.name}.{operation}")


def test_a_packed_run_marks_its_own_fresh_sequences_and_only_prompts_come_without_states() -> None:
    has = {s.operation: s.values["slots"] for s in SPECIFICATIONS if "slots" in s.values}
    assert {operation for operation, values in has.items() if "fresh" not in values} == {f"{k}.scan_packed" for k in WINDOWED}
    assert {operation.partition(".")[2] for operation, values in has.items() if "none" in values} == {"scan", "scan_masked"}


def test_what_the_slot_of_a_fresh_row_holds_is_another_state() -> None:
    specification = SPECIFICATION["ssd.step"]
    held = specification.draw(specification.case({"b": 5}, {"slots": "fresh"}, "gentle", 0), FP32)[0]
    assert held.fresh.tolist() == [False, True, False, False, True]
    assert np.all(np.abs(held.states[held.read[held.fresh]]).max(axis=(1, 2, 3)) > 0)
    assert not held.rows[held.fresh].any()
    assert np.array_equal(held.rows[~held.fresh], held.states[held.read[~held.fresh]])


@pytest.mark.parametrize("operation", ["ssd.scan", "delta.scan", "selective.scan", "shortconv.scan", "conv.scan"])
def test_a_scan_over_inputs_far_apart_passes_and_one_that_returns_a_compact_y_is_not_judged(operation: str) -> None:
    run = conv.scan if operation == "conv.scan" else RECURRENCES[operation.partition(".")[0]].definition.scan
    for way, verdict in ((pooled(run), Verdict.PASS), (run, Verdict.UNKNOWN)):
        jobs = cases_of(Capability(way, FLOAT64, far_inputs.WAYS), operation, "far")
        found = [of(job) for job in jobs if job.case.options["far"] != "none"]
        assert [one.verdict for one in found] == [verdict] * 2
        assert verdict is Verdict.PASS or all("y is not 2^31 elements apart" in one.message for one in found)


@pytest.mark.parametrize("way", ["shuffled", "padded", "apart"])
@pytest.mark.parametrize("dead", ["nan", "inf"])
@pytest.mark.parametrize(("operation", "run"), [("conv.scan", conv.scan), ("conv.step", conv.step)])
def test_a_right_convolution_over_a_pool_passes_whatever_is_never_read(operation: str, run: Any, way: str, dead: str) -> None:
    """Slots that nobody writes are compared, so that they hold numbers."""
    specification = SPECIFICATION[operation]
    case = specification.case({}, {"slots": way, "dead": dead}, "normal", 0)
    passes(judge(specification, Capability(pooled(run), FLOAT64, Limits({**WAYS.options, "dead": ("nan", "inf")})), case))
