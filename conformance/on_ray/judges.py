"""`ssmspec conform run` on a cluster: adapters' declarations, their shards and the smallest cases, found on nodes."""

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ssmspec_ref.contract import Adapter, Verdict

from ..errors import RunBroken
from ..judge.verdict import Judgement
from ..progress.resume import key
from ..progress.shards import Gathered, Judged, Shard, found, shards
from ..report.stream import Diagnosis
from ..run.causes import diagnose as diagnose_here
from ..run.open_adapters import Opening
from ..run.plan import Job, Selection
from ..run.results import BROKE, FailedCases, Setting
from .crew import Broke, Crew, Lost

TASKS = "conformance.on_ray.tasks"
LOST = "lost"
"""The kind of failure of a case whose workers died; its verdict is unknown."""


def declared(crew: Crew, opening: Opening) -> tuple[dict[str, Adapter], dict[str, str]]:
    """The adapters as declared on nodes, and the packages that they import. Raises: what loading one raises."""
    made: dict[str, Adapter] = {}
    imported: dict[str, str] = {}
    for number, name in enumerate(opening.names):
        crew.submit(number, f"{TASKS}:declare", opening, name)
        _, said = crew.answer()
        if isinstance(said, Lost | Broke):
            raise RunBroken(f"{name} could not be loaded on any node: {said.why}")
        made[name] = said[0]
        imported |= said[1]
    return made, imported


@dataclass(frozen=True)
class OnRay:
    """Runs cases on a cluster; `parts` is the number of shards of each subject."""

    crew: Crew
    opening: Opening
    selection: Selection
    setting: Setting
    parts: int = 1

    def judged(self, jobs: Mapping[int, Job]) -> Iterator[tuple[int, Judgement, float]]:
        return Gathered(self._judged(jobs), self.diagnose).judged(jobs)

    def _judged(self, jobs: Mapping[int, Job]) -> Iterator[Judged]:
        dealt = shards(jobs.values(), self.parts)
        tasks = {n: (f"{TASKS}:judge", self.opening, self.selection, self.setting, shard) for n, shard in enumerate(dealt)}
        begun, done = time.monotonic(), 0
        for over, (number, said) in enumerate(self.crew.answers(tasks), 1):
            judgements = list(self._of(dealt[number], jobs, said))
            yield from judgements
            done += len(judgements)
            left = (time.monotonic() - begun) * (len(jobs) / max(done, 1) - 1)
            self.crew.tell(f"{over}/{len(dealt)} shards, {done}/{len(jobs)} cases, about {max(left, 0):.0f} s left")

    def _of(self, shard: Shard, jobs: Mapping[int, Job], said: Any) -> Iterator[Judged]:
        """The results of a shard. If its workers died, each of its cases is unknown."""
        if not isinstance(said, Lost | Broke):
            yield from map(Judged.of, said)
            return
        kind = LOST if isinstance(said, Lost) else BROKE
        for job in jobs.values():
            if shard.holds(job):
                yield Judged(key(job), Judgement(Verdict.UNKNOWN, kind, f"no worker finished its shard: {said.why}"), 0.0)

    def diagnose(self, failures: list[FailedCases]) -> list[Diagnosis]:
        """Those of one kind go to one node, in order. If its workers died, a failing case is reported as the smallest."""
        kinds: dict[tuple[str, str], list[int]] = defaultdict(list)
        for number, one in enumerate(failures):
            kinds[one.kind].append(number)
        groups = list(kinds.values())
        made: dict[int, list[Diagnosis]] = {}
        for group, said in self.crew.answers({n: self._asked([failures[i] for i in g]) for n, g in enumerate(groups)}):
            numbers = groups[group]
            if isinstance(said, Lost | Broke):
                made |= {n: [self._unshrunk(failures[n], said.why)] for n in numbers}
            else:
                made |= {n: [Diagnosis.model_validate(plain) for plain in of] for n, of in zip(numbers, said, strict=True)}
        return [diagnosis for number in range(len(failures)) for diagnosis in made[number]]

    def _asked(self, failures: list[FailedCases]) -> tuple[Any, ...]:
        names = tuple(dict.fromkeys(job.given for one in failures for job, *_ in one.found))
        return f"{TASKS}:diagnose", self.opening, self.selection, self.setting, names, [found(one) for one in failures]

    def _unshrunk(self, one: FailedCases, why: str) -> Diagnosis:
        """A diagnosis without a call; for an unknown judgement no smaller case is searched."""
        plain = [(job, replace(judgement, verdict=Verdict.UNKNOWN), result) for job, judgement, result in one.found]
        diagnosis, _ = diagnose_here(FailedCases(plain, cases=one.cases), [], self.setting)
        return diagnosis.model_copy(update={"message": f"{diagnosis.message} (not the smallest case: {why})"})
