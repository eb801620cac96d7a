"""The report: a stream of JSON lines with a header, results, diagnoses and a footer.

The footer holds the counts of the verdicts and a digest of every line before it. A report that lacks its footer, or whose
counts or digest do not match, was cut or edited; `read_report` refuses it. The digest tells an accident and a careless hand;
it is no signature: who edits a report can compute it anew.
"""

import hashlib
import platform
import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import metadata
from os import cpu_count
from pathlib import Path
from typing import Annotated, Literal, TextIO

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from .errors import ReportError

SCHEMA: Literal[2] = 2
PACKAGES = ("ssmspec", "numpy", "torch", "transformers", "triton")


class Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="strings", allow_inf_nan=True)


class Header(Model):
    """Under what the results were obtained. No host name and no path. `shard` is "2/4" for the second part of four.

    `seeds` are those of the inputs that came second, one for each run; `only` says what was selected, "" where nothing was
    left out.
    """

    kind: Literal["header"] = "header"
    schema_version: Literal[2] = SCHEMA
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
    """One output of one case: the worst error in units of its bound."""

    name: str
    state: bool
    utilisation: float
    error: float
    bound: float
    first: dict[str, int]
    void: bool = False


class Result(Model):
    """One case of one operation of one subject; inapplicable operations have no case."""

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


class Diagnosis(Model):
    """The smallest case that still fails as the cases of one subject, contract and operation do.

    `diverges` says where what came first leaves what must come; `looks_like` names a planted fault with the same outputs.
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


class Footer(Model):
    """The counts of the results before it, and the SHA-256 of all lines before it."""

    kind: Literal["footer"] = "footer"
    results: int
    verdicts: dict[str, int]
    finished: datetime
    digest: str


Line = Annotated[Header | Result | Diagnosis | Footer, Field(discriminator="kind")]
_LINE: TypeAdapter[Header | Result | Diagnosis | Footer] = TypeAdapter(Line)


class Report:
    """A whole report, as read."""

    def __init__(self, header: Header, results: list[Result], diagnoses: list[Diagnosis], footer: Footer) -> None:
        self.header, self.results, self.diagnoses, self.footer = header, results, diagnoses, footer


def header(
    tier: str, adapters: dict[str, str], device: str, shard: str = "", seeds: tuple[int, ...] = (), only: str = ""
) -> Header:
    """The header of a run that starts now, on this machine."""
    return Header(
        tier=tier,
        adapters=adapters,
        device=device,
        versions=dict(_versions()),
        python=platform.python_version(),
        system=f"{platform.system()} {platform.release()}",
        machine=platform.machine(),
        cpus=cpu_count() or 1,
        started=datetime.now(UTC),
        shard=shard,
        seeds=seeds,
        only=only,
    )


def _versions() -> Iterator[tuple[str, str]]:
    for package in PACKAGES:
        try:
            yield package, metadata.version(package)
        except metadata.PackageNotFoundError:
            continue


class Writer:
    """Writes a report line by line, so that an interrupted run leaves a readable, refused, report."""

    def __init__(self, stream: TextIO, head: Header) -> None:
        self.stream, self.verdicts, self.digest = stream, Counter[str](), hashlib.sha256()
        self._write(head)

    def add(self, line: Result | Diagnosis) -> None:
        if isinstance(line, Result):
            self.verdicts[line.verdict] += 1
        self._write(line)

    def close(self) -> Footer:
        """Write the footer: the report is whole."""
        counts, digest = dict(self.verdicts), self.digest.hexdigest()
        footer = Footer(results=self.verdicts.total(), verdicts=counts, finished=datetime.now(UTC), digest=digest)
        self._write(footer)
        return footer

    def _write(self, line: Model) -> None:
        text = line.model_dump_json() + "\n"
        self.digest.update(text.encode())
        self.stream.write(text)
        self.stream.flush()


@contextmanager
def opened(folder: Path) -> Iterator[TextIO]:
    """The report.jsonl of a folder, which is made where it is not there, for a Writer.

    Raises: ReportError where it cannot be opened, written or closed.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "report.jsonl").open("w", encoding="utf-8") as stream:
            yield stream
    except OSError as error:
        raise unwritable(folder, error) from error


def unwritable(path: Path | str, error: OSError) -> ReportError:
    """What is said of a path that cannot be written."""
    return ReportError(f"{path} cannot be written ({error.strerror}); name another folder, on a disk with space")


def read_report(path: Path) -> Report:
    """Read a report, given by its file or its folder, and hold it against its footer.

    Raises: ReportError for a file that is no report, that was cut off, or whose counts or digest do not match; OSError.
    """
    path = file_of(path)
    text = path.read_bytes()
    try:
        lines = [_LINE.validate_json(line) for line in text.splitlines()]
    except ValidationError as error:
        raise ReportError(f"{path.name} holds a line that is no record of a report: {error.errors()[0]['msg']}") from error
    if not lines or not isinstance(lines[0], Header):
        raise ReportError(f"{path.name} does not start with a header; run `ssmspec conform run --report` again")
    if not isinstance(lines[-1], Footer):
        raise ReportError(f"{path.name} has no footer, so the run was cut off; run it again")
    results = [line for line in lines if isinstance(line, Result)]
    found = Counter(result.verdict for result in results)
    if len(results) != lines[-1].results or dict(found) != lines[-1].verdicts:
        raise ReportError(
            f"{path.name} holds {dict(found)}, but its footer counts {lines[-1].verdicts}; lines are missing or added"
        )
    if sum(isinstance(line, Header | Footer) for line in lines) != 2:
        raise ReportError(f"{path.name} holds more than one header or footer; `ssmspec conform merge` puts reports together")
    before = text[: text.rstrip(b"\n").rfind(b"\n") + 1]
    if hashlib.sha256(before).hexdigest() != lines[-1].digest:
        raise ReportError(f"{path.name} was edited: its lines do not have the digest that its footer holds; run it again")
    return Report(lines[0], results, [line for line in lines if isinstance(line, Diagnosis)], lines[-1])


def file_of(path: Path) -> Path:
    """The file of a report that is given by it or by its folder."""
    return path / "report.jsonl" if path.is_dir() else path


def python_command() -> str:
    """How this suite is called again: by its name where the shell finds it under that, else as it was called."""
    if Path(sys.argv[0]).stem != "ssmspec":
        return "python -m conformance"
    found = shutil.which("ssmspec")
    here = found is not None and Path(found).resolve() == Path(sys.argv[0]).resolve()
    return f"{'ssmspec' if here else shlex.quote(sys.argv[0])} conform"
