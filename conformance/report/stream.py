"""The report: JSON lines with a header, results, diagnoses and a footer.

The footer has the counts of the verdicts and a digest of every line before it. A report without a footer, or with a wrong
count or digest, was truncated or edited; `read_report` refuses it. The digest detects accidents and careless edits; it is not
a signature, because anyone who edits a report can compute it again.
"""

import hashlib
import json
import platform
from collections import Counter
from datetime import UTC, datetime
from os import cpu_count
from pathlib import Path
from typing import Annotated, Literal, TextIO

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from ..device import observed
from ..errors import ReportError

SCHEMA: Literal[5] = 5
"""Schema 3 added `Result.place`, 4 `Result.stricter`, 5 `Result.drafts`; reports without them can still be read."""
READ = (2, 3, 4, 5)


class Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="strings", allow_inf_nan=True)


class Header(Model):
    """The conditions of a run. No host name and no path. `shard` is "2/4" for the second of four parts.

    `device` is the value of --device; where a case really ran is in its `Result.place`. `versions` are those of imported
    packages. `seeds` are those of the randomised second inputs, one per run; `only` says what was selected, "" if everything
    was run.
    """

    kind: Literal["header"] = "header"
    schema_version: Literal[2, 3, 4, 5] = SCHEMA
    tier: str
    adapters: dict[str, str]
    device: str
    versions: dict[str, str]
    python: str
    system: str
    machine: str
    cpus: int
    started: datetime
    shard: str = ""
    seeds: tuple[int, ...] = ()
    only: str = ""


class Output(Model):
    """One output of one case: the largest error relative to its bound; `first`, the first position beyond it, with both
    values; and, if the output is wrong, a `picture` of where."""

    name: str
    state: bool
    utilisation: float
    error: float
    bound: float
    first: dict[str, int]
    void: bool = False
    expected: float | None = None
    got: float | None = None
    picture: tuple[str, ...] = ()


class Result(Model):
    """One case of one operation of one subject; inapplicable operations have no case. `place` is where the implementation was
    observed to compute: "cpu", "Triton interpreter", the names of GPUs. `outside` counts the cases of the tier that the
    declared limits exclude, for an operation that is offered in part. `stricter` says which narrower contracts a passing case
    would pass too, of those under which a bound is much smaller. `drafts` are those that an engine says it proposed and
    accepted."""

    kind: Literal["result"] = "result"
    adapter: str
    subject: str
    contract: str
    operation: str
    case: str
    verdict: Literal["pass", "inapplicable", "known-failure", "unknown", "fail"]
    failing: str = ""
    message: str = ""
    source: str = ""
    outputs: tuple[Output, ...] = ()
    seconds: float = 0.0
    rerun: str = ""
    reason: str = ""
    link: str = ""
    place: str = ""
    outside: int = 0
    stricter: dict[str, bool] = {}
    drafts: tuple[int, int] | None = None


class Diagnosis(Model):
    """The smallest case that fails in the same way as the cases of one subject, contract and operation.

    `diverges` says where the output first deviates from the expected one; `looks_like` names a planted fault with the same
    outputs; `facts` has everything else that is known (`diagnose.facts`).
    """

    kind: Literal["diagnosis"] = "diagnosis"
    adapter: str
    subject: str
    contract: str
    operation: str
    verdict: Literal["known-failure", "fail", "unknown"]
    failures: int
    cases: int
    smallest: str
    failing: str
    message: str
    output: Output | None
    source: str
    reason: str
    link: str
    rerun: str
    diverges: str = ""
    looks_like: str = ""
    facts: dict[str, str] = {}


class Footer(Model):
    """The counts of the results before it, and the SHA-256 of all lines before it."""

    kind: Literal["footer"] = "footer"
    results: int
    verdicts: dict[str, int]
    finished: datetime
    digest: str


AnyLine = Annotated[Header | Result | Diagnosis | Footer, Field(discriminator="kind")]
LINE: TypeAdapter[Header | Result | Diagnosis | Footer] = TypeAdapter(AnyLine)


class Report:
    """A complete report, as read from a file."""

    def __init__(self, header: Header, results: list[Result], diagnoses: list[Diagnosis], footer: Footer) -> None:
        self.header, self.results, self.diagnoses, self.footer = header, results, diagnoses, footer


