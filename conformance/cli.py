"""`ssmspec conform`: run the suite on an adapter, list its cases, show a report again."""

import secrets
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ssmspec_ref.contract import OPERATIONS, Adapter, Limits

from . import artefacts, starting
from .errors import ConformanceError, UnknownCase
from .judge import OTHER
from .known import read_known
from .matrix import show
from .opening import DEFAULT, Opening
from .plan import Job, Selection, plan
from .pool import Pool
from .process import TIMEOUT
from .refusal import FAILED, INTERRUPTED, refused
from .report import Result, Writer, header, opened, read_report
from .run import Alone, Judges, Setting
from .run import run as run_plan
from .starting import ADAPTER, DEVICE, PROGRAMS
from .suite import SPECIFICATIONS
from .suite.specification import TIERS

app = typer.Typer(
    no_args_is_help=True, pretty_exceptions_enable=False, help="Judge an implementation against the float64 reference."
)


FOLDER, OF_A_CASE = Path("conformance-report"), "case"
REPORT = f"Folder for the report; else {FOLDER}, of one case {FOLDER / OF_A_CASE}."


def _tier(value: str) -> str:
    if value not in TIERS:
        raise typer.BadParameter(f"{value!r} is no tier; give one of {', '.join(TIERS)}")
    return value


def _shard(value: str) -> str:
    part, _, parts = value.partition("/")
    if not (part.isdecimal() and parts.isdecimal() and 1 <= int(part) <= int(parts)):
        raise typer.BadParameter(f"{value!r} is no shard; give part/parts, such as 2/4")
    return value


@app.command()
def run(
    adapter: Annotated[list[str] | None, typer.Option(help=ADAPTER)] = None,
    program: Annotated[list[str] | None, typer.Option(help=PROGRAMS)] = None,
    tier: Annotated[str, typer.Option(callback=_tier, help="smoke (under 30 s) or standard.")] = "standard",
    subject: Annotated[str, typer.Option(help="Only these subjects; a pattern.")] = "*",
    operation: Annotated[str, typer.Option(help="Only these operations; a pattern such as 'ssd.*'.")] = "*",
    case: Annotated[str | None, typer.Option(help="One case, by its id.")] = None,
    report: Annotated[Path | None, typer.Option(help=REPORT)] = None,
    known: Annotated[Path | None, typer.Option(help="A list of known failures instead of the one that ships.")] = None,
    device: Annotated[str, typer.Option(help=DEVICE)] = "cpu",
    jobs: Annotated[int, typer.Option(min=1, help="Processes that judge, each with a worker for each adapter.")] = 1,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds for one call of the implementation.")] = TIMEOUT,
    in_process: Annotated[bool, typer.Option("--in-process", help="Call it in this process, for debuggers.")] = False,
    seed: Annotated[int | None, typer.Option(min=0, help="The seed of the inputs that come second; else drawn.")] = None,
    shard: Annotated[str, typer.Option(callback=_shard, help="Judge one part of the cases, such as 2/4.")] = "1/1",
) -> None:
    """Run the suite and print the matrix. Exits with 1 if a case fails or stays unknown.

    Every adapter is called in a process of its own: what hangs, crashes or prints there fails its case, and the run goes on.
    """
    console, progress = Console(), Console(stderr=True)
    part, parts = map(int, shard.split("/"))
    selection = Selection(tier, subject, operation, case, (part, parts))
    report = report or (FOLDER / OF_A_CASE if case else FOLDER)
    try:
        opening = Opening(starting.names(adapter, program), device, not in_process, timeout)
        green = _judge(opening, selection, report, known, jobs, seed, console, progress)
    except ConformanceError as error:
        raise refused(error) from error
    except KeyboardInterrupt as error:
        progress.print(f"interrupted; the report in {report} is not whole", soft_wrap=True, highlight=False, markup=False)
        raise typer.Exit(INTERRUPTED) from error
    if not green:
        raise typer.Exit(FAILED)


def _judge(
    opening: Opening,
    selection: Selection,
    report: Path,
    known: Path | None,
    count: int,
    seed: int | None,
    console: Console,
    progress: Console,
) -> bool:
    def missing(error: ConformanceError) -> None:
        progress.print(f"[yellow]left out[/yellow]: {escape(str(error))}", soft_wrap=True)

    progress.print(f"loading {', '.join(opening.names or DEFAULT)}", style="dim", highlight=False, markup=False)
    with opening.open(missing) as adapters:
        jobs, left_out = plan(adapters, selection)
        lists = {made.name: read_known(made.name, known) for made in adapters.values()}
        setting = Setting(lists, opening.device, _drawn() if seed is None else seed)
        progress.print(f"inputs that come second: --seed {setting.seed}", style="dim", highlight=False)
        found = replace(opening, names=tuple(adapters))
        pool = Pool(count, found, selection, setting, jobs) if count > 1 else nullcontext(Alone(setting))
        with pool as judges:
            return _written(adapters, jobs, left_out, selection, setting, judges, report, console, progress)


def _written(
    adapters: dict[str, Adapter],
    jobs: list[Job],
    left_out: list[Result],
    selection: Selection,
    setting: Setting,
    judges: Judges,
    report: Path,
    console: Console,
    progress: Console,
) -> bool:
    shard = "" if selection.shard == (1, 1) else "/".join(map(str, selection.shard))
    versions = {made.name: made.version for made in adapters.values()}
    head = header(selection.tier, versions, setting.device, shard, (setting.seed,), selection.only)
    whole = selection.whole and selection.tier == TIERS[-1]
    with opened(report) as stream, _bar(progress) as bar:
        writer = Writer(stream, head)
        outcome = run_plan(_watched(jobs, bar), left_out, setting, writer.add, whole, judges)
        writer.close()
    artefacts.write(report)
    show(console, head, outcome.results, outcome.diagnoses, f"{report / 'report.jsonl'}, page: {report / 'report.html'}")
    ran = bool(jobs) or bool(shard)  # a shard of few cases may have none
    return outcome.green and ran


def _drawn() -> int:
    """A seed that no implementation can know when it is imported, and that no table has."""
    return OTHER + secrets.randbelow(2**31)


@app.command(name="list")
def list_cases(
    tier: Annotated[str, typer.Option(callback=_tier)] = "smoke",
    operation: Annotated[str, typer.Option(help="Only these operations; a pattern.")] = "*",
) -> None:
    """List the cases of a tier, with what each is there for."""
    console = Console(soft_wrap=True, highlight=False)
    found = [specification for specification in SPECIFICATIONS if fnmatchcase(specification.operation, operation)]
    if not found:
        raise refused(UnknownCase(f"no operation is {operation!r}; the operations are {', '.join(OPERATIONS)}"))
    for specification in found:
        for case in specification.cases(tier, Limits()):
            console.print(f"{specification.identify(case)}  [dim]{specification.source(case)}[/dim]")


@app.command(name="report")
def show_report(path: artefacts.Path_) -> None:
    """Show a report again; a report that was cut off or edited is refused."""
    try:
        read = read_report(path)
    except (ConformanceError, OSError) as error:
        raise refused(error) from error
    show(Console(), read.header, read.results, read.diagnoses, str(path))


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


artefacts.register(app)
starting.register(app)
