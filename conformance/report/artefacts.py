"""Files made from a report, and the commands for them: page, JUnit, badge, comparison, merging shards."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ..errors import ConformanceError, ReportError
from ..progress import files
from ..progress.folder import publish
from ..refusal import FAILED, refused
from ..run.known import read_known
from . import compare as comparing
from . import merge as merging
from .badge import badge, read
from .junit import junit
from .page import page
from .stream import Report, file_of, read_report, unwritable

REPORT = "A report.jsonl, or its folder."
Path_ = Annotated[Path, typer.Argument(help=REPORT)]


def write(folder: Path, report: Report | None = None) -> list[Path]:
    """Write report.html, junit.xml and badge.svg beside a report.jsonl. The badge, which most people look at, comes last.

    Raises: ReportError; OSError.
    """
    whole = report or read_report(folder)
    made = {"report.html": page(whole), "junit.xml": junit(whole), "badge.svg": badge(whole)}
    for name, text in made.items():
        files.write(folder / name, text)
    return [folder / name for name in made]


def foreign_badge(report: Path, whole: Report) -> str:
    """What is wrong with the badge beside a report; "" if it is right or missing."""
    path = file_of(report).with_name("badge.svg")
    try:
        digest = read(files.read(path).decode(errors="replace"))[1]
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"{path.name} cannot be read ({error.strerror}); `ssmspec conform page` writes it again"
    except ReportError as error:
        return f"{path.name} belongs to another report: {error}"
    return (
        ""
        if digest == whole.footer.digest
        else f"{path.name} belongs to another report; `ssmspec conform page` writes it again"
    )


def register(app: typer.Typer) -> None:
    """Add the commands to `ssmspec conform`."""
    app.command(name="page")(make)
    app.command(name="compare")(compare)
    app.command(name="merge")(merge)


def make(report: Path_) -> None:
    """Write the page, JUnit and the badge of a report beside it."""
    whole = _read(report)
    try:
        made = write(file_of(report).parent, whole)
    except OSError as error:
        raise refused(unwritable(report, error)) from error
    for path in made:
        Console().print(str(path), soft_wrap=True, highlight=False)


def compare(
    before: Path_,
    after: Path_,
    factor: Annotated[
        float, typer.Option(min=1, help="Report outputs whose error grew by more than this factor, relative to its bound.")
    ] = comparing.FACTOR,
) -> None:
    """Compare two reports. Exits with 1 if a case broke or is no longer run."""
    old, new = _read(before), _read(after)
    found = comparing.compare(old, new, factor)
    Console().print(comparing.shown(found, old, new), soft_wrap=True, highlight=False)
    if found.worse:
        raise typer.Exit(FAILED)


def merge(
    folder: Annotated[Path, typer.Argument(help="Folder for the merged report.")],
    parts: Annotated[list[Path], typer.Argument(help="The report.jsonl of every shard, or its folder.")],
    known: Annotated[Path | None, typer.Option(help="List of known failures, instead of the one that ships.")] = None,
) -> None:
    """Merge the reports of shards. Exits with 1 if a case failed or stayed unknown, or a known failure matches no case."""
    reports = [_read(part) for part in parts]
    try:
        lists = {name: read_known(name, known) for report in reports for name in report.header.adapters}
        merged = merging.merge(reports, [str(part) for part in parts], lists)
        footer = publish(folder, merged.header, merged.results, merged.diagnoses, write).footer
    except ConformanceError as error:
        raise refused(error) from error
    counts = ", ".join(f"{count} {word}" for word, count in footer.verdicts.items())
    Console().print(f"{counts}  {folder / 'report.jsonl'}", soft_wrap=True, highlight=False)
    if any(footer.verdicts.get(word) for word in ("fail", "unknown", "not-run")):
        raise typer.Exit(FAILED)


def _read(path: Path) -> Report:
    try:
        return read_report(path)
    except ConformanceError as error:
        raise refused(error) from error
