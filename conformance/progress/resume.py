"""Read an unfinished report: the header of its run, and the judgement on every case that was written.

A resumed run tests the remaining cases, with the seed in the header, and gives the same verdicts as an uninterrupted run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from ssmspec_ref.contract import Verdict

from ..errors import ReportError
from ..judge.verdict import Judgement, Measured
from ..report.merge import ALIKE
from ..report.stream import LINE, Diagnosis, Footer, Header, Result, check_schema
from ..run.plan import Job
from ..run.runner import BROKE
from .folder import REPORT

VERDICTS = {"pass": Verdict.PASS, "known-failure": Verdict.FAIL, "unknown": Verdict.UNKNOWN, "fail": Verdict.FAIL}
Key = tuple[str, str, str, str, str]
"""Adapter, subject, contract, operation and id of a case."""


def key(job: Job) -> Key:
    return (*job.group, job.identity)


@dataclass(frozen=True)
class Kept:
    """The results of an interrupted run: the seed of the randomised second inputs, and results by case."""

    header: Header
    results: Mapping[Key, Result]

    @property
    def seed(self) -> int:
        return self.header.seeds[0]

    def check(self, head: Header) -> None:
        """Raise ReportError if the run to continue has other settings, or another machine."""
        for part in ("schema_version", *ALIKE, "shard", "seeds"):
            was, now = getattr(self.header, part), getattr(head, part)
            if was != now:
                raise ReportError(
                    f"the unfinished run had {part} {was}, but this one has {now}; give the same options, or omit --resume"
                )

    def judgement(self, job: Job, rerun: str) -> tuple[Judgement, float] | None:
        """The judgement on a case, and the seconds that it took; None if the case must be run again.

        `rerun` is the command that runs the case with the seed of the second inputs. A result with an error in the list of
        known failures does not contain the judgement itself, and a case on which the suite failed has none.
        """
        result = self.results.get(key(job))
        if result is None or result.failing in ("known-list", BROKE):
            return None
        measured = tuple(Measured(**output.model_dump()) for output in result.outputs)
        seed = self.seed if result.rerun.endswith(rerun[rerun.index(" run ") :]) else None
        verdict = VERDICTS[result.verdict]
        said = result.place, result.stricter, result.drafts
        return Judgement(verdict, result.failing, result.message, measured, seed, *said), result.seconds


def read_kept(folder: Path) -> Kept | None:
    """The results kept from a run; None if it was interrupted before it wrote a header. Raises: ReportError; OSError."""
    path = folder / REPORT
    lines = lines_of(path) if path.is_file() else []
    if not lines:
        return None
    head, *rest = lines
    if not isinstance(head, Header) or len(head.seeds) != 1:
        raise ReportError(f"{path} does not start with the header of one run; run without --resume")
    found = [line for line in rest if isinstance(line, Result) and line.case and line.operation]
    return Kept(head, {(r.adapter, r.subject, r.contract, r.operation, r.case): r for r in found})


def lines_of(path: Path) -> Sequence[Header | Result | Diagnosis | Footer]:
    """The lines of a report that may be unfinished, without an incomplete last line. Raises: ReportError."""
    found = []
    text = path.read_bytes()
    check_schema(path, text)
    for number, line in enumerate(text.split(b"\n")[:-1]):
        try:
            found.append(LINE.validate_json(line))
        except ValidationError as error:
            raise ReportError(f"{path}, line {number + 1}, is not a record of a report; run without --resume") from error
    return found
