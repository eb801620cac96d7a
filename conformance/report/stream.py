"""The report: JSON lines with a header, results, diagnoses and a footer.

The footer has the counts of the verdicts and a digest of every line before it. A report without a footer, or with a wrong
count or digest, was truncated or edited; `read_report` refuses it. The digest detects accidents and careless edits; it is not
a signature, because anyone who edits a report can compute it again.
"""

import hashlib
import json
import platform
import re
from collections import Counter
from datetime import UTC, datetime
from os import cpu_count
from pathlib import Path
from typing import Annotated, Any, Literal, TextIO

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, WithJsonSchema

from ssmspec_ref.options.words import SHARD

from ..device import observed
from ..errors import ReportError
from ..isolation.text import escaped
from ..progress import files

SCHEMA: Literal[7] = 7
"""Schema 3 added `Result.place`, 4 `Result.stricter`, 5 `Result.drafts`, 6 `Header.resumed`, 7 `Output.at`, `Result.drawn`
and the verdict not-run; reports without these can still be read."""
READ = (2, 3, 4, 5, 6, 7)


class Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="strings", allow_inf_nan=True)


class Header(Model):
    """The conditions of a run. No host name and no path. `shard` is "2of4" for the second of four parts.

    `device` is the value of --device; where a case really ran is in its `Result.place`. `versions` are those of imported
    packages. `seeds` are those of the randomised second inputs, one per run; `only` says what was selected, "" if everything
    was run. `resumed` counts the results that were kept from an interrupted run: their cases were not run again.
    """

    kind: Literal["header"] = "header"
    schema_version: Literal[2, 3, 4, 5, 6, 7] = SCHEMA
    tier: str
    adapters: dict[str, str]
    device: str
    versions: dict[str, str]
    python: str
    system: str
    machine: str
    cpus: int
    started: AwareDatetime
    shard: Annotated[str, Field(pattern=rf"^({SHARD.pattern})?$")] = ""
    seeds: tuple[int, ...] = ()
    only: str = ""
    resumed: Annotated[int, Field(ge=0)] = 0


NUMBER = {"anyOf": [{"type": "number"}, {"enum": ["NaN", "Infinity", "-Infinity"]}]}
Number = Annotated[float, WithJsonSchema(NUMBER)]
"""A number that may be infinite or NaN, which JSON writes as a string."""


class Output(Model):
    """One output of one case, at the element with the largest error relative to its bound: both values, and the position `at`
    which it is (None before schema 7, where the values are those of `first`); `first`, the first position beyond its bound;
    and, if the output is wrong, a `picture` of where."""

    name: str
    state: bool
    utilisation: Number
    error: Number
    bound: Number
    first: dict[str, int]
    void: bool = False
    expected: Number | None = None
    got: Number | None = None
    picture: tuple[str, ...] = ()
    at: dict[str, int] | None = None


class Result(Model):
    """One case of one operation of one subject; inapplicable operations have no case. `place` is where the implementation was
    observed to compute: "cpu", "Triton interpreter", the names of GPUs. `outside` counts the cases of the tier that the
    declared limits exclude, for an operation that is offered in part. `stricter` says which narrower contracts a passing case
    would pass too, of those under which a bound is much smaller. `drafts` are those that an engine says it proposed and
    accepted. `drawn`: the sizes of the case are of the run's seed, so another run has others. A case of a run that stopped
    early is not-run, with the reason."""

    kind: Literal["result"] = "result"
    adapter: str
    subject: str
    contract: str
    operation: str
    case: str
    verdict: Literal["pass", "inapplicable", "known-failure", "not-run", "unknown", "fail"]
    failing: str = ""
    message: str = ""
    source: str = ""
    outputs: tuple[Output, ...] = ()
    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    rerun: str = ""
    reason: str = ""
    link: str = ""
    place: str = ""
    outside: int = 0
    stricter: dict[str, bool] = {}
    drafts: tuple[int, int] | None = None
    drawn: bool = False


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
    finished: AwareDatetime
    digest: str


AnyLine = Annotated[Header | Result | Diagnosis | Footer, Field(discriminator="kind")]
LINE: TypeAdapter[Header | Result | Diagnosis | Footer] = TypeAdapter(AnyLine)
ESCAPED = re.compile(rb"[\\\x7f-\xff]")
"""What a line of JSON holds if one of its texts is more than printable ASCII."""


def parsed(line: bytes) -> Header | Result | Diagnosis | Footer:
    """A line of a report. The file may come from anybody: characters that a terminal would obey are escaped.

    Raises: ValidationError.
    """
    found = LINE.validate_json(line)
    return LINE.validate_python(_clean(found.model_dump())) if ESCAPED.search(line) else found


def _clean(value: Any) -> Any:
    """A value with every text in it escaped."""
    if isinstance(value, str):
        return escaped(value)
    if isinstance(value, tuple):
        return tuple(map(_clean, value))
    return {_clean(name): _clean(part) for name, part in value.items()} if isinstance(value, dict) else value


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
    where = error.filename or path
    if isinstance(error, IsADirectoryError) or error.strerror == files.IRREGULAR:
        return ReportError(f"{where} cannot be replaced by a file ({error.strerror}); remove it, or name another folder")
    return ReportError(f"{where} cannot be written ({error.strerror}); name another folder on a disk with space")


def read_report(path: Path) -> Report:
    """Read a report, given by its file or its folder, and check it against its footer.

    Raises: ReportError for a file that is not a report, that was truncated, or whose counts or digest do not match.
    """
    path, named = file_of(path), path
    try:
        text = files.read(path, follow=path == named)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ReportError(
            f"{path} does not exist; give a report.jsonl, or the folder of a run of `ssmspec conform run`"
        ) from error
    except OSError as error:
        raise ReportError(f"{path} cannot be read ({error.strerror}); give a report.jsonl, or its folder") from error
    check_schema(path, text)
    try:
        lines = [parsed(line) for line in text.splitlines()]
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
    except (ValueError, TypeError, KeyError, RecursionError):
        return  # not a report at all, which is reported elsewhere
    if type(schema) is not int or schema not in READ:
        named = schema if isinstance(schema, int | None) else repr(schema)
        read = f"{READ[0]} to {READ[-1]}"
        raise ReportError(f"{path.name} has schema {named}, but this ssmspec reads {read}; run again with this version")


def file_of(path: Path) -> Path:
    """The file of a report, given as the file or its folder."""
    return path / "report.jsonl" if path.is_dir() else path
