"""Shards of a plan: the cases of one subject of one adapter in several parts, which can be run anywhere.

    for shard in shards(jobs, parts):  judged += judge_shard(opening, selection, setting, shard)
    run(jobs, left_out, setting, judges=Gathered(judged, ...))

Size and seed of every input follow from the settings and the case. The verdicts, errors and failures of a plan run in shards
are therefore those of a single process, to the last byte; only the times differ.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any
from zlib import crc32

from pydantic import TypeAdapter

from ..errors import RunBroken
from ..judge.verdict import Judgement
from ..report.stream import Diagnosis, Result
from ..run.open_adapters import Opening
from ..run.plan import Job, Selection, plan
from ..run.results import FailedCases, Setting
from ..run.runner import Alone
from .resume import Key, key

_JUDGEMENT = TypeAdapter(Judgement)


@dataclass(frozen=True)
class Shard:
    """Part `part` of `parts`, from 0, of the cases of one subject. `adapter` is the adapter as named on the command line."""

    adapter: str
    subject: str
    part: int = 0
    parts: int = 1

    def holds(self, job: Job) -> bool:
        mine = job.given == self.adapter and job.subject.name == self.subject
        return mine and crc32(job.identity.encode()) % self.parts == self.part


@dataclass(frozen=True)
class Judged:
    """The result of one case: plain data that can be passed between processes."""

    key: Key
    judgement: Judgement
    seconds: float

    def plain(self) -> dict[str, Any]:
        return {"key": list(self.key), "judgement": asdict(self.judgement), "seconds": self.seconds}

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> "Judged":
        """Read a result from plain data. Raises: pydantic's ValidationError."""
        adapter, subject, contract, operation, case = plain["key"]
        judgement = _JUDGEMENT.validate_python(plain["judgement"])
        return cls((adapter, subject, contract, operation, case), judgement, float(plain["seconds"]))


def shards(jobs: Iterable[Job], parts: int = 1) -> list[Shard]:
    """The non-empty shards of a plan, in the order of the plan."""
    held = dict.fromkeys(Shard(job.given, job.subject.name, crc32(job.identity.encode()) % parts, parts) for job in jobs)
    return list(held)


def judge_shard(opening: Opening, selection: Selection, setting: Setting, shard: Shard) -> list[Judged]:
    """Open the adapter of a shard, run its cases, close it. Raises: ConformanceError."""
    with replace(opening, names=(shard.adapter,)).open() as adapters:
        jobs, _ = plan(adapters, selection)
        alone = Alone(setting)
        return [Judged(key(job), *alone.judge(job)) for job in jobs if shard.holds(job)]


Found = tuple[Sequence[tuple[Judged, Result]], Sequence[Key], Sequence[Key], int, bool]
"""A kind of failure: its cases with their results; the passing cases of its cell; the subject's cases that ran before; the
number of cases in its cell of the matrix; whether its cause is searched."""


def found(one: FailedCases) -> Found:
    """A kind of failure as plain data."""
    cases = [(Judged(key(job), judgement, 0.0), result) for job, judgement, result in one.found]
    return cases, [*map(key, one.passed)], [*map(key, one.before)], one.cases, one.searched


def diagnose_failures(
    opening: Opening, selection: Selection, setting: Setting, given: str, failures: Iterable[Found]
) -> list[Diagnosis]:
    """The smallest case of each kind of failure of one adapter, given by its name on the command line."""
    with replace(opening, names=(given,)).open() as adapters:
        made = diagnosed(plan(adapters, selection)[0], Alone(setting), failures)
    return [diagnosis for of in made for diagnosis in of]


def diagnosed(jobs: Iterable[Job], alone: Alone, failures: Iterable[Found]) -> list[list[Diagnosis]]:
    """The same for a given plan: a list for each kind of failure, with one diagnosis for each separate bug."""
    by_key = {key(one): one for job in jobs for one in job.tried()}
    return alone.diagnosed(
        [
            FailedCases(
                [(by_key[j.key], j.judgement, r) for j, r in cases],
                [by_key[k] for k in passed],
                [by_key[k] for k in before],
                count,
                searched,
            )
            for cases, passed, before, count, searched in failures
        ]
    )


@dataclass(frozen=True)
class Gathered:
    """Results of a plan whose shards were run elsewhere, or are run as they are read."""

    judgements: Iterable[Judged]
    smallest: Callable[[list[FailedCases]], list[Diagnosis]]
    seen: set[Key] = field(default_factory=set)

    def judged(self, jobs: Mapping[int, Job]) -> Iterator[tuple[int, Judgement, float]]:
        """The results by case. Raises: RunBroken for a case that no shard has run: it is not green by default."""
        wanted = {key(job): number for number, job in jobs.items()}
        for one in self.judgements:
            if one.key in wanted and one.key not in self.seen:
                self.seen.add(one.key)
                yield wanted[one.key], one.judgement, one.seconds
        if lost := wanted.keys() - self.seen:
            first = " ".join(sorted(lost)[0])
            raise RunBroken(f"{len(lost)} cases were not run by any shard, the first is {first}; --resume runs them")

    def diagnose(self, failures: list[FailedCases]) -> list[Diagnosis]:
        return self.smallest(failures)
