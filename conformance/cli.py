"""`ssmspec conform`: run the suite on an adapter, list its cases, show a report again."""

from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ssmspec_ref.contract import Adapter, Limits

from .errors import AdapterUnavailable, ConformanceError
from .interpreter.device import placed
from .known import read_known
from .load import load
from .matrix import show
from .plan import Job, Selection, plan
from .report import Writer, header, read_report
from .run import run as run_plan
from .suite import SPECIFICATIONS
from .suite.specification import TIERS

app = typer.Typer(
    no_args_is_help=True, pretty_exceptions_enable=False, help="Judge an implementation against the float64 reference."
)
DEFAULT = ("reference", "transformers")
FAILED, REFUSED = 1, 2
"""Exit codes: a case failed or stayed unknown; the command could not be carried out."""


def _tier(value: str) -> str:
    if value not in TIERS:
        raise typer.BadParameter(f"{value!r} is no tier; give one of {', '.join(TIERS)}")
    return value


@app.command()
def run(
    adapter: Annotated[list[str] | None, typer.Option(help="An adapter that ships, or package.module:factory.")] = None,
    tier: Annotated[str, typer.Option(callback=_tier, help="smoke (under 30 s) or standard.")] = "standard",
    subject: Annotated[str, typer.Option(help="Only these subjects; a pattern.")] = "*",
    operation: Annotated[str, typer.Option(help="Only these operations; a pattern such as 'ssd.*'.")] = "*",
    case: Annotated[str | None, typer.Option(help="One case, by its id.")] = None,
    report: Annotated[Path, typer.Option(help="Folder for the report.")] = Path("conformance-report"),
    known: Annotated[Path | None, typer.Option(help="A list of known failures instead of the one that ships.")] = None,
    device: Annotated[
        str, typer.Option(help="Where the implementation computes: cpu, cuda, interpreter (Triton's).")
    ] = "cpu",
) -> None:
    """Run the suite and print the matrix. Exits with 1 if a case fails or stays unknown."""
    console, progress = Console(), Console(stderr=True)
    selection = Selection(tier, subject, operation, case)
    try:
        with placed(device) as place:
            green = _judge(_load(adapter, place, progress), selection, report, known, device, console, progress)
    except ConformanceError as error:
        progress.print(f"[red]{type(error).__name__}[/red]: {error}", soft_wrap=True)
        raise typer.Exit(REFUSED) from error
    if not green:
        raise typer.Exit(FAILED)


def _judge(
    adapters: dict[str, Adapter],
    selection: Selection,
    report: Path,
    known: Path | None,
    device: str,
    console: Console,
    progress: Console,
) -> bool:
    jobs, left_out = plan(adapters, selection)
    lists = {made.name: read_known(made.name, known) for made in adapters.values()}
    report.mkdir(parents=True, exist_ok=True)
    head = header(selection.tier, {made.name: made.version for made in adapters.values()}, device)
    with (report / "report.jsonl").open("w", encoding="utf-8") as stream, _bar(progress) as bar:
        writer = Writer(stream, head)
        outcome = run_plan(_watched(jobs, bar), left_out, lists, writer.add, selection.whole and selection.tier == TIERS[-1])
        writer.close()
    show(console, head, outcome.results, outcome.diagnoses, str(report / "report.jsonl"))
    return outcome.green


@app.command(name="list")
def list_cases(
    tier: Annotated[str, typer.Option(callback=_tier)] = "smoke",
    operation: Annotated[str, typer.Option(help="Only these operations; a pattern.")] = "*",
) -> None:
    """List the cases of a tier, with what each is there for."""
    console = Console(soft_wrap=True, highlight=False)
    for specification in SPECIFICATIONS:
        if fnmatchcase(specification.operation, operation):
            for case in specification.cases(tier, Limits()):
                console.print(f"{specification.identify(case)}  [dim]{specification.source(case)}[/dim]")


@app.command(name="report")
def show_report(path: Annotated[Path, typer.Argument(help="A report.jsonl.")]) -> None:
    """Show a report again; a report that was cut off or edited is refused."""
    try:
        read = read_report(path)
    except (ConformanceError, OSError) as error:
        Console(stderr=True).print(f"[red]{type(error).__name__}[/red]: {error}", soft_wrap=True)
        raise typer.Exit(REFUSED) from error
    show(Console(), read.header, read.results, read.diagnoses, str(path))


def _load(names: list[str] | None, device: str, console: Console) -> dict[str, Adapter]:
    """The adapters asked for; without names, those that ship and whose implementation is installed."""
    if names:
        return {name: load(name, device) for name in names}
    found = {}
    for name in DEFAULT:
        try:
            found[name] = load(name, device)
        except AdapterUnavailable as error:
            console.print(f"[yellow]left out[/yellow]: {error}", soft_wrap=True)
    return found


def _bar(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True)


def _watched(jobs: list[Job], bar: Progress) -> Iterator[Job]:
    """The jobs, with progress: a bar on a terminal, otherwise a line for each operation of a subject."""
    task = bar.add_task("", total=len(jobs))
    said = ""
    for done, job in enumerate(jobs):
        now = f"{job.adapter.name}: {job.subject.name}  {job.case.operation}"
        if now != said and not bar.console.is_terminal:
            bar.console.print(f"{done}/{len(jobs)}  {now}", soft_wrap=True, highlight=False)
        said = now
        bar.update(task, description=now)
        yield job
        bar.advance(task)
    bar.update(task, description="looking for the smallest case of each failure", total=None)
