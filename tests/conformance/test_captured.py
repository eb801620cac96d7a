"""Captured graphs: what reads its inputs again passes, what keeps something of the capture fails, and in a replay only."""

import copy
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from conformance.adapters import reference
from conformance.errors import GraphError, MalformedAdapter
from conformance.faults.catalogue import of_name
from conformance.faults.fault import single
from conformance.faults.memory import graphs
from conformance.faults.memory.graphs import right
from conformance.isolation.declared import bare, plain
from conformance.run.load import check_form
from conformance.run.plan import Job, Selection, plan
from conformance.run.process import Process
from conformance.suite import PURE, SPECIFICATIONS
from conformance.suite.graph.__main__ import table
from conformance.suite.graph.alone import cases, shard
from conformance.suite.graph.replayed import calls_of, replayed
from conformance.suite.graph.replays import Replays
from ssmspec_ref import ssd
from ssmspec_ref.contract import FLOAT64, Adapter, Capability, Graph, Launch, Limits, NumericContract, Subject, Verdict
from ssmspec_ref.errors import ParameterError
from ssmspec_ref.shapes import Array

from .judging import fails, judged, of, outcome, passes, planned

STEP = "ssd.step/b5,g2,h6,p5,n4/graph=replayed/gentle/s0"
OVER_WINDOWS = ("verify_snapshots", "verify_replay", "buffered_verify", "buffered_step")


def captured_rightly() -> list[Job]:
    """Every case of the reference's pure operations, as graphs."""
    found: list[Job] = []
    for subject in reference.adapter().subjects:
        pure = {
            operation: replace(capability, run=right(capability.run), limits=asked(capability.limits))
            for operation, capability in subject.capabilities.items()
            if operation in {of.operation for of in PURE if "graph" in of.rare} and not operation.endswith(OVER_WINDOWS)
        }
        found += cases("some", Adapter("some", "1", (replace(subject, capabilities=pure),)))
    return found


def asked(limits: Limits) -> Limits:
    """The limits as an adapter gives them."""
    return replace(limits, options={name: values for name, values in limits.options.items() if name != "graph"})


RIGHT = captured_rightly()


def test_every_pure_operation_on_a_state_has_cases_with_and_without_padding() -> None:
    ways = Counter((job.case.operation, job.case.options.get("slots", "rows")) for job in RIGHT)
    missing = "conv.commit", "conv.commit_path"  # of which the reference has one derivation only
    stateful = {of.operation for of in PURE if "slots" in of.rare and of.operation not in missing}
    assert all(ways[operation, way] for operation in stateful for way in ("rows", "shuffled", "padded"))


@pytest.mark.parametrize("job", RIGHT[::6], ids=lambda job: job.identity)
def test_what_reads_its_inputs_again_passes(job: Job) -> None:
    passes(of(job))


def test_the_calls_of_a_case_differ_in_all_that_is_no_weight() -> None:
    """Slots, padding, masks, trees, lengths, counts and bounds."""
    for job in RIGHT:
        first, *others = calls_of(job.specification.draw(job.case, job.capability.contract))
        for other in others:
            for one, new in zip(first, other, strict=True):
                if isinstance(one, np.ndarray) and one.dtype.kind in "biu" and one.size > 4:
                    assert one.shape == new.shape
                    assert not np.array_equal(one, new), job.identity
                if hasattr(one, "read"):
                    assert not np.array_equal(one.read, new.read)
                    absent = [set(np.flatnonzero(pool.read < 0)) for pool in (one, new)]
                    assert absent[0] != absent[1] or not absent[0], "the same rows are padding"


@pytest.mark.parametrize("fault", graphs.FAULTS, ids=lambda fault: fault.name)
def test_what_keeps_something_of_the_capture_fails_in_a_replay_only(fault: Any) -> None:
    jobs = *planned(fault.subject)[0], *cases("some", Adapter("some", "1", (fault.subject,)))
    failed = [job.identity for job in jobs if of(job).verdict is not Verdict.PASS]
    assert failed, "caught by no case"
    assert all("graph=replayed" in identity for identity in failed)


