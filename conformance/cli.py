"""`ssmspec conform`: run the suite on an adapter, list its cases, show a report again."""

import json
import re
import secrets
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from ssmspec_ref.contract import Adapter
from ssmspec_ref.errors import OptionError
from ssmspec_ref.options import files
from ssmspec_ref.options.typed import Typed
from ssmspec_ref.options.words import one_of, shard_of

from . import starting
from .diagnose.dump import dump as write_case
from .engines import cli as engines
from .errors import ConformanceError
from .explain import commands
from .formats.document import schema
from .formats.output import HELP as FORMATS
from .formats.output import MADE, Format
from .isolation.parallel import of_a_worker, parallel
from .judge.verdict import OTHER, Judgement
from .on_ray import options
from .on_ray.crew import Crew
from .on_ray.judges import OnRay, declared
from .progress.folder import LOCK, RunFolder
from .progress.folder import REPORT as REPORT_FILE
from .progress.resume import Kept, read_kept
from .progress.watch import Watch, progress_bar
from .refusal import BROKEN, FAILED, INTERRUPTED, Refusing, broke, refused
from .report import artefacts
from .report.activity import not_exercised
from .report.matrix import show
from .report.stream import Header, Result, header, read_report
from .run.again import command, path_of
from .run.known import read_known
from .run.load import ours
from .run.open_adapters import Opening
from .run.plan import Job, Selection, plan
from .run.pool import Pool
from .run.process import TIMEOUT
from .run.results import EXPLAIN, FULL, Setting, rerun
from .run.runner import BAD, Alone, Outcome
from .run.runner import run as run_plan
from .settings import FromSettings
from .starting import ADAPTER, DAY, DEVICE, PROGRAMS
from .suite import find
from .suite.specification import TIERS
from .trying import command as trying

app = typer.Typer(
    cls=Refusing,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
    help="Test an implementation against the float64 reference.",
)


SAFE = re.compile(r"[^\w.-]+")
"""Characters that are replaced in a folder's name."""
FOLDER, OF_A_CASE, OF_FAILED = Path("conformance-report"), "case", "failed"
REPORT = f"Folder for the report. Default: {FOLDER}; with --case {FOLDER / OF_A_CASE}."
DUMP = "Save the case of --case, or the smallest case of each failure, in this folder: an npz and a script that loads it."
SEED = "Seed of the inputs with which some cases are called again. Default: random."
AGAIN = (
    f"Run what failed or stayed unknown in the last run into the report folder; the report goes to its folder {OF_FAILED}."
)
KEEP = "With --resume: do not run again what had passed. For an adapter that you trust: its process can write to the report."
FIRST = "Stop at the first case that fails or stays unknown."
MOST = "Stop after this many cases that failed or stayed unknown."
EXPLAINED = "What to explain of a failure: none, quick (its smallest case and first wrong value) or full (also the cause)."
MEMORY = "Memory limit in GiB of the run, which its workers share. Default: 0.8 of the machine's memory."
JOBS = "Parallel processes. Each starts a worker for each adapter. Default: as many as there are cores, memory and cases for."


def _explain(value: str) -> str:
    return one_of("--explain", value, EXPLAIN)


def _shard(value: str) -> str:
    shard_of(value)
    return value


