"""The cases of an adapter with `graph=replayed`, one after the other, in this process."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

from ssmspec_ref.contract import Adapter, Verdict

from ...interpreter.device import placed
from ...judge.verdict import judge
from ...run.load import load
from ...run.plan import Job
from .. import SPECIFICATIONS
from .replayed import replayed


@dataclass(frozen=True)
class Row:
    """A case and how it ended."""

    cell: tuple[str, str, str]
    case: str
    verdict: Verdict
    said: str
    place: str
    seconds: float


def shard(adapter: str, device: str, subject: str, operation: str, part: int, parts: int) -> list[Row]:
    """The cases of every operation whose number modulo `parts` is `part`."""
    with placed(device) as place:
        cells: dict[tuple[str, str, str], None] = {}
        found = []
        for job in cases(adapter, load(adapter, place)):
            _, name, contract, of = job.group
            if fnmatchcase(name, subject) and fnmatchcase(of, operation):
                cells.setdefault((name, of, contract))
                if list(cells).index((name, of, contract)) % parts == part:
                    found.append(judged(job))
        return found


def cases(given: str, adapter: Adapter) -> Iterator[Job]:
    """The cases of an adapter that are replayed."""
    for subject in adapter.subjects:
        for operation, capability in subject.capabilities.items():
            for specification in SPECIFICATIONS:
                if specification.operation == operation:
                    for case in filter(replayed, specification.cases("standard", capability.limits)):
                        yield Job(given, adapter, subject, capability, specification, case)


def judged(job: Job) -> Row:
    begin = time.perf_counter()
    found = judge(job.specification, job.capability, job.case)
    _, name, contract, operation = job.group
    said = f"{found.kind}: {found.message}"
    return Row(
        (name, operation, contract), job.identity, found.verdict, said, found.place, time.perf_counter() - begin
    )  # fmt: skip