def header(
    tier: str,
    adapters: dict[str, str],
    device: str,
    shard: str = "",
    seeds: tuple[int, ...] = (),
    only: str = "",
    versions: dict[str, str] | None = None,
) -> Header:
    """The header of a run that starts now, on this machine; `versions` are those imported by the workers."""
    return Header(
        tier=tier,
        adapters=adapters,
        device=device,
        versions={**observed.versions(), **(versions or {})},
        python=platform.python_version(),
        system=f"{platform.system()} {platform.release()}",
        machine=platform.machine(),
        cpus=cpu_count() or 1,
        started=datetime.now(UTC),
        shard=shard,
        seeds=seeds,
        only=only,
    )


class Writer:
    """Writes a report line by line. An interrupted run leaves a report that can be read but is refused as incomplete."""

    def __init__(self, stream: TextIO, head: Header) -> None:
        self.stream, self.head, self.verdicts, self.digest = stream, head, Counter[str](), hashlib.sha256()
        self._write(head)

    def add(self, line: Result | Diagnosis) -> None:
        if isinstance(line, Result):
            self.verdicts[line.verdict] += 1
        self._write(line)

    def close(self) -> Footer:
        """Write the footer, which completes the report."""
        counts, digest = dict(self.verdicts), self.digest.hexdigest()
        footer = Footer(results=self.verdicts.total(), verdicts=counts, finished=datetime.now(UTC), digest=digest)
        self._write(footer)
        return footer

    def _write(self, line: Model) -> None:
        text = line.model_dump_json() + "\n"
        self.digest.update(text.encode())
        self.stream.write(text)
        self.stream.flush()


def unwritable(path: Path | str, error: OSError) -> ReportError:
    """The error for a path that cannot be written."""
    return ReportError(f"{path} cannot be written ({error.strerror}); name another folder on a disk with space")


def read_report(path: Path) -> Report:
    """Read a report, given by its file or its folder, and check it against its footer.

    Raises: ReportError for a file that is not a report, that was truncated, or whose counts or digest do not match; OSError.
    """
    path = file_of(path)
    if not path.is_file():
        raise ReportError(f"{path} does not exist; give a report.jsonl, or the folder of a run of `ssmspec conform run`")
    text = path.read_bytes()
    check_schema(path, text)
    try:
        lines = [LINE.validate_json(line) for line in text.splitlines()]
    except ValidationError as error:
        raise ReportError(f"{path.name} has a line that is not a record of a report: {error.errors()[0]['msg']}") from error
    if not lines or not isinstance(lines[0], Header):
        raise ReportError(f"{path.name} does not start with a header; run `ssmspec conform run --report` again")
    if not isinstance(lines[-1], Footer):
        raise ReportError(f"{path.name} has no footer: the run is unfinished; `ssmspec conform run --resume` continues it")
    results = [line for line in lines if isinstance(line, Result)]
    found = Counter(result.verdict for result in results)
    if len(results) != lines[-1].results or dict(found) != lines[-1].verdicts:
        raise ReportError(
            f"{path.name} holds {dict(found)}, but its footer counts {lines[-1].verdicts}; lines are missing or added"
        )
    if sum(isinstance(line, Header | Footer) for line in lines) != 2:
        raise ReportError(f"{path.name} has more than one header or footer; `ssmspec conform merge` merges reports")
    before = text[: text.rstrip(b"\n").rfind(b"\n") + 1]
    if hashlib.sha256(before).hexdigest() != lines[-1].digest:
        raise ReportError(f"{path.name} was edited: its lines do not match the digest in its footer; run it again")
    return Report(lines[0], results, [line for line in lines if isinstance(line, Diagnosis)], lines[-1])


def check_schema(path: Path, text: bytes) -> None:
    """Raise ReportError, with the file's name, for a schema that this version cannot read."""
    try:
        first = json.loads(text.partition(b"\n")[0])
        schema = first["schema_version"]
    except (ValueError, TypeError, KeyError):
        return  # not a report at all, which is reported elsewhere
    if type(schema) is not int or schema not in READ:
        named = schema if isinstance(schema, int | None) else repr(schema)
        read = f"{READ[0]} to {READ[-1]}"
        raise ReportError(f"{path.name} has schema {named}, but this ssmspec reads {read}; run again with this version")


def file_of(path: Path) -> Path:
    """The file of a report, given as the file or its folder."""
    return path / "report.jsonl" if path.is_dir() else path
