"""`ssmspec bench`: the cost of a step, in plain steps of the same model."""

import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from ssmspec_ref.errors import OptionError, SpecError
from ssmspec_ref.options import files
from ssmspec_ref.options.typed import Typed

from ..cli.refusal import refused

if TYPE_CHECKING:
    from .report import Report
    from .subjects import Subject

app = typer.Typer(pretty_exceptions_enable=False, help="Time decoding steps by method, window, tree and batch.")
FAILED, UNFINISHED = 1, 3
"""Exit codes: a step failed, the others are in the file; time ran out, run it again with the same file."""
FEW = 2
"""Steps to measure before the remaining time is estimated."""
OF_A_PLAN = ("--model", "--method", "--windows", "--trees", "--batches", "--drafts")
ALONE = ("--papers", "--device")
"""Options that a plan sets itself, and further ones that --tiny sets."""


@app.callback(invoke_without_command=True)
def bench(
    context: typer.Context,
    tiny: Annotated[
        bool, typer.Option("--tiny", help="Tiny models on the CPU, to check that the command works. Ignore the times.")
    ] = False,
    papers: Annotated[bool, typer.Option("--papers", help="Every step of the papers' tables.")] = False,
    model: Annotated[str, typer.Option(help="Models, separated by commas.")] = "mamba2-2.7b",
    method: Annotated[str, typer.Option(help="Methods, separated by commas.")] = "joint,replay,buffer,snapshots,tree",
    windows: Annotated[str, typer.Option(help="Window sizes in tokens, including the root, separated by commas.")] = "7",
    trees: Annotated[str, typer.Option(help="Tree sizes in nodes, separated by commas.")] = "13",
    batches: Annotated[str, typer.Option(help="Batch sizes, separated by commas.")] = "1",
    drafts: Annotated[str, typer.Option(help="Draft chains per sequence, separated by commas.")] = "1",
    device: Annotated[str, typer.Option(help="Device: cpu, cuda, cuda:1.")] = "cuda",
    out: Annotated[
        Path | None, typer.Option(help="JSON file for the results. Steps already in it are not measured again.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=0, help="Start no new step after this many seconds.")] = 480.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Measure steps with random weights. The table goes to standard output."""
    console, progress = Console(width=190), Console(stderr=True, soft_wrap=True, highlight=False)
    try:
        plan = "--tiny" if tiny else "--papers"
        if tiny or papers:
            Typed(context).unused(OF_A_PLAN + ALONE * tiny, f"{plan} chooses its own steps", f"omit {plan}")
        files.writable("--out", out)
        subjects = _subjects(tiny, papers, model, method, windows, trees, batches, drafts)
        report, left = _run(subjects, "cpu" if tiny else device, out, seconds, progress)
    except (SpecError, ModuleNotFoundError) as error:
        raise refused(error) from error
    if as_json:
        typer.echo(report.as_json(), nl=False)
    elif tiny:
        console.print(
            f"{len(report.steps)} steps ran, {len(report.failed)} failed; times of tiny models say nothing (--json)"
        )
    else:
        console.print(report.table())
    for name, held in report.fits().items() if not (as_json or tiny) else ():
        console.print(f"{name}: t(N) in us, highest power first: " + ", ".join(f"{x:.2f}" for x in held["coefficients_us"]))
    for name, why in report.failed.items():
        (progress if as_json else console).print(f"{name} failed: {why}", markup=False)
    if report.failed:
        raise typer.Exit(FAILED)
    if left:
        progress.print(f"{left} steps are left; run the same command again to continue", markup=False)
        raise typer.Exit(UNFINISHED)


def _subjects(
    tiny: bool, papers: bool, model: str, method: str, windows: str, trees: str, batches: str, drafts: str
) -> "tuple[Subject, ...]":
    """Raises: ParameterError."""
    from .plan import TINY, Plan
    from .plan import papers as of_papers

    if tiny:
        return tuple(TINY.subjects())
    if papers:
        return of_papers()
    sizes = (_numbers(name, text) for name, text in (("windows", windows), ("trees", trees)))
    rows = (_numbers(name, text) for name, text in (("batches", batches), ("drafts", drafts)))
    return tuple(Plan(tuple(model.split(",")), tuple(method.split(",")), *sizes, *rows).subjects())


def _numbers(name: str, text: str) -> tuple[int, ...]:
    """Raises: OptionError."""
    least = 2 if name in ("windows", "trees") else 1
    with suppress(ValueError):
        numbers = tuple(int(part) for part in text.split(","))
        if min(numbers) >= least:
            return numbers
    raise OptionError(f"--{name} is {text!r}; it must be whole numbers of {least} or more, with commas between them")


def _run(
    subjects: "tuple[Subject, ...]", device: str, out: Path | None, seconds: float, progress: Console
) -> "tuple[Report, int]":
    """The report, which is saved after every step, and how many steps are left. Raises: Unsupported, ParameterError."""
    import torch

    from ..cli.generate import write_whole
    from ..device import check_device
    from .clock import copy_bytes_per_us
    from .models import random_model, weight_bytes
    from .plan import grouped
    from .report import Report, machine_of, read
    from .steps import measure

    check_device(device)
    where, began = torch.device(device), time.monotonic()
    machine = machine_of(where)
    report = read(out, machine) if out is not None and out.exists() else Report(machine)
    if report.copy_gb_s is None and where.type == "cuda":
        report.copy_gb_s = copy_bytes_per_us() / 1e3
    done = held = sum(report.has(subject) for subject in subjects)
    dtype = torch.bfloat16 if where.type == "cuda" else torch.float32
    for name, wanted in grouped(subjects).items():
        todo = [subject for subject in wanted if not report.has(subject)]
        if not todo or time.monotonic() - began > seconds:
            continue
        model = random_model(name, dtype, device)
        report.weights[name] = weight_bytes(model)
        for subject in todo:
            if time.monotonic() - began > seconds:
                break
            progress.print(_told(subject.name, done, len(subjects), done - held, time.monotonic() - began), markup=False)
            done += 1
            try:
                report.steps.append(measure(subject, model, 25 if where.type == "cuda" else 3))
            except (SpecError, RuntimeError) as error:
                report.failed[subject.name] = f"{type(error).__name__}: {error}".split("\n")[0]
            if out is not None:
                write_whole(out, report.as_json())
        del model
    return report, sum(not report.has(subject) for subject in subjects)


def _told(name: str, done: int, count: int, measured: int, seconds: float) -> str:
    """The step that begins, and an estimate of the time left, from the steps measured so far."""
    left = f", about {seconds / measured * (count - done):.0f} s left" if measured > FEW else ""
    return f"{done + 1}/{count}  {name}{left}"