@app.command(cls=FromSettings)
def run(
    context: typer.Context,
    adapter: Annotated[list[str] | None, typer.Option(help=ADAPTER)] = None,
    program: Annotated[list[str] | None, typer.Option(help=PROGRAMS)] = None,
    tier: Annotated[
        str, typer.Option(callback=commands.tier, help="smoke (under 30 s), standard or deep (hours).")
    ] = "standard",
    subject: Annotated[str, typer.Option(help="Only these subjects; a pattern such as 'qwen3*'.")] = "*",
    operation: Annotated[str, typer.Option(help="Only these operations; a pattern such as 'ssd.*'.")] = "*",
    case: Annotated[str | None, typer.Option(help="One case, by its id.")] = None,
    before: Annotated[list[str] | None, typer.Option(help="A case to run before --case. May be repeated.")] = None,
    report: Annotated[Path | None, typer.Option(help=REPORT)] = None,
    known: Annotated[Path | None, typer.Option(help="List of known failures, instead of the one that ships.")] = None,
    device: Annotated[str, typer.Option(help=DEVICE)] = "cpu",
    jobs: Annotated[int | None, typer.Option(min=1, help=JOBS)] = None,
    timeout: Annotated[
        float, typer.Option(min=0.1, max=DAY, help="Time limit of one call of the implementation, in seconds.")
    ] = TIMEOUT,
    memory: Annotated[float | None, typer.Option(min=0.1, help=MEMORY)] = None,
    in_process: Annotated[
        bool, typer.Option("--in-process", help="Call the implementation in this process, for debuggers.")
    ] = False,
    seed: Annotated[int | None, typer.Option(min=0, help=SEED)] = None,
    dump: Annotated[Path | None, typer.Option(help=DUMP)] = None,
    failed: Annotated[bool, typer.Option("--failed", help=AGAIN)] = False,
    first: Annotated[bool, typer.Option("-x", help=FIRST)] = False,
    max_failures: Annotated[int | None, typer.Option(min=1, help=MOST)] = None,
    explain: Annotated[str, typer.Option(callback=_explain, help=EXPLAINED)] = FULL,
    shard: Annotated[str, typer.Option(callback=_shard, help="Run one shard of the cases, such as 2of4.")] = "1of1",
    ray: options.Address = None,
    ray_parts: Annotated[int, typer.Option(min=1, help="Shards of each subject.", rich_help_panel=options.PANEL)] = 1,
    ray_cpus: options.Cpus = 1.0,
    ray_gpus: options.Gpus = None,
    ray_memory: options.Memory = 0.0,
    ray_tries: options.Tries = 3,
    ray_wait: options.Wait = 600.0,
    ray_ship: options.Ship = None,
    ray_mixed: options.Mixed = False,
    output_format: Annotated[Format, typer.Option(help=FORMATS)] = Format.text,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the unfinished run in the report folder.")] = False,
    keep_passed: Annotated[bool, typer.Option("--keep-passed", help=KEEP)] = False,
) -> None:
    """Run the suite and print the matrix. Exit code 1: a case failed or stayed unknown; 3: the suite itself broke.

    Each adapter runs in its own process. A case that hangs, crashes or prints fails, and the run continues.
    """
    progress = Console(stderr=True)
    selection = Selection(tier, subject, operation, case, tuple(before or ()), shard_of(shard))
    typed = Typed(context)
    adapter, program = _named(typed, adapter, program)
    report = (report or FOLDER) / (OF_A_CASE if case and "--report" not in typed.values else "")
    jobs = 1 if in_process and "--jobs" not in typed.values else jobs
    _check(typed, selection, in_process, ray, resume)
    if failed:
        selection, seed, report = _failed(selection, seed, report)
    _check_files(report, resume, known, dump)
    owned = RunFolder(report, resume)
    try:
        share = options.share(ray, device, ray_cpus, ray_gpus, ray_memory, ray_tries, ray_wait, ray_ship, ray_mixed)
        for identity in (*([case] if case else []), *(before or ())):
            find(identity)
        read_known("", known)
        named = starting.names(adapter, program)
        opening = Opening(
            named, device, not in_process, timeout, of_a_worker(memory, len(named), elsewhere=share is not None)
        )
        with owned as folder:
            kept = read_kept(report, keep_passed) if resume else None
            ending = 1 if first else max_failures, explain
            workers = (jobs, memory), share, ray_parts
            tables = Console(stderr=output_format is not Format.text)
            outcome, ran = _judge(opening, selection, folder, known, workers, seed, (progress, tables), kept, ending)
        if output_format is not Format.text:
            typer.echo(MADE[output_format](read_report(report)), nl=False)
        if dump:
            chosen = [(subject, case)] if case else [(d.subject, d.smallest) for d in outcome.diagnoses]
            for path in _dumped(opening, chosen, dump):
                progress.print(f"{path} is written", soft_wrap=True, highlight=False, markup=False)
    except ConformanceError as error:
        raise refused(error) from error
    except (typer.BadParameter, OptionError):
        raise
    except KeyboardInterrupt as error:
        progress.print(f"interrupted; {owned.state}", soft_wrap=True, highlight=False, markup=False)
        raise typer.Exit(INTERRUPTED) from error
    except Exception as error:
        raise broke(error) from error
    if outcome.broke:
        raise typer.Exit(BROKEN)
    if not (outcome.green and ran):
        raise typer.Exit(FAILED)


