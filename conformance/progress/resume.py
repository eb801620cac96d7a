"""Read an unfinished report: the header of its run, and the results that a resumed run keeps.

What is tested runs as the same user, so it can write to the report and then kill the judge. A line that says that a case
passed is therefore not believed, unless the user says that the adapter is trusted (`--keep-passed`): the case is run again.
A line that says that a case failed is kept: a failure that was found is not lost, and a forged one is never green.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ValidationError

from ssmspec_ref.contract import Verdict

from ..errors import ReportError
from ..judge.verdict import Judgement, Measured
from ..report.merge import ALIKE
from ..report.stream import Diagnosis, Footer, Header, Result, check_schema, parsed
from ..run.plan import Job
from ..run.results import BROKE
from . import files
from .folder import REPORT

FAILED = {"known-failure": Verdict.FAIL, "fail": Verdict.FAIL}
ALL = FAILED | {"pass": Verdict.PASS, "unknown": Verdict.UNKNOWN}
"""Verdicts of cases before the list of known failures is applied."""
Key = tuple[str, str, str, str, str]
"""Adapter, subject, contract, operation and id of a case."""


def key(job: Job) -> Key:
    return (*job.group, job.identity)


@dataclass(frozen=True)
class Kept:
    """What is kept of an interrupted run: its header, and results by case. `again` is the number of its results that are not
    kept."""

    header: Header
    results: Mapping[Key, Result]
    again: int = 0

    @property
    def seed(self) -> int:
        return self.header.seeds[0]

    def check(self, head: Header) -> Header:
        """The header of the run that continues this one.

        Raises: ReportError if it has other settings, or another machine.
        """
        for part in ("schema_version", *ALIKE, "shard", "seeds"):
            was, now = getattr(self.header, part), getattr(head, part)
            if was != now:
                raise ReportError(
                    f"the unfinished run had {part} {was}, but this one has {now}; give the same options, or omit --resume"
                )
        return head.model_copy(update={"started": self.header.started, "resumed": len(self.results)})

    def of(self, jobs: Iterable[Job]) -> "Kept":
        """What is kept of the cases of a plan."""
        planned = {key(job) for job in jobs}
        return replace(self, results={case: result for case, result in self.results.items() if case in planned})

    def judgement(self, job: Job, rerun: str) -> tuple[Judgement, float] | None:
        """The judgement on a case, and the seconds that it took; None if the case must be run.

        `rerun` is the command that runs the case with the seed of the second inputs.
        """
        result = self.results.get(key(job))
        if result is None:
            return None
        measured = tuple(Measured(**output.model_dump()) for output in result.outputs)
        seed = self.seed if result.rerun.endswith(rerun[rerun.index(" run ") :]) else None
        said = result.place, result.stricter, result.drafts
        return Judgement(ALL[result.verdict], result.failing, result.message, measured, seed, *said), result.seconds


def read_kept(folder: Path, passed: bool = False) -> Kept | None:
    """What is kept of a run; None if it was interrupted before it wrote a header. `passed` keeps every verdict, and not only
    failures.

    A result with an error in the list of known failures does not contain the judgement itself, and a case on which the suite
    failed has none: both are run again.

    Raises: ReportError for a line that is damaged.
    """
    path = folder / REPORT
    try:
        lines = lines_of(path)
    except FileNotFoundError:
        return None
    if not lines:
        return None
    head, *rest = lines
    if not isinstance(head, Header) or len(head.seeds) != 1 or any(isinstance(line, Header) for line in rest):
        raise ReportError(f"{path} does not start with the header of one run; run without --resume")
    kept, ran = dict[Key, Result](), set[Key]()
    for number, line in enumerate(rest, 2):
        if not isinstance(line, Result) or not (line.case and line.operation):
            continue
        if line.verdict not in ALL:
            raise ReportError(f"{path}, line {number}, says that a case is {line.verdict}; run without --resume")
        case = (line.adapter, line.subject, line.contract, line.operation, line.case)
        ran.add(case)
        if line.verdict in (ALL if passed else FAILED) and line.failing not in ("known-list", BROKE):
            kept[case] = line
    return Kept(head, kept, len(ran - kept.keys()))


def lines_of(path: Path) -> list[Header | Result | Diagnosis | Footer]:
    """The lines of a report that may be unfinished, without an incomplete last line.

    Raises: FileNotFoundError; ReportError for a line that is damaged, and for a file that cannot be read.
    """
    try:
        text = files.read(path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ReportError(f"{path} cannot be read ({error.strerror}); run without --resume") from error
    check_schema(path, text)
    found = []
    for number, line in enumerate(text.split(b"\n")[:-1]):
        try:
            found.append(parsed(line))
        except ValidationError as error:
            raise ReportError(f"{path}, line {number + 1}, is not a record of a report; run without --resume") from error
    return found
