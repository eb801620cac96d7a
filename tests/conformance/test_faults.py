"""Every wrong implementation is failed, in the way that it is wrong; right ones are not blamed."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

import pytest

from conformance.faults.catalogue import of_name
from conformance.faults.fault import FP32, Fault, single
from conformance.faults.misbehaving import conduct
from conformance.faults.recurrences import arithmetic, channel_gates, extremes, other_rules, packed, size_limits
from conformance.faults.rollback import positions, speculation, windows
from conformance.faults.sampled import acceptance
from conformance.faults.whole_layers import attention, gates, layers, prompts
from conformance.faults.windows import Right, Snapshots
from conformance.judge.verdict import Judgement, judge
from conformance.meta import tabled
from conformance.mistakes.mistake import before
from conformance.report.stream import Result
from conformance.run.known import read_known
from conformance.run.plan import Job, Selection, plan
from conformance.run.results import Setting
from conformance.run.runner import Outcome, run
from ssmspec_ref.contract import Adapter, Capability, Limits, Subject, Verdict
from ssmspec_ref.shapes import Array


def outcome(adapter: Adapter, **selection: str) -> Outcome:
    jobs, left_out = plan({adapter.name: adapter}, Selection(**selection))
    return run(jobs, left_out, Setting({adapter.name: read_known(adapter.name)}))


def ran(results: list[Result]) -> list[Result]:
    return [result for result in results if result.case]


def of(faults: Sequence[Fault]) -> pytest.MarkDecorator:
    """One test for each fault."""
    return pytest.mark.parametrize("fault", faults, ids=lambda fault: f"{fault.name}-{fault.operation}")


def home(subject: Subject) -> Adapter:
    return Adapter("faults", "1", (subject,))


@of(arithmetic.FAULTS)
def test_wrong_arithmetic_fails_beyond_its_bound(fault: Fault) -> None:
    found = outcome(home(fault.subject), operation=fault.operation)
    failed = [result for result in ran(found.results) if result.verdict == "fail"]
    assert len(failed) > 1, "caught by luck of a case"
    assert {result.failing for result in failed} == {"bound"}


@pytest.mark.parametrize("subject", conduct.adapter().subjects, ids=lambda subject: subject.name)
def test_misconduct_fails_with_its_own_kind(subject: Subject) -> None:
    found = outcome(home(subject))
    failed = [result for result in ran(found.results) if result.verdict == "fail"]
    assert {result.failing for result in failed} == {conduct.KINDS[subject.name]}
    assert not found.green


def failed_at_smoke(fault: Fault) -> Counter[str]:
    """How many cases of each operation fail, of one kind of layer."""
    jobs = smoke_of_one_kind(fault.subject)
    return Counter(
        job.case.operation for job in jobs if judge(job.specification, job.capability, job.case).verdict is Verdict.FAIL
    )


@of(layers.WRONG)
def test_a_layer_that_handles_its_cache_wrongly_fails_where_it_is_wrong(fault: Fault) -> None:
    failed = [
        job
        for job in plan({"faults": home(fault.subject)}, Selection(operation=fault.operation))[0]
        if judge(job.specification, job.capability, job.case).verdict is Verdict.FAIL
    ]
    assert len(failed) > 3, "caught by luck of a case"


def test_a_rollback_that_keeps_the_recurrent_state_fails_nowhere_else() -> None:
    found = outcome(home(of_name("KeepsRecurrentState").subject), operation="layer.[!r]*")
    assert {result.verdict for result in ran(found.results)} == {"pass"}


@of(speculation.WRONG)
def test_speculation_that_commits_or_reads_wrongly_fails(fault: Fault) -> None:
    failed = failed_at_smoke(fault)
    assert set(failed) == set(fault.subject.capabilities)
    assert min(failed.values()) > 1, "caught by luck of a case"


def failing(subject: Subject, operation: str, kind: str = "*", enough: int | None = None) -> list[Judgement]:
    """The failed judgements of one operation in the tables of standard, of one kind of layer where kinds are.

    After `enough` of them the rest is not judged; if no table fails, the other cases of standard are.
    """
    jobs, _ = plan({"faults": home(subject)}, Selection(tier="standard", operation=operation))
    jobs = [job for job in jobs if job.case.options.get("kind", kind) == kind]
    tables = tabled(jobs)

    def judged(some: Sequence[Job]) -> list[Judgement]:
        found = (judge(job.specification, job.capability, job.case) for job in some)
        return list(islice((judgement for judgement in found if judgement.verdict is Verdict.FAIL), enough))

    failed = judged(tables)
    return failed or ([] if enough is None else judged([job for job in jobs if job not in tables]))


@of(size_limits.FAULTS)
def test_a_fault_that_acts_out_there_only_fails_and_is_placed(fault: Fault) -> None:
    failed = failing(fault.subject, fault.operation, enough=3)
    assert failed
    assert all(" is wrong by " in j.message or " holds nan " in j.message for j in failed)
    assert all("t=" in j.message or "S is wrong" in j.message for j in failed), "no token is named"


def test_faults_of_address_and_of_stride_fail_as_such() -> None:
    assert {j.kind for j in failing(single("ssd.scan", size_limits.KeepsByAddress(), FP32), "ssd.scan")} == {"stale"}
    assert len(failing(of_name("assumes_compact").subject, "ssd.scan")) > 5


@of(layers.REACH)
def test_a_layer_that_is_wrong_out_there_only_fails(fault: Fault) -> None:
    assert failing(fault.subject, fault.operation, "mamba2", enough=1)


@of(speculation.REACH)
def test_speculation_that_is_wrong_out_there_only_fails(fault: Fault) -> None:
    for operation in ("speculate.chain", "speculate.tree"):
        assert failing(fault.subject, operation, "mamba2", enough=1)


OF_WINDOWS = [  # `conformance.meta` judges every recurrence
    pytest.param(fault, marks=marks, id=f"{fault.name}-{fault.operation}")
    for rule, marks in (("ssd", ()), ("delta", pytest.mark.nightly))
    for fault in windows.FAULTS
    if fault.operation.startswith(f"{rule}.")
]


@pytest.mark.parametrize("fault", OF_WINDOWS)
def test_windows_that_are_lost_or_kept_wrongly_fail(fault: Fault) -> None:
    failed = failing(fault.subject, fault.operation, enough=3)
    beyond = [j for j in failed if j.kind == "bound"]
    assert beyond
    assert all(" window " in j.message for j in beyond), "no window is named"


@of(packed.FAULTS)
def test_prompts_that_are_not_kept_apart_fail(fault: Fault) -> None:
    failed = failing(fault.subject, fault.operation, enough=8)
    assert len(failed) > 3, "caught by luck of a case"
    assert {j.kind for j in failed} == {"bound"}


@pytest.mark.parametrize("rule", packed.windowed())
def test_prompts_that_are_kept_apart_are_not_blamed(rule: str) -> None:
    operation = f"{rule}.scan_packed"
    assert not failing(single(operation, before("right", "Correct.")), operation)


@of((*acceptance.FAULTS, *attention.FAULTS))
def test_wrong_acceptance_and_wrong_attention_fail(fault: Fault) -> None:
    failed = failing(fault.subject, fault.operation, enough=8)
    assert len(failed) > 1, "caught by luck of a case"
    assert {j.kind for j in failed} == {"bound"}


def smoke_of_one_kind(subject: Subject) -> list[Job]:
    jobs, _ = plan({"faults": home(subject)}, Selection())
    return [job for job in jobs if job.case.options["kind"] == "mamba2"]


def test_right_speculation_is_not_blamed() -> None:
    jobs = smoke_of_one_kind(single(speculation.BOTH, Snapshots))
    assert len(jobs) > 10
    assert {judge(job.specification, job.capability, job.case).verdict for job in jobs} == {Verdict.PASS}


def test_a_right_layer_is_not_blamed() -> None:
    found = outcome(Adapter("right", "1", (single(layers.LAYER, Right),)))
    assert {result.verdict for result in ran(found.results)} == {"pass"}
    assert len(ran(found.results)) > 80
    assert found.green


def test_an_engine_whose_trees_stand_at_their_depths_is_not_blamed() -> None:
    found = outcome(Adapter("right", "1", (single("generate.greedy", positions.by_depth),)))
    assert {result.verdict for result in ran(found.results)} == {"pass"}


@of(positions.FAULTS)
def test_trees_that_stand_elsewhere_lead_to_other_tokens(fault: Fault) -> None:
    job, *_ = plan({"faults": home(fault.subject)}, Selection())[0]
    judgement = judge(job.specification, job.capability, job.case)
    assert (judgement.verdict, judgement.kind) == (Verdict.FAIL, "bound")


@of((*channel_gates.FAULTS, *gates.FAULTS))
def test_gates_by_channel_that_are_formed_or_read_wrongly_fail(fault: Fault) -> None:
    assert len(failing(fault.subject, fault.operation, "kda", enough=2)) == 2


def test_a_gate_by_head_is_not_touched_by_them() -> None:
    by_head = Limits({"gate": ("head",)}, reason="no gate by channel")
    for fault in channel_gates.FAULTS[:-1]:
        subject = Subject(fault.name, {fault.operation: replace(fault.capability, limits=by_head)})
        jobs, _ = plan({"faults": home(subject)}, Selection())
        assert {judge(job.specification, job.capability, job.case).verdict for job in jobs[:4]} == {Verdict.PASS}


def test_differences_of_running_sums_without_a_guard_are_not_blamed() -> None:
    assert not failing(single("delta.scan", extremes.unguarded, extremes.BY_CHUNKS), "delta.scan")


def along_the_chunks(states: list[Array], left: list[Array]) -> list[Array]:
    """The states before each chunk and at the end, rightly."""
    carried = states[:1]
    for written, decay in zip(states[1:], left, strict=True):
        carried.append(decay * carried[-1] + written)
    return carried


def test_states_that_pass_along_the_chunks_are_not_blamed_and_over_the_wrong_axis_only_prompts_of_two_chunks_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layered = single("layer.prefill", prompts.SumsOverTargets)
    (found,) = failing(layered, "layer.prefill", "mamba2")
    assert found.kind == "bound"
    for module in (other_rules, prompts):
        monkeypatch.setattr(module, "over_the_wrong_axis", along_the_chunks)
    assert not failing(layered, "layer.prefill", "mamba2")
    assert not failing(single("ssd.scan", other_rules.sums_over_targets, FP32), "ssd.scan")


def test_a_right_scan_stored_in_float32_is_not_blamed() -> None:
    right = Subject("right", {"ssd.scan": Capability(arithmetic.right, FP32)})
    found = outcome(Adapter("right", "1", (right,)), tier="standard", operation="ssd.scan")
    assert {result.verdict for result in ran(found.results)} == {"pass"}


def test_the_smallest_case_fails_alone_and_nothing_smaller_does() -> None:
    adapter = home(of_name("group_map").subject)
    (diagnosis,) = outcome(adapter, operation="ssd.scan").diagnoses
    assert diagnosis.smallest == "ssd.scan/b1,t1,g2,h4,p1,n1/plain/gentle/s2"
    again = outcome(adapter, case=diagnosis.smallest)
    assert [(result.case, result.verdict) for result in again.results] == [(diagnosis.smallest, "fail")]
    assert f"--case {diagnosis.smallest}" in diagnosis.rerun


def test_a_lost_state_is_traced_to_its_first_token() -> None:
    """The fault acts from the first token on, so that is where it is reported."""
    adapter = home(of_name("state_leak").subject)
    (diagnosis,) = outcome(adapter, operation="ssd.scan").diagnoses
    assert diagnosis.output is not None
    assert diagnosis.output.first["b"] == 0
    assert "t=0" in diagnosis.message