def _check(typed: Typed, selection: Selection, in_process: bool, ray: str | None, resume: bool) -> None:
    """Raises: OptionError for options that would be ignored."""
    if not selection.case:
        typed.unused(["--before"], "it names what runs before one case", "give --case")
    else:
        typed.unused(["--tier", "--shard", "--failed"], "--case names the one case to run")
    if "--failed" in typed.values:
        typed.unused(["--tier", "--shard", "--resume"], "--failed runs what failed in the last report", "omit --failed")
    if "-x" in typed.values:
        typed.unused(["--max-failures"], "-x stops at the first failure", "omit -x")
    if in_process:
        typed.unused(["--timeout", "--memory"], "--in-process calls the implementation without a watch over it")
    if not resume:
        typed.unused(["--keep-passed"], "no run is continued", "give --resume")
    if ray is None:
        typed.unused([*options.NAMES, "--ray-parts"], "no cluster is named", "give --ray ADDRESS")
    else:
        typed.unused(["--jobs", "--in-process"], "--ray runs each shard as a task of the cluster")
        typed.unused(["-x", "--max-failures"], "a shard that runs on a cluster is not stopped", "omit --ray")
        typed.unused(["--dump"], "it calls the implementation on this machine, and --ray on others", "omit --ray")


def _named(typed: Typed, adapter: list[str] | None, program: list[str] | None) -> tuple[list[str] | None, list[str] | None]:
    """The adapters and programs to test: if one of the options is typed, it replaces both of the settings."""
    if not {"--adapter", "--program"} & typed.values.keys():
        return adapter, program
    return typed.values.get("--adapter"), typed.values.get("--program")


def _failed(selection: Selection, seed: int | None, folder: Path) -> tuple[Selection, int | None, Path]:
    """What failed in the last run into this folder, the seed that it had, and the folder of this run's report.

    Raises: OptionError if there is no such run, or nothing failed in it.
    """
    found = [below for below in (folder / OF_FAILED, folder) if (below / REPORT_FILE).exists()]
    if not found:
        raise OptionError(f"--failed finds no report in {folder}; omit it, or name the folder with --report")
    try:
        last = read_report(max(found, key=lambda below: (below / REPORT_FILE).stat().st_mtime))
    except ConformanceError as error:
        raise refused(error) from error
    again = tuple((r.adapter, r.subject, r.case) for r in last.results if r.verdict in BAD and r.case and r.operation)
    if not again:
        raise OptionError(f"--failed: no case failed or stayed unknown in the last run into {folder}; omit it to run all")
    return (
        replace(selection, failed=again),
        seed if seed is not None else next(iter(last.header.seeds), None),
        folder / OF_FAILED,
    )


def _check_files(report: Path, resume: bool, known: Path | None, dump: Path | None) -> None:
    """Raises: OptionError for files that cannot be read or written, or a run to continue that is not there."""
    files.folder("--report", report)
    files.folder("--dump", dump)
    if known is not None:
        files.readable("--known", known)
    if resume and not any((report / name).exists() for name in (REPORT_FILE, LOCK)):
        raise OptionError(f"--resume finds no run in {report}; omit it, or name the folder with --report")


def _dumped(opening: Opening, chosen: list[tuple[str, str]], folder: Path) -> Iterator[Path]:
    """Write the inputs, expected values and current outputs of cases to files."""
    with opening.open() as adapters:
        for subject, case in dict.fromkeys(chosen):
            jobs, _ = plan(adapters, Selection(subject=subject, case=case))
            for job in jobs:
                below = folder if len(chosen) == 1 and len(jobs) == 1 else folder / SAFE.sub("-", job.subject.name)
                yield write_case(below, job.specification, job.capability, job.case)


