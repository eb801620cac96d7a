"""How many processes a run has, and what its cases share; drawn cases that show nothing."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conformance.adapters.reference_parts.attention import verify_tree
from conformance.isolation import parallel
from conformance.judge.verdict import VOID, judge
from conformance.progress.resume import key
from conformance.progress.shards import Judged
from conformance.run.known import read_known
from conformance.run.plan import Job, Selection, plan
from conformance.run.results import Setting
from conformance.run.runner import Alone, run
from conformance.suite.specification import DRAWN
from ssmspec_ref.contract import Adapter, Capability, NumericContract, Subject, Verdict
from ssmspec_ref.options.memory import GIB


@pytest.fixture
def eight_cores(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine with eight cores and no quota; the file of its quota."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda of: set(range(8)), raising=False)
    monkeypatch.setattr(parallel, "QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(parallel, "OLDER", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("said", "cores"), [("max 100000", 8), ("250000 100000", 3), ("50000 100000", 1), ("900000 100000", 8), ("damaged", 8)]
)
def test_the_quota_of_a_container_limits_the_cores(eight_cores: Path, said: str, cores: int) -> None:
    (eight_cores / "cpu.max").write_text(said)
    assert parallel.cores() == cores


@pytest.mark.parametrize(("quota", "cores"), [("-1", 8), ("200000", 2)])
def test_the_quota_of_an_older_system_does_too(eight_cores: Path, quota: str, cores: int) -> None:
    (eight_cores / "cpu.cfs_quota_us").write_text(quota)
    (eight_cores / "cpu.cfs_period_us").write_text("100000")
    assert parallel.cores() == cores


@pytest.mark.parametrize(
    ("asked", "memory", "cases", "adapters", "device", "count", "share"),
    [
        (None, 16, 1000, 1, "cpu", 8, 2),  # a process a core
        (None, 16, 130, 1, "cpu", 2, 8),  # as many as there are cases for
        (None, 16, 12, 1, "cpu", 1, 16),
        (None, 3, 1000, 1, "cpu", 3, 1),  # as many as there is memory for
        (None, 0.5, 1000, 1, "cpu", 1, 0.5),
        (None, 16, 1000, 4, "cpu", 4, 1),  # a worker for each adapter
        (None, 64, 1000, 1, "cuda:1", 4, 16),  # one GPU
        (None, 64, 1000, 1, "interpreter", 8, 8),
        (5, 5, 1, 1, "cpu", 5, 1),  # what is asked for is made
    ],
)
def test_as_many_processes_as_cores_memory_and_cases_allow(
    eight_cores: Path, asked: int | None, memory: float, cases: int, adapters: int, device: str, count: int, share: float
) -> None:
    found = parallel.parallel(asked, memory, cases, adapters, device)
    assert (found.count, found.memory) == (count, int(share * GIB))
    assert ("raise --memory" in found.why) == (asked is None and count < min(8, cases // 60 or 1) and device == "cpu")


@pytest.mark.parametrize(
    ("memory", "adapters", "elsewhere", "limit"), [(8, 4, False, 2), (8, 4, True, 8), (None, 4, True, None)]
)
def test_a_worker_on_another_machine_has_the_memory_of_that_machine(
    memory: float | None, adapters: int, elsewhere: bool, limit: int | None
) -> None:
    found = parallel.of_a_worker(memory, adapters, elsewhere)
    assert found == (None if limit is None else limit * GIB)


ZEROS_PASS = Selection("standard", operation="attention.verify_tree", seed=532879508)
"""With few slots and large scores every bound of this seed's first draw is wider than the value."""


def attended(*given: Any) -> Any:
    """Attention whose output is fp32."""
    return np.float32(verify_tree(*given))


@pytest.fixture(scope="module")
def drawn() -> list[Job]:
    subject = Subject("a", {ZEROS_PASS.operation: Capability(attended, NumericContract(function_ulp=3))})
    jobs, _ = plan({"a": Adapter("a", "1", (subject,))}, ZEROS_PASS)
    return [job for job in jobs if job.drawn]


def test_a_drawn_case_that_cannot_fail_gives_way_to_the_next_draw(drawn: list[Job]) -> None:
    assert len(drawn) == DRAWN["standard"]
    void = [job for job in drawn if judge(job.specification, job.capability, job.case).kind == VOID]
    assert [job.identity for job in void] == ["attention.verify_tree/b7,t1,l2,h2,g1,e117/scale=given/gentle/s0"]
    written = list[Any]()
    outcome = run(drawn, [], Setting({"a": read_known("a")}), written.append)
    assert [result.verdict for result in outcome.results] == ["pass"] * len(drawn)
    assert outcome.results == written
    assert len({result.case for result in outcome.results} - {void[0].identity}) == len(drawn)


def test_a_case_given_way_to_another_is_reported_from_any_process(drawn: list[Job]) -> None:
    """The judgement carries the id of the case that was judged, and is written and read again."""
    job = drawn[0]
    judgement, seconds = Alone(Setting({"a": read_known("a")})).judge(job)
    again = Judged.of(json.loads(json.dumps(Judged(key(job), judgement, seconds).plain())))
    assert again.judgement == judgement
    assert job.settled(again.judgement.case).case in job.spares


def test_a_drawn_case_of_which_no_spare_shows_anything_stays_unknown(drawn: list[Job]) -> None:
    job = replace(drawn[0], spares=(drawn[0].case,))
    judgement, _ = Alone(Setting({"a": read_known("a")})).judge(job)
    assert (judgement.verdict, judgement.kind) == (Verdict.UNKNOWN, VOID)