def test_an_output_that_the_next_replay_overwrites_is_told_as_such() -> None:
    run = of_name("hands_out_its_buffer").capability.run
    fails(judged(run, "conv.scan/b5,t7,c6,w4/graph=replayed/normal/s0"), "overwritten", "y of replay 1, M of replay 1")


def test_the_table_of_an_adapter_counts_by_operation_and_its_parts_are_the_whole() -> None:
    given = "conformance.faults.memory.graphs:adapter", "cpu", "*", "conv.*"
    whole, parts = shard(*given, 0, 1), [shard(*given, part, 2) for part in range(2)]
    assert sorted(row.case for row in whole) == sorted(row.case for part in parts for row in part)
    assert {row.verdict for row in whole} == {Verdict.FAIL}
    assert table(whole).row_count == 2


def test_the_cause_of_a_failing_commit_is_searched_under_the_contracts_of_all_faults() -> None:
    """A fault in float32 that it is compared with cannot hold its inputs."""
    (diagnosis,) = outcome(of_name("count_at_the_capture").subject, "standard").diagnoses
    assert diagnosis.smallest == "conv.commit/b1,t1,c1,w2/graph=replayed/normal/s0"
    assert "search" not in diagnosis.facts
    assert "graph=off" in diagnosis.facts["passes"]


def test_only_a_graph_is_replayed_and_the_report_says_what_was_left_out() -> None:
    plainly, why = Capability(ssd.step, FLOAT64), "the host chooses the grid from the lengths"
    assert not any(replayed(job.case) for job in planned(single("ssd.step", ssd.step), "standard")[0])
    for capability, said in (
        (plainly, "graph=replayed (give a Graph to opt in)"),
        (replace(plainly, uncaptured=why), f"graph=replayed (cannot be captured: {why})"),
    ):
        declared = bare(Adapter("some", "1", (Subject("one", {"ssd.step": capability}),)))
        _, left_out = plan({"some": declared}, Selection("standard"))
        (reason,) = [result.reason for result in left_out if result.operation == "ssd.step"]
        assert reason.split("; ")[-1] == said
        assert not any(replayed(job.case) for job in plan({"some": declared}, Selection("standard"))[0])


def test_no_case_of_a_plain_function_is_another_than_without_the_option() -> None:
    """Those that the option adds are all marked, so that a subject without a graph has the cases that it had."""
    for specification in SPECIFICATIONS:
        if "graph" in specification.rare:
            cases = list(specification.cases("standard", Capability(print, FLOAT64).limits))
            assert {case.options["graph"] for case in cases} == {"off"}
            assert all("graph" not in specification.identify(case) for case in cases)


def test_declarations_that_contradict_themselves_are_refused() -> None:
    with pytest.raises(ParameterError, match="run is a Graph"):
        Capability(right(ssd.step), FLOAT64, uncaptured="no")
    limits = Limits({"graph": ("off", "replayed")})
    wrong = Adapter("some", "1", (Subject("one", {"ssd.step": Capability(ssd.step, FLOAT64, limits)}),))
    with pytest.raises(MalformedAdapter, match=r"no Graph; give ssmspec_ref.contract.Graph"):
        check_form(wrong)


def test_a_graph_is_captured_in_the_process_of_its_adapter() -> None:
    process = Process("conformance.faults.memory.graphs:adapter")
    try:
        (job, *_) = [
            job
            for job in plan({"faults": process.adapter}, Selection("standard", subject="cleared_once"))[0]
            if replayed(job.case)
        ]
        fails(of(job), "bound", "of replay 1")
    finally:
        process.close()


# --- tensors on a CPU, which the suite captures itself ---