def _judge(
    opening: Opening,
    selection: Selection,
    folder: RunFolder,
    known: Path | None,
    workers: tuple[tuple[int | None, float | None], options.Share | None, int],
    seed: int | None,
    consoles: tuple[Console, Console],
    kept: Kept | None,
    ending: tuple[int | None, str],
) -> tuple[Outcome, bool]:
    """Run a plan. Returns the outcome, and whether it had any case (a shard may have none). `workers` are local processes and
    the memory of the run, or a share of a cluster and the number of shards of each subject there; `kept` is of the run that
    is continued; `ending` says after how many failures the run stops, and how much of them is explained; `consoles` are for
    progress and for tables."""
    progress, tables = consoles
    asked, share, parts = workers
    most, explain = ending
    progress.print(f"loading {', '.join(opening.names)}", style="dim", highlight=False, markup=False)
    with _opened(opening, share, progress) as (adapters, imported, crew):
        drawn = seed if seed is not None else kept.seed if kept else _drawn()
        selection = replace(selection, seed=drawn)
        jobs, left_out = plan(adapters, selection)
        if kept:
            kept = kept.of(jobs)
            progress.print(_resumed(kept), highlight=False, soft_wrap=True)
        lists = {made.name: read_known(made.name if ours(given) else "", known) for given, made in adapters.items()}
        paths = {name: path_of(name) for name in opening.names}
        setting = Setting(lists, opening.device, drawn, paths=paths, shrinks=selection.case is None, explain=explain)
        head = _head(adapters, imported, selection, setting, kept)
        found = replace(opening, names=tuple(adapters))
        one = OnRay(crew, found, selection, setting, parts) if crew else Alone(setting)
        local = None if crew else parallel(*asked, len(jobs), len(adapters), opening.device)
        if local and local.why:
            progress.print(local.why, highlight=False, soft_wrap=True)
        pool = (
            Pool(local.count, replace(found, memory=local.memory), selection, setting)
            if local and local.count > 1
            else nullcontext(one)
        )
        with pool as judges, progress_bar(progress) as bar:
            folder.begin(head, kept.results.values() if kept else ())
            if crew:
                crew.note(folder.path, folder.resuming)
            whole = selection.whole and selection.tier != TIERS[0]
            watch = Watch(folder.add, len(jobs) - (len(kept.results) if kept else 0), bar)

            idle = not_exercised if selection.case is None and not head.shard else lambda results: []

            def judged_all(results: list[Result]) -> None:
                watch.table(tables, [*results, *idle(results)])

            earlier = _earlier(kept, setting)
            outcome = run_plan(jobs, left_out, setting, watch, whole, judges, earlier, most, judged_all)
        outcome.results += idle(outcome.results)
        folder.finish(outcome.results, outcome.diagnoses, artefacts.write)
    where = f"{folder.path / 'report.jsonl'}, page: {folder.path / 'report.html'}"
    show(tables, head, outcome.results, outcome.diagnoses, where, watch.tabled, _full(folder.path))
    return outcome, bool(jobs) or bool(head.shard)


@contextmanager
def _opened(
    opening: Opening, share: options.Share | None, progress: Console
) -> Iterator[tuple[dict[str, Adapter], dict[str, str], Crew | None]]:
    """The adapters of a run, the packages that they import, and the workers of a cluster, if there is one."""
    if share is None:
        with opening.open() as adapters:
            yield adapters, Opening.versions(adapters.values()), None
        return
    with Crew(share, opening.names, lambda text: progress.print(f"ray: {text}", style="dim", markup=False)) as crew:
        yield *declared(crew, opening), crew


def _head(
    adapters: dict[str, Adapter], imported: dict[str, str], selection: Selection, setting: Setting, kept: Kept | None
) -> Header:
    """The header of a run. Raises: ReportError if the run to continue had other settings."""
    shard = "" if selection.shard == (1, 1) else "of".join(map(str, selection.shard))
    versions = {made.name: made.version for made in adapters.values()}
    head = header(selection.tier, versions, setting.device, shard, (setting.seed,), selection.only, imported)
    return kept.check(head) if kept else head


def _resumed(kept: Kept) -> str:
    """What a resumed run keeps."""
    hint = " (--keep-passed keeps what passed)" if kept.again else ""
    return f"of the interrupted run: {len(kept.results)} kept, {kept.again} run again{hint}"


def _earlier(kept: Kept | None, setting: Setting) -> Callable[[Job], tuple[Judgement, float] | None]:
    """The judgements of the run that is continued."""

    def judgement(job: Job) -> tuple[Judgement, float] | None:
        return kept.judgement(job, rerun(job, job.identity, setting, setting.seed)) if kept else None

    return judgement


def _drawn() -> int:
    """A random seed that no implementation can know at import, and that no lookup table contains."""
    return OTHER + secrets.randbelow(2**31)


@app.command(name="report")
def show_report(
    path: artefacts.Path_,
    full: Annotated[bool, typer.Option("--full", help="Print every line of a failure, not only the first ones.")] = False,
    output_format: Annotated[Format, typer.Option(help=FORMATS)] = Format.text,
) -> None:
    """Print a report again. A truncated or edited report is refused."""
    try:
        read = read_report(path)
    except (ConformanceError, OSError) as error:
        raise refused(error) from error
    if output_format is not Format.text:
        typer.echo(MADE[output_format](read), nl=False)
        return
    show(Console(), read.header, read.results, read.diagnoses, str(path), folded="" if full else _full(path))
    if told := artefacts.foreign_badge(path, read):
        Console(stderr=True).print(Text(told, style="yellow"), soft_wrap=True)


def _full(path: Path) -> str:
    """The command that prints every line of a report's failures."""
    return f"{command()} report {shlex.quote(str(path))} --full"


@app.command(name="schema")
def show_schema() -> None:
    """Print the JSON schema of the lines of report.jsonl."""
    typer.echo(json.dumps(schema(), indent=1))


artefacts.register(app)
commands.register(app)
starting.register(app)
trying.register(app)
engines.register(app)
