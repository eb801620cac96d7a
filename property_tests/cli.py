"""`ssmspec fuzz`: tests an adapter's decoders against plain decoding, for as long as wanted."""

from contextlib import nullcontext
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from conformance.on_ray import options
from conformance.refusal import FAILED, REFUSED, Refusing, refused
from conformance.starting import find_here
from ssmspec_ref.contract import OPERATIONS
from ssmspec_ref.errors import OptionError
from ssmspec_ref.options import files
from ssmspec_ref.options.extras import installing
from ssmspec_ref.options.typed import Typed
from ssmspec_ref.options.words import nearest, one_of, shard_of

if TYPE_CHECKING:
    from .sessions.totals import Totals
    from .store.failures import Kept

app = typer.Typer(
    cls=Refusing,
    pretty_exceptions_enable=False,
    help="Test decoders with random histories of requests, against the reference.",
)
ADAPTER = "ssmspec_fast.adapters.sequences:adapter"


@app.callback(invoke_without_command=True)
def fuzz(
    context: typer.Context,
    adapter: Annotated[str, typer.Option(help="Adapter with decodings: package.module:factory.")] = ADAPTER,
    operation: Annotated[
        str | None, typer.Option(help="Fuzz these plain operations instead of decoders; a pattern such as 'ssd.*'.")
    ] = None,
    minutes: Annotated[float, typer.Option(min=0.001, help="Stop starting new batches after this many minutes.")] = 2.0,
    parts: Annotated[int | None, typer.Option(min=1, help="Maximum number of batches.")] = None,
    examples: Annotated[int, typer.Option(min=1, help="Examples per batch.")] = 20,
    profile: Annotated[str, typer.Option(help="Size of the examples: ci, gpu or campaign.")] = "campaign",
    device: Annotated[str, typer.Option(help="Device: cpu, cuda, or interpreter (Triton's).")] = "cpu",
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same examples.")] = 0,
    shard: Annotated[str, typer.Option(help="IofN: run as worker I of N, such as 2of4.")] = "1of1",
    folder: Annotated[
        Path, typer.Option(help="Folder for results and failures. An unfinished campaign in it is continued.")
    ] = Path("fuzz-report"),
    database: Annotated[
        str | None, typer.Option(help="Where workers share failures: a folder or redis://HOST:PORT/0.")
    ] = None,
    ray: options.Address = None,
    ray_cpus: options.Cpus = 1.0,
    ray_gpus: options.Gpus = None,
    ray_memory: options.Memory = 0.0,
    ray_tries: options.Tries = 3,
    ray_wait: options.Wait = 600.0,
    ray_ship: options.Ship = None,
    ray_mixed: options.Mixed = False,
    coverage: Annotated[
        bool, typer.Option(help="Also measure branch coverage of the reference; three times slower.")
    ] = False,
) -> None:
    """Run a campaign. Exits with 1 at the first failure, which is saved as a small program, and with 3 if ssmspec itself
    broke."""
    if context.invoked_subcommand is not None:
        return
    console, progress = Console(), Console(stderr=True)
    try:
        from conformance.interpreter.device import placed
        from conformance.on_ray.crew import Crew

        from .campaigns import on_ray
        from .campaigns.branches import traced
        from .campaigns.campaign import Campaign, read
        from .campaigns.operations import Operations
        from .campaigns.view import show, show_used
        from .drawing.profiles import PROFILES
        from .ending import ending
        from .store.state import finish
    except ImportError as error:
        raise OptionError(f"fuzzing needs more than is installed ({error}); {installing('fuzz')}") from error
    one_of("--profile", profile, PROFILES)
    files.folder("--folder", folder)
    typed = Typed(context)
    if operation is not None:
        if not any(fnmatchcase(name, operation) for name in OPERATIONS):
            raise OptionError(
                f"--operation is {operation!r}{nearest(operation, OPERATIONS)}; `ssmspec conform list` shows the operations"
            )
        if "--adapter" not in typed.values:
            raise OptionError("--operation needs an adapter that has it; give --adapter package.module:factory")
        typed.unused(["--ray", *options.NAMES, "--coverage"], "--operation runs in one process")
    elif ray is None:
        typed.unused(options.NAMES, "no cluster is named", "give --ray ADDRESS")
    else:
        typed.unused(["--coverage"], "it measures this process only", "omit --ray")
    find_here()
    worker, workers = shard_of(shard)
    of = worker - 1, workers
    campaign = Campaign(adapter, folder, profile, device, seed, of, examples, database)
    if operation is not None:
        plain = Operations(adapter, folder, profile, device, seed, of, examples, database, operation=operation)
        print(f"seed {seed}; the same seed gives the same cases", flush=True)
        with ending(folder):
            failure = plain.run(minutes, parts)
            report = {**read([folder]), "unfinished": []}
            finish(folder, report)
        show_used(console, report)
        tell(console, failure)
        return
    with ending(folder):
        share = options.share(ray, device, ray_cpus, ray_gpus, ray_memory, ray_tries, ray_wait, ray_ship, ray_mixed)
        tracing: Any = traced() if coverage else nullcontext({})
        if share:
            branches: dict[str, str] = {}
            with Crew(share, (adapter,), lambda text: progress.print(f"ray: {text}", style="dim", markup=False)) as crew:
                failure = on_ray.run(campaign, crew, minutes, parts)
        else:
            with placed(device), tracing as branches, bar(progress) as shown:
                failure = campaign.run(minutes, parts, Watch(shown, campaign.done()))
        report = {**read([folder]), "branches": branches, "unfinished": []}
        finish(folder, report)
    show(console, report)
    tell(console, failure)


