"""Files made from a report, and the commands for them: page, JUnit, badge, comparison, merging shards."""

from datetime import date, timedelta
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from ssmspec_ref.errors import OptionError
from ssmspec_ref.options import files as options

from ..errors import ConformanceError, ReportError
from ..progress import files
from ..progress.folder import publish
from ..refusal import FAILED, refused
from ..run.known import read_known
from . import compare as comparing
from . import merge as merging
from .badge import badge, read
from .junit import junit
from .listing import listing
from .page import comparison, page
from .stream import Report, file_of, read_report, unwritable

DAYS = 90
"""How long an entry of a new list of known failures holds."""
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
    app.command(name="known")(known)


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
    html: Annotated[Path | None, typer.Option(help="Also write the comparison as a page into this file.")] = None,
) -> None:
    """Compare two reports. Exits with 1 if a case broke or is no longer run."""
    if html is not None:
        options.writable("--html", html, parents=True, whole=True)
    old, new = _read(before), _read(after)
    found = comparing.compare(old, new, factor)
    if html is not None:
        html.parent.mkdir(parents=True, exist_ok=True)
        files.write(html, comparison(found, old, new))
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


def known(
    report: Path_,
    write: Annotated[Path | None, typer.Option(help="Write the list into this new file, instead of printing it.")] = None,
    link: Annotated[str, typer.Option(help="Where the failures are tracked, such as the address of an issue.")] = "",
    expires: Annotated[str, typer.Option(help=f"The last day of the entries. Default: in {DAYS} days.")] = "",
) -> None:
    """Make a list of known failures from what failed in a report, for --known."""
    if write is not None:
        options.writable("--write", write)
        if write.exists():
            raise OptionError(f"--write {write} exists, and may hold reasons of yours; name a new file")
    last, whole = _day(expires), _read(report)
    try:
        made = listing(whole, link, last)
    except ConformanceError as error:
        raise refused(error) from error
    if write is None:
        typer.echo(made.text, nl=False)
    else:
        files.write(write, made.text)
    told = f"{made.entries} entries{f' are written to {write}' if write else ''}; they expire on {last}"
    told += f"; not listed: {made.drawn} cases of the seed, which another run does not have" if made.drawn else ""
    told += f"; not listed: {made.unknown} cases that stayed unknown, which are never known failures" if made.unknown else ""
    Console(stderr=True).print(Text(told), soft_wrap=True)


def _day(given: str) -> date:
    """The day on which entries expire. Raises: OptionError for one that is no day, or is over."""
    if not given:
        return date.today() + timedelta(days=DAYS)
    try:
        day = date.fromisoformat(given)
    except ValueError as error:
        raise OptionError(f"--expires is {given!r}; it must be a day such as {date.today().isoformat()}") from error
    if day < date.today():
        raise OptionError(f"--expires is {given}, which is over; give today or a later day")
    return day


def _read(path: Path) -> Report:
    try:
        return read_report(path)
    except ConformanceError as error:
        raise refused(error) from error