class Steps:
    """One token in PyTorch: S decays and takes x B. `pick` reads the slots of the rows for the launch."""

    def __init__(self, pick: Any = lambda slots: slots, host: Any = lambda token: None) -> None:
        self.pick, self.host = pick, host

    def __call__(self, S: Any, token: Any, params: Any) -> Launch:
        x, B, C = (torch.tensor(a) for a in (token.x, token.B, token.C))
        heads, groups = x.shape[1], B.shape[1]
        dt = torch.nn.functional.softplus(torch.tensor(token.dt + (0 if params.dt_bias is None else params.dt_bias)))
        pool, slots = torch.tensor(S.states), torch.tensor(S.read)
        A, D = torch.tensor(params.A), torch.tensor(params.D)
        picked = self.pick(slots)

        def run() -> Any:
            at = picked if picked is not slots else slots
            wide = [torch.repeat_interleave(a, heads // groups, dim=1) for a in (B, C)]
            held = pool[at] * torch.exp(dt * A)[..., None, None] + (dt[..., None] * x)[..., None] * wide[0][:, :, None]
            pool[at] = held
            return (held * wide[1][:, :, None]).sum(dim=-1) + D[:, None] * x

        inputs = pool, slots, x, B, C, dt, A, D, self.host(token)
        return Launch(inputs, run, lambda y: (y.numpy().copy(), pool.numpy().copy()))


POOLED = Limits({"slots": ("shuffled",), "D": ("head",), "z": ("off",), "softplus": ("on",), "dt_limit": ("off",)})
SHUFFLED = "ssd.step/b5,g2,h6,p5,n4/slots=shuffled,graph=replayed/gentle/s0"
LOOSE = NumericContract("fp64", "fp64", "fp64", softplus_threshold=20.0)


def waits(S: Array, token: Any, params: Any) -> Launch:
    x = torch.tensor(token.x)
    return Launch((x,), lambda: x * x.max().item())


HELD, LARGEST = (lambda slots: slots), (lambda token: float(token.x.max()))
LAUNCHED: dict[str, tuple[Any, str, str, tuple[str, ...]]] = {
    "tensors on a CPU": (Steps(), SHUFFLED, "", ()),
    "slots that were read on the host": (Steps(lambda slots: slots.clone()), SHUFFLED, "bound", ("of replay 2",)),
    "a number that differs between calls": (
        Steps(HELD, LARGEST), SHUFFLED, "error", ("inputs[8] of the launch is ", "put it into an array"),
    ),
    "a launch that waits": (waits, STEP, "error", ("waits for the host",)),
    "arrays of NumPy without a capture": (right(ssd.step).prepare, STEP, "error", ("give Graph(prepare, capture)",)),
}  # fmt: skip


@pytest.mark.parametrize("name", LAUNCHED)
def test_what_a_graph_launches_is_written_down_and_replayed_or_told(name: str) -> None:
    prepare, identity, kind, said = LAUNCHED[name]
    found = judged(Capability(Graph(prepare), LOOSE, POOLED if identity == SHUFFLED else Limits()), identity)
    fails(found, kind, *said) if kind else passes(found)


def test_each_method_is_captured_once_for_each_set_of_shapes() -> None:
    captures: list[int] = []

    def capture(run: Any) -> Any:
        captures.append(1)
        return graphs.relaunched(run)

    replays = Replays(capture)
    for method, size in (("verify", 3), ("verify", 3), ("commit", 3), ("verify", 4), ("verify", 3)):
        a = np.full(size, float(len(captures)))
        assert replays(method, Launch((a,), lambda a=a: 2 * a, copy.deepcopy)).tolist() == (2 * a).tolist()
    assert len(captures) == 3
    assert replays("state", "as it is") == "as it is"


def test_a_warm_up_leaves_the_inputs_as_they_were_and_an_output_that_is_not_written_holds_nan() -> None:
    counter, y = np.zeros(2), np.zeros(2)

    def count() -> Array:
        counter[...] += 1
        return counter

    made = Launch((counter,), count, copy.deepcopy)
    replays = Replays(graphs.relaunched)
    assert [replays("", made).tolist() for _ in range(3)] == [[1, 1], [2, 2], [3, 3]]
    written_once = Launch((np.ones(2),), lambda: y, copy.deepcopy)
    assert np.isnan(Replays(lambda run: (run(), lambda: None))("", written_once)).all()
    with pytest.raises(GraphError, match="are no tensors"):
        Replays(None)("", made)


def test_a_declaration_carries_why_an_operation_is_not_captured() -> None:
    given = Adapter("some", "1", (Subject("one", {"ssd.step": Capability(ssd.step, FLOAT64, uncaptured="why")}),))
    assert plain(given)["subjects"][0]["operations"]["ssd.step"]["uncaptured"] == "why"
    assert bare(given).subjects[0].capabilities["ssd.step"].uncaptured == "why"
