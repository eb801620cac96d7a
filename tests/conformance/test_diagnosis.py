"""A failure is told: where it is first apart, and which planted fault computes the same; a fault of its own equals none."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from conformance.adapters.reference_parts.pools import over_pools
from conformance.diagnose.facts import UNEXPLAINED
from conformance.diagnose.observe import observe
from conformance.faults.catalogue import FAULTS, of_name
from conformance.faults.fault import FP32
from conformance.faults.recurrences import arithmetic, other_rules
from conformance.judge import diagnosis
from conformance.judge.diagnosis import Stepped, diverges, looks_like
from conformance.judge.verdict import Judgement, Measured
from conformance.report.stream import Diagnosis
from conformance.run.known import read_known
from conformance.run.results import Setting
from conformance.run.runner import run
from conformance.suite import find
from ssmspec_ref import delta, ssd
from ssmspec_ref.contract import Capability, Subject, Verdict
from ssmspec_ref.records import prefix
from ssmspec_ref.shapes import Array

from .judging import outcome, planned


def diagnosed(subject: Subject, operation: str, kind: str = "*") -> Diagnosis:
    """The first diagnosis of one operation at the smoke tier."""
    jobs, _ = planned(subject, operation=operation)
    jobs = [job for job in jobs if job.case.options.get("kind", kind) == kind]
    return run(jobs, [], Setting({"x": read_known("x")})).diagnoses[0]


@pytest.mark.parametrize(
    ("subject", "operation", "first", "like"),
    [
        pytest.param(
            of_name("KeepsConvWindow").subject,
            "speculate.chain",
            "speculate.chain, in the window of the convolution after window 1: row 0, channel 0, tap 0; right: all before, "
            "the recurrent state after window 1",
            "equals the planted fault `KeepsConvWindow` on 4 failing and 2 passing cases; bug class ROLLBACK: Rejected "
            "inputs stay in the window of the convolution; the state is rolled back. vllm-project/vllm#50272.",
            marks=pytest.mark.nightly,
        ),
        (
            of_name("group_map").subject,
            "ssd.scan",
            "ssd.scan, in the output: row 0, token 0, head 1, channel 0",
            "equals the planted fault `group_map`",
        ),
        (
            of_name("lost_skip").subject,
            "ssd.scan",
            "ssd.scan, in the output: row 0, token 0, head 0, channel 0; right: the recurrent state",
            "equals the planted fault `lost_skip`",
        ),
        pytest.param(
            of_name("OneCursor").subject,
            "ssd.buffered_verify",
            "ssd.buffered_verify, in the state behind checkpoint and ring after window 0",
            "equals the planted fault `OneCursor`",
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            of_name("RestingRowsAdvance", "delta.verify_snapshots").subject,
            "delta.verify_snapshots",
            "delta.verify_snapshots, in the recurrent state after window 1: row 0, head 0, key channel 0, channel 0",
            "equals the planted fault `RestingRowsAdvance`",
            marks=pytest.mark.nightly,
        ),
        (
            of_name("path_without_root").subject,
            "acceptance.greedy",
            "acceptance.greedy, in the accepted path: row 0, token 0; right: all before",
            "equals the planted fault `path_without_root`",
        ),
        (
            of_name("tiled_heads").subject,
            "attention.verify_tree",
            "attention.verify_tree, in the output",
            "equals the planted fault `tiled_heads`",
        ),
    ],
    ids=lambda part: part.name if isinstance(part, Subject) else "",
)
def test_a_planted_fault_is_placed_and_named(subject: Subject, operation: str, first: str, like: str) -> None:
    found = diagnosed(subject, operation, "mamba2" if operation.startswith("speculate") else "*")
    assert found.diverges.startswith(first)
    assert found.looks_like.startswith(like)


def test_a_fault_of_a_scan_is_known_in_a_step_too() -> None:
    def step(S: Array, token: Any, params: Any) -> tuple[Array, Array]:
        return arithmetic.rounded(*ssd.step(S, token, replace(params, A=params.A * 1.44 * np.log(2))))

    found = diagnosed(Subject("x", {"ssd.step": Capability(step, FP32)}), "ssd.step")
    assert found.looks_like.startswith("equals the planted fault `exp2_constant`")


def test_a_fault_that_leaves_signalling_nan_equals_nothing_and_warns_of_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that is not written may hold such numbers."""

    def left(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
        y, S_T = (np.full(shape, 0x7F800001, dtype=np.uint32).view(np.float32) for shape in (window.x.shape, S.shape))
        return y, S_T

    monkeypatch.setattr(diagnosis, "_of", lambda *_: Capability(left, FP32))
    assert diagnosed(of_name("lost_skip").subject, "ssd.scan").looks_like == ""


class DecaysLast:
    """Windows of a delta rule that decays behind the write."""

    def __init__(self, S: Array, params: Any) -> None:
        self.S, self.params = S, params

    def verify(self, window: Any, parents: Array | None = None) -> Array:
        tokens = range(1, window.v.shape[1] + 1)
        y = [other_rules.decay_after_the_write(self.S, prefix(window, t), self.params) for t in tokens]
        self.after = np.stack([self.S, *(S for _, S in y)])
        return y[-1][0]

    def commit(self, advanced: Array, path: Array) -> None:
        self.S = self.after[advanced, np.arange(len(advanced))].astype(np.float64)

    def state(self) -> Array:
        return self.S


class TakesTheLast(Stepped):
    """The right rule in float32, of which every row takes the state behind the last draft, also one that took no part."""

    def __init__(self, S: Array, params: Any) -> None:
        super().__init__(lambda *given: arithmetic.rounded(*delta.scan(*given)), S, params)

    def commit(self, advanced: Array, path: Array) -> None:
        super().commit(np.full_like(advanced, path.shape[1]), path)


@pytest.mark.nightly
def test_a_fault_is_known_where_the_right_answer_has_no_bound_and_both_round() -> None:
    subject = Subject("x", {"delta.verify_snapshots": Capability(TakesTheLast, FP32)})
    assert diagnosed(subject, "delta.verify_snapshots").looks_like.startswith("equals the planted fault `KeepsEveryDraft`")


@pytest.mark.nightly
def test_a_fault_of_a_scan_is_known_in_windows_too() -> None:
    subject = Subject("x", {"delta.verify_snapshots": Capability(DecaysLast, FP32)})
    assert diagnosed(subject, "delta.verify_snapshots").looks_like.startswith(
        "equals the planted fault `decay_after_the_write`"
    )


@pytest.mark.nightly
def test_a_fault_of_windows_is_known_however_they_are_verified() -> None:
    subject = Subject("KeepsOneMore", {"delta.verify_snapshots": of_name("KeepsOneMore").capability})
    said = diagnosed(subject, "delta.verify_snapshots").looks_like
    assert said.startswith("equals the planted fault `KeepsOneMore`")
    assert said.endswith("bug class ACCEPT-IDX: The ring holds the first rejected token too."), "and no other fault"


def test_faults_that_one_case_does_not_tell_apart_are_all_named() -> None:
    subject = of_name("KeepsEveryDraft", "delta.verify_snapshots").subject
    case = "delta.verify_snapshots/b1,t1,g1,h1,k1,v1,j2/plain/gentle/s0"
    (found,) = outcome(subject, case=case).diagnoses
    assert "`KeepsEveryDraft`" in found.looks_like
    assert found.looks_like.count("`") > 2


def third_root(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """A fault that nobody planted: the output's cube root."""
    y, S_next = arithmetic.right(S, window, params)
    return np.cbrt(y), S_next


def half_of_one(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """D x is left out of the first row only: near to a planted fault, and another."""
    y, S_next = arithmetic.right(S, window, params)
    y[0] = of_name("lost_skip").capability.run(S, window, params)[0][0]
    return y, S_next


@pytest.mark.parametrize("scan", [third_root, half_of_one])
def test_another_fault_equals_none(scan: Callable[..., Any]) -> None:
    found = diagnosed(Subject("x", {"ssd.scan": Capability(scan, FP32)}), "ssd.scan")
    assert found.diverges.startswith("ssd.scan, in the output")
    assert found.looks_like == ""
    assert (UNEXPLAINED in found.facts.get("limits", "")) is (scan is third_root)  # D x of row 0 has a name


def test_what_no_bound_decided_is_not_placed() -> None:
    assert diverges("ssd.scan", Judgement(Verdict.FAIL, "error", "no kernel")) == ""
    wide = Measured("y", False, 0.5, 1.0, 2.0, {"t": 0})
    assert diverges("ssd.scan", Judgement(Verdict.PASS, outputs=(wide,))) == ""


def test_a_search_that_breaks_leaves_the_verdict_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*given: Any, **named: Any) -> None:
        raise AssertionError("no such cause")

    monkeypatch.setattr("conformance.run.causes.facts", broken)
    found = diagnosed(of_name("group_map").subject, "ssd.scan")
    assert found.verdict == "fail"
    assert found.message.startswith("y")
    assert found.rerun
    assert "broke while it searched for the cause" in found.facts["search"]
    assert "no such cause" in found.facts["search"]


def test_a_fault_that_takes_no_pools_is_known_where_a_case_has_one() -> None:
    fault = next(one for one in FAULTS if one.name == "second_step_to_the_node_before")
    given = over_pools(fault.subject.capabilities["conv.verify_tree"])
    specification, first = find("conv.verify_tree/b2,t7,c6,w4/plain/normal/s0")
    cases = [*specification.cases("standard", given.limits)]
    pools = [case for case in cases if case.options.get("slots", "plain") == "shuffled"]
    failing = [first, replace(first, seed=1), *pools[:1]]
    assert [observe(specification, given, case).passes for case in failing] == [False] * 3
    assert looks_like(specification, given, failing, [], [fault]).equal.startswith(f"equals the planted fault `{fault.name}`")
    assert not looks_like(specification, given, pools[:1], [], [fault]).equal
