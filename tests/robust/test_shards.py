"""Shards that are judged apart give the report of one process, and one that is lost is not green."""

from datetime import date
from pathlib import Path

import pytest

from conformance.errors import RunBroken
from conformance.progress.shards import Gathered, Judged, diagnose_failures, found, judge_shard, shards
from conformance.refusal import BROKEN
from conformance.run.known import Known
from conformance.run.load import load
from conformance.run.open_adapters import Opening
from conformance.run.plan import Selection, plan
from conformance.run.results import Setting
from conformance.run.runner import run
from tests.commands import FAULTY, ends, without_seconds

NAME = FAULTY[1]
SELECTION = Selection("smoke", "[gt]*", "ssd.scan")
SETTING = Setting({"faulty arithmetic": Known([], date.today())}, seed=7, called="ssmspec conform")


def test_shards_give_the_report_of_one_process_to_the_last_byte() -> None:
    adapter = load(NAME)
    setting = Setting({adapter.name: Known([], date.today())}, seed=7, called="ssmspec conform")
    jobs, left_out = plan({NAME: adapter}, SELECTION)
    opening = Opening((NAME,), isolated=False)
    dealt = shards(jobs, 3)
    assert sum(sum(map(shard.holds, jobs)) for shard in dealt) == len(jobs)
    judged = [one for shard in reversed(dealt) for one in judge_shard(opening, SELECTION, setting, shard)]
    judged = [Judged.of(one.plain()) for one in judged]

    def smallest(ways: list) -> list:
        return diagnose_failures(opening, SELECTION, setting, NAME, map(found, ways))

    together = run(jobs, left_out, setting, judges=Gathered([*judged, *judged], smallest))
    assert without_seconds(together) == without_seconds(run(jobs, left_out, setting))
    with pytest.raises(RunBroken, match="not run by any shard"):
        run(jobs, left_out, setting, judges=Gathered(judged[1:], smallest))


def test_a_judge_that_is_killed_among_several_ends_the_run_with_three(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from conformance.run.pool import Member

    ask = Member.ask

    def killed(self: Member, what: str, *given: object) -> object:
        self.child.kill()
        return ask(self, what, *given)

    monkeypatch.setattr(Member, "ask", killed)
    said = "RunBroken: a process of the suite was ended by signal 9"
    ends(BROKEN, "run", *FAULTY, "--tier", "smoke", "--jobs", 2, "--report", tmp_path, said=said)
