"""`ssmspec fuzz`: hold an adapter's decoders to plain decoding, for as long as wanted."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from conformance.refusal import FAILED, REFUSED, refused
from conformance.starting import find_here

if TYPE_CHECKING:
    from .totals import Totals

app = typer.Typer(
    pretty_exceptions_enable=False, help="Draw sequences of windows without end, and compare with the reference."
)
ADAPTER = "ssmspec_fast.adapter_sequences:adapter"


def shard_of(given: str) -> tuple[int, int]:
    part, _, whole = given.partition("/")
    if not (part.isdigit() and whole.isdigit() and int(part) < int(whole)):
        raise typer.BadParameter(f"{given!r} is no share; give i/n with 0 <= i < n")
    return int(part), int(whole)


@app.callback(invoke_without_command=True)
def fuzz(
    context: typer.Context,
    adapter: Annotated[str, typer.Option(help="package.module:factory of an adapter with decodings.")] = ADAPTER,
    minutes: Annotated[float, typer.Option(help="Begin no part behind this time.")] = 2.0,
    parts: Annotated[int | None, typer.Option(help="At most so many parts.")] = None,
    examples: Annotated[int, typer.Option(help="Examples of a part.")] = 20,
    profile: Annotated[str, typer.Option(help="ci, gpu or campaign: how large examples are.")] = "campaign",
    device: Annotated[str, typer.Option(help="cpu, cuda, interpreter (Triton's).")] = "cpu",
    seed: Annotated[int, typer.Option(help="The same seed gives the same examples.")] = 0,
    shard: Annotated[str, typer.Option(help="i/n: the share of worker i of n, counted from 0.")] = "0/1",
    folder: Annotated[Path, typer.Option(help="Parts and failures; an unfinished campaign there goes on.")] = Path(
        "fuzz-report"
    ),
    database: Annotated[str | None, typer.Option(help="Shared failures: a folder, or redis://HOST:PORT/0.")] = None,
    coverage: Annotated[bool, typer.Option(help="Count the oracle's branches too; three times slower.")] = False,
) -> None:
    """Run a campaign. Exits with 1 at the first deviation, whose smallest example is saved as a program."""
    if context.invoked_subcommand is not None:
        return
    console, progress = Console(), Console(stderr=True)
    try:
        from conformance.errors import ConformanceError
        from conformance.interpreter.device import placed

        from .branches import traced
        from .campaign import Campaign, read
        from .database import DatabaseUnavailable, open_database
        from .profiles import PROFILES
        from .view import show
    except ImportError as error:
        progress.print(
            f"[red]fuzzing needs more than is installed[/red] ({error}): pip install 'ssmspec\\[fuzz]'", soft_wrap=True
        )
        raise typer.Exit(REFUSED) from error
    if profile not in PROFILES:
        raise typer.BadParameter(f"{profile!r} is no profile; give one of {', '.join(PROFILES)}")
    find_here()
    try:
        shared = open_database(database or str(folder / "examples"))
        campaign = Campaign(adapter, folder, profile, device, seed, shard_of(shard), examples, shared)
        tracing: Any = traced() if coverage else nullcontext({})
        with placed(device), tracing as branches, bar(progress) as shown:
            failure = campaign.run(minutes, parts, Watch(shown, campaign.done()))
        report = {**read([folder]), "branches": branches}
    except (ConformanceError, DatabaseUnavailable, ValueError, OSError) as error:
        raise refused(error) from error
    (folder / "report.json").write_text(json.dumps(report), encoding="utf-8")
    show(console, report)
    if failure is not None:
        saved = sorted((folder / "failures").iterdir())[-1]
        console.print(f"[red]deviates[/red]: {escape(failure.message)}\nagain: python {saved}", soft_wrap=True)
        raise typer.Exit(FAILED)


@app.command(name="report")
def show_report(
    folders: Annotated[list[Path], typer.Argument(help="The folders of all workers.")],
    markdown: Annotated[bool, typer.Option(help="As a page holds it.")] = False,
) -> None:
    """Merge the parts of several workers, and show what they reached."""
    from .campaign import read
    from .view import markdown as page
    from .view import show

    try:
        report = read(folders)
    except (ValueError, OSError) as error:
        raise refused(error) from error
    print(page(report)) if markdown else show(Console(), report)
    if report["failures"]:
        raise typer.Exit(FAILED)


@app.command(name="laws")
def hold_laws(
    adapter: Annotated[str, typer.Option(help="package.module:factory of an adapter.")] = ADAPTER,
    device: Annotated[str, typer.Option(help="cpu, cuda, interpreter (Triton's).")] = "cpu",
    seed: Annotated[int, typer.Option(help="Of the models and the tokens.")] = 0,
) -> None:
    """Ask every metamorphic law of every decoding and every recurrence. Exits with 1 where one is broken."""
    from itertools import groupby

    from conformance.errors import ConformanceError
    from conformance.interpreter.device import placed
    from conformance.load import load

    from .judge import judged

    find_here()
    asked = broken = 0
    try:
        with placed(device) as place:
            for name, rows in groupby(judged(load(adapter, place), seed), lambda row: row.law):
                verdicts = list(rows)
                wrong = [row for row in verdicts if row.wrong]
                for row in wrong:
                    print(f"BROKEN {name}, {row.of}: {row.wrong}")
                print(f"{name:<22} held {len(verdicts) - len(wrong):>4}   broken {len(wrong):>4}", flush=True)
                asked, broken = asked + len(verdicts), broken + len(wrong)
    except ConformanceError as error:
        raise refused(error) from error
    if not asked:
        print(f"{adapter} has nothing that a law can be asked of: no decodings, and no scan of a recurrence in fp32 or fp64")
        raise typer.Exit(REFUSED)
    if broken:
        raise typer.Exit(FAILED)


def bar(console: Console) -> Progress:
    return Progress(SpinnerColumn(), TimeElapsedColumn(), TextColumn("{task.description}"), console=console, transient=True)


class Watch:
    """Shows every example on a terminal, and a line for every part elsewhere."""

    def __init__(self, shown: Progress, done: list[dict[str, Any]]) -> None:
        from .totals import merged

        self.shown, self.task, self.part = shown, shown.add_task(""), -1
        self.before, self.last = merged(done), dict[str, Any]()

    def __call__(self, part: int, totals: "Totals") -> None:
        from .totals import merged
        from .view import line

        if part != self.part and self.part >= 0:
            self.before = merged([self.before, self.last])
        said = line(part, self.before, totals)
        if part != self.part and not self.shown.console.is_terminal:
            self.shown.console.print(said, soft_wrap=True, highlight=False)
        self.part, self.last = part, totals.words()
        self.shown.update(self.task, description=said)
