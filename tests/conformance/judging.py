"""One implementation under the suite: its cases, what the judge says of them, and the outcome of a run of them."""

from collections.abc import Mapping
from typing import Any

from conformance.judge.verdict import Judgement, judge
from conformance.run.known import read_known
from conformance.run.plan import Job, Selection, plan
from conformance.run.results import Setting
from conformance.run.runner import Outcome, run
from conformance.suite import SPECIFICATIONS, find
from ssmspec_ref.contract import FLOAT64, Adapter, Capability, NumericContract, Subject, Verdict

FP32 = NumericContract()
SPECIFICATION = {specification.operation: specification for specification in reversed(SPECIFICATIONS)}
"""The first specification of each operation."""
NAMES = ["-".join([specification.operation, *specification.fixed.values()]) for specification in SPECIFICATIONS]


def judged(capability: Any, identity: str) -> Judgement:
    """Of one case; a function or a class is judged under float64."""
    specification, case = find(identity)
    return judge(specification, capability if isinstance(capability, Capability) else Capability(capability, FLOAT64), case)


def of(job: Job) -> Judgement:
    return judge(job.specification, job.capability, job.case)


def failing(jobs: list[Job]) -> list[Job]:
    return [job for job in jobs if of(job).verdict is Verdict.FAIL]


def fails(found: Judgement, kind: str, *said: str) -> None:
    """It fails in that way, and its message holds what is said."""
    assert (found.verdict, found.kind) == (Verdict.FAIL, kind), found.message
    assert all(one in found.message for one in said), found.message


def passes(found: Judgement) -> None:
    assert found.verdict is Verdict.PASS, found.message


def planned(of_it: Subject | Mapping[str, Capability], tier: str = "smoke", **selection: Any) -> tuple[list[Job], list[Any]]:
    """The cases of a subject, or of some operations, and what is left out; the adapter is called x."""
    subject = of_it if isinstance(of_it, Subject) else Subject("x", dict(of_it))
    return plan({"x": Adapter("x", "1", (subject,))}, Selection(tier, **selection))


def outcome(of_it: Subject | Mapping[str, Capability], tier: str = "smoke", **selection: Any) -> Outcome:
    return run(*planned(of_it, tier, **selection), Setting({"x": read_known("x")}))