def tell(console: Console, failure: "Kept | None") -> None:
    """Raises: typer.Exit if there is a failure."""
    if failure is not None:
        console.print(f"[red]deviates[/red]: {escape(failure.message)}\nagain: python {failure.path}", soft_wrap=True)
        raise typer.Exit(FAILED)


@app.command(name="report")
def show_report(
    folders: Annotated[list[Path], typer.Argument(help="The folders of all workers.")],
    markdown: Annotated[bool, typer.Option(help="Print Markdown.")] = False,
) -> None:
    """Merge the results of several workers. Exits with 1 for a failure, an unfinished worker or a file that cannot be
    read."""
    from .campaigns.campaign import read
    from .campaigns.view import markdown as page
    from .campaigns.view import show

    try:
        report = read(folders)
    except (ValueError, OSError) as error:
        raise refused(error) from error
    print(page(report)) if markdown else show(Console(), report)
    for failure in report["failures"] if not markdown else ():
        Console().print(f"[red]deviates[/red]: {escape(failure['message'])}", soft_wrap=True)
    if report["failures"] or report["unfinished"] or report["unread"]:
        raise typer.Exit(FAILED)


@app.command(name="laws")
def hold_laws(
    adapter: Annotated[str, typer.Option(help="Adapter: package.module:factory.")] = ADAPTER,
    device: Annotated[str, typer.Option(help="Device: cpu, cuda, or interpreter (Triton's).")] = "cpu",
    seed: Annotated[int, typer.Option(help="Seed of models and tokens.")] = 0,
) -> None:
    """Check every metamorphic law on every decoding and recurrence. Exits with 1 if one is broken."""
    from itertools import groupby

    from conformance.errors import ConformanceError
    from conformance.interpreter.device import placed
    from conformance.run.load import load

    from .laws.judge import judged

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
        print(f"{adapter} has nothing that the laws can test: no decodings, and no scan of a recurrence in fp32 or fp64")
        raise typer.Exit(REFUSED)
    if broken:
        raise typer.Exit(FAILED)


def bar(console: Console) -> Progress:
    return Progress(
        SpinnerColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


class Watch:
    """Shows every example on a terminal; prints a line per batch elsewhere."""

    def __init__(self, shown: Progress, done: list[dict[str, Any]]) -> None:
        from .sessions.totals import merged

        self.shown, self.task, self.part = shown, shown.add_task(""), -1
        self.before, self.last = merged(done), dict[str, Any]()

    def __call__(self, part: int, totals: "Totals") -> None:
        from .campaigns.view import line
        from .sessions.totals import merged

        if part != self.part and self.part >= 0:
            self.before = merged([self.before, self.last])
        said = line(part, self.before, totals)
        if part != self.part and not self.shown.console.is_terminal:
            self.shown.console.print(said, soft_wrap=True, highlight=False)
        self.part, self.last = part, totals.words()
        self.shown.update(self.task, description=said)
