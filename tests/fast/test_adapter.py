"""The engine under the suite: it is found by name, all that it offers passes, and a planted fault is named."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from conformance.judge.verdict import judge
from conformance.run.known import read_known
from conformance.run.load import load
from conformance.run.plan import Job, Selection, plan
from conformance.run.results import Setting
from conformance.run.runner import run
from ssmspec_fast.adapters.decoder import Decoding
from ssmspec_fast.adapters.engine import operations_of
from ssmspec_fast.methods import activation_replay
from ssmspec_fast.methods.activation_replay import ActivationReplay
from ssmspec_fast.methods.joint import Joint
from ssmspec_fast.methods.replay_buffer import ReplayBuffer
from ssmspec_fast.methods.tree import Tree
from ssmspec_ref.contract import Adapter, Capability, Limits, NumericContract, Subject, Verdict

from .rollbacks import FAULTS, ROLLBACKS

EVERY = 14
"""One case in so many is judged here; all are by `ssmspec conform run --adapter ssmspec_fast`."""
ONE_KIND = Limits(options={"kind": ("mamba2",)})


def test_the_engine_is_found_by_the_name_of_its_package_and_passes() -> None:
    jobs, left_out = plan({"ssmspec_fast": load("ssmspec_fast")}, Selection())
    verdicts = {job.identity: judge(job.specification, job.capability, job.case) for job in jobs[::EVERY]}
    assert len(verdicts) > 30
    assert {name: found for name, found in verdicts.items() if found.verdict is not Verdict.PASS} == {}
    assert {job.case.operation for job in jobs} >= {
        "speculate.chain", "speculate.tree", "ssd.verify_replay", "delta.buffered_step", "conv.commit_path",
        "attention.compact", "acceptance.sampled", "delta.scan_packed",
    }  # fmt: skip
    assert all(result.reason and result.reason != "not declared" for result in left_out)


def jobs_of(make: Any, operation: str, drafts: int = 1) -> list[Job]:
    """Two cases of Mamba-2 under a method: rows accept a part, nothing, all, the root; five times all, read at the end."""
    decoding = partial(Decoding, make, OPERATIONS, "cpu", drafts)
    subject = Subject("planted", {operation: Capability(decoding, NumericContract(), ONE_KIND)})
    mixed = plan({"planted": Adapter("planted", "1", (subject,))}, Selection(operation=operation))[0][0]
    unread = mixed.specification.case({"b": 1, "j": 5}, {"accept": "all", "read": "last"}, "gentle", 0)
    return [mixed, replace(mixed, case=unread)]


OPERATIONS = operations_of(bitwise=True)


def test_planted_rejected_token_in_the_window_of_the_convolution_is_caught_by_name() -> None:
    found = run(
        jobs_of(lambda t: ROLLBACKS["keeps one rejected input"](), "speculate.chain")[:1],
        [],
        Setting({"planted": read_known("planted")}),
    )
    assert [(each.operation, each.failing) for each in found.diagnoses] == [("speculate.chain", "bound")]
    assert found.results[0].message.startswith("M after window")


PLANTED: dict[str, tuple[str, Any, tuple[Any, str, Any]]] = {
    "path as a prefix": ("speculate.tree", lambda t: Tree(), FAULTS["a path as a prefix"][1:]),
    "ring that is never flushed": (
        "speculate.chain", lambda t: ReplayBuffer(2 * t), FAULTS["a ring that is never flushed"][1:]
    ),
    "other draft": (
        "speculate.chain",
        lambda t: ActivationReplay(2),
        (activation_replay, "along", lambda x, entries, path: x[entries // 2 * 2, path]),
    ),
    "lag forgotten": ("speculate.chain", lambda t: Joint(), (Joint, "settle", lambda self, pools, slots, *rest: None)),
    "nothing replayed": ("speculate.chain", lambda t: ActivationReplay(), (ActivationReplay, "replay", lambda *args: None)),
}  # fmt: skip


@pytest.mark.parametrize("fault", ["none", *PLANTED])
def test_planted_faults_of_methods_are_caught(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if fault != "none":
        monkeypatch.setattr(*PLANTED[fault][2])
    for operation, make, _ in PLANTED.values() if fault == "none" else [PLANTED[fault]]:
        jobs = jobs_of(make, operation, 2 if fault == "other draft" else 1)
        found = {judge(job.specification, job.capability, job.case).verdict for job in jobs}
        assert (Verdict.FAIL in found) == (fault != "none")
