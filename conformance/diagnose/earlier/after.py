"""What a failure that depends on earlier calls shows: its judgement and its values, both of runs after the same cases."""

from collections.abc import Sequence

from ssmspec_ref.contract import Verdict

from ...judge.verdict import Judgement, judge
from ...run.calls import bench_of
from ..facts import first_wrong
from ..observe import observe
from ..replay import Called


def after(called: Called, earlier: Sequence[Called], seed: int) -> tuple[Judgement | None, dict[str, str]]:
    """The judgement and the facts about the first wrong place, each in a new process after the same cases; None if it passes
    there, and no facts if its first call does."""
    specification, capability, case = called

    def renewed() -> None:
        bench_of(capability).close()  # type: ignore[attr-defined]  # only a process that can be restarted is replayed
        for before in earlier:
            judge(*before, seed)

    renewed()
    judgement = judge(specification, capability, case, seed)
    if judgement.verdict is not Verdict.FAIL:
        return None, {}
    renewed()
    found = observe(specification, capability, case) if judgement.seed is None else None
    return judgement, first_wrong(found, capability) if found is not None and found.beyond else {}
