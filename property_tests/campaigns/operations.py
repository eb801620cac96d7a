"""Fuzzing of plain operations: sizes, options, families and seeds of inputs are drawn, the suite tests each case.

A drawn case has an id like those of the tables, so that a failing case can be rerun by `ssmspec conform run --case ID`;
Hypothesis shrinks it towards small axes and first options.
"""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.database import ExampleDatabase

from conformance.cases import Case
from conformance.errors import RunBroken, UnknownCase
from conformance.judge.verdict import OTHER
from conformance.progress import lines
from conformance.report.stream import Result
from conformance.run.known import read_known
from conformance.run.open_adapters import Opening
from conformance.run.plan import Job, Selection, plan
from conformance.run.results import BROKE, Setting, record
from conformance.run.runner import Alone
from conformance.suite.specification import Specification
from ssmspec_ref.contract import Limits
from ssmspec_ref.errors import SpecError

from ..store.failures import Kept
from .campaign import Campaign, Played

SEEDS = 2**16


class Deviates(AssertionError):
    """A case that failed, or gave no answer."""


@dataclass(frozen=True)
class Operations(Campaign):
    """A campaign over the operations of an adapter; `operation` is a pattern such as "ssd.*"."""

    operation: str = "*"

    @property
    def head(self) -> dict[str, Any]:
        return {**super().head, "operation": self.operation}

    def run(self, minutes: float, most: int | None = None, shown: Callable[[int, Any], None] | None = None) -> Kept | None:
        """Raises: ConformanceError; UnknownCase if the adapter has no such operation; whatever `Campaign.run` raises."""
        with self.targets() as (targets, setting):
            return self.through(minutes, most, lambda number, database: self.played(targets, setting, number, database))

    @contextmanager
    def targets(self) -> Iterator[tuple[list[Job], Setting]]:
        """One case for each operation of each subject and each kind of layer; the adapter runs in its own process."""
        with Opening((self.named,), self.device).open() as adapters:
            jobs, _ = plan(adapters, Selection(operation=self.operation))
            first: dict[tuple[str, int], Job] = {}
            for job in jobs:
                first.setdefault((f"{job.group}", id(job.specification)), job)
            if not first:
                raise UnknownCase(f"{self.named} has no operation {self.operation!r}; `ssmspec conform list` prints them")
            lists = {made.name: read_known(made.name) for made in adapters.values()}
            yield list(first.values()), Setting(lists, self.device, OTHER)

    def played(self, targets: list[Job], setting: Setting, number: int, database: ExampleDatabase) -> Played:
        """One batch: a number of examples of each operation, until one fails."""
        begun, total, failed = self.clock(), Total(), None
        for place, target in enumerate(targets):
            failed = hunt(
                target, setting, self.settings(database), (self.seed * 2**20 + number) * 2**8 + place, total, self.key
            )
            if failed is not None:
                break
        words = {"examples": total.examples, "digest": total.digest, "reached": {}, "decodings": {}, "used": total.used}
        line = {"schema": lines.SCHEMA, "head": self.head, "number": number, "seconds": self.clock() - begun, **words}
        if failed is None:
            return Played({**line, "worst": None, "failure": None})
        said = f"{failed.subject}, {failed.case}: {failed.failing}: {failed.message}"
        return Played({**line, "worst": None, "failure": {"message": said, "at": total.examples}}, program(said, failed))

    def settings(self, database: ExampleDatabase) -> settings:
        return settings(
            max_examples=self.examples, database=database, deadline=None, derandomize=False, print_blob=False,
            report_multiple_bugs=False, suppress_health_check=list(HealthCheck),
            phases=(Phase.reuse, Phase.generate, Phase.shrink),
        )  # fmt: skip


@dataclass
class Total:
    """What was drawn: how many cases, a digest of their ids, and the largest error of each output in units of its bound."""

    examples: int = 0
    used: dict[str, float] = field(default_factory=dict)
    hash: Any = field(default_factory=hashlib.sha256)

    @property
    def digest(self) -> str:
        return str(self.hash.hexdigest()[:16])

    def add(self, result: Result) -> None:
        self.examples += 1
        self.hash.update(f"{result.subject} {result.case}\n".encode())
        for output in result.outputs:
            label = f"{result.subject}; {result.operation}: {output.name}"
            self.used[label] = max(self.used.get(label, 0.0), output.utilisation)


def hunt(target: Job, setting: Setting, how: settings, seed: int, total: Total, key: bytes) -> Result | None:
    """The smallest failing case, if any. A case for which the suite has no bound is skipped.

    Raises: RunBroken for an internal error of the suite.
    """
    found: list[Result] = []

    def test(case: Case) -> None:
        job = replace(target, case=case)
        hypothesis.assume(drawable(job))
        judgement, seconds = Alone(setting).judge(job)
        result = record(job, judgement, setting, seconds)
        total.add(result)
        if judgement.kind == BROKE:
            raise RunBroken(f"{result.case}: {judgement.message}")
        hypothesis.assume(judgement.kind != "bound" or result.verdict != "unknown")
        if result.verdict in ("fail", "unknown"):
            found.append(result)
            raise Deviates(result.message)

    drawn = given(cases(target.specification, target.capability.limits))(test)
    run: Any = how(drawn)
    run._hypothesis_internal_use_seed = seed  # `hypothesis.seed` would remove the database
    run._hypothesis_internal_database_key = key + f" {target.group} {target.specification.fixed}".encode()
    try:
        run()
    except RunBroken:
        raise
    except Exception:
        if not found:
            raise
        return found[-1]
    return None


def drawable(job: Job) -> bool:
    """Whether the operation has inputs of these sizes and options: a window of one token cannot have gaps, for example."""
    try:
        job.specification.draw(job.case, job.capability.contract)
    except SpecError:
        return False
    return True


@st.composite
def cases(draw: st.DrawFn, specification: Specification, limits: Limits) -> Case:
    """A case within the limits; each axis up to the largest in the tables, their product up to the tables' largest."""
    low, top, most = ranges(specification, limits)
    sizes, left = dict(low), most
    for axis in sorted(low):
        left = left // max(1, low[axis])
    for axis in draw(st.permutations(sorted(low))):
        sizes[axis] = draw(st.integers(low[axis], max(low[axis], min(top[axis], low[axis] * max(1, left)))))
        left = left * low[axis] // sizes[axis]
    if not specification.ok(sizes):
        fits = [(a, n) for a in sizes for n in range(low[a], top[a] + 1) if specification.ok({**sizes, a: n})]
        hypothesis.assume(fits)
        axis, size = draw(st.sampled_from(fits))
        sizes[axis] = size
    offered = {name: [v for v in vs if v in limits.options.get(name, vs)] for name, vs in specification.values.items()}
    options = {name: draw(st.sampled_from(values)) for name, values in offered.items() if values}
    return specification.case(sizes, options, draw(st.sampled_from(specification.families)), draw(st.integers(0, SEEDS)))


def ranges(specification: Specification, limits: Limits) -> tuple[dict[str, int], dict[str, int], int]:
    """The smallest and the largest size of each axis, and the largest product of all."""
    known = [{**specification.base, **row} for row in (*specification.rows, *(sizes for sizes, *_ in specification.further))]
    known.append(dict(specification.base))
    low = {axis: limits.sizes.get(axis, (1, 1))[0] for axis in specification.base}
    top = {axis: max(sizes[axis] for sizes in known) for axis in specification.base}
    top = {axis: max(low[axis], min(size, limits.sizes.get(axis, (1, size))[1])) for axis, size in top.items()}
    return low, top, max(Case("", sizes, {}, "", 0).size() for sizes in known)


def program(said: str, failed: Result) -> str:
    """A program that tests the case again, by the command that the suite prints."""
    told = "\n".join(f"# {line}" for line in said.splitlines())
    words = failed.rerun.partition(" run ")[2]
    return (
        f"{told}\nimport shlex\nimport sys\n\nfrom conformance.main import main\n\n"
        f"sys.argv = ['ssmspec', 'conform', 'run', *shlex.split({words!r})]\nmain()\n"
    )
