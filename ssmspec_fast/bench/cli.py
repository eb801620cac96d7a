"""`ssmspec bench`: what a step costs, in plain steps of the same model."""

import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from ssmspec_ref.errors import ParameterError, SpecError

from ..refusal import refused

if TYPE_CHECKING:
    from .report import Report
    from .subjects import Subject

app = typer.Typer(pretty_exceptions_enable=False, help="What a step costs, by method, window, tree and batch.")
FAILED, UNFINISHED = 1, 3
"""Exit codes: a step failed, the others stand; there was no time for all steps, run it again with the same file."""


@app.callback(invoke_without_command=True)
def bench(
    context: typer.Context,
    tiny: Annotated[
        bool, typer.Option("--tiny", help="Small models on the CPU: a rehearsal, its times mean nothing.")
    ] = False,
    papers: Annotated[bool, typer.Option("--papers", help="All steps of the papers' tables.")] = False,
    model: Annotated[str, typer.Option(help="Names of models, with commas.")] = "mamba2-2.7b",
    method: Annotated[str, typer.Option(help="Names of methods, with commas.")] = "joint,replay,buffer,snapshots,tree",
    windows: Annotated[str, typer.Option(help="Tokens of a window, root included, with commas.")] = "7",
    trees: Annotated[str, typer.Option(help="Nodes of a tree, with commas.")] = "13",
    batches: Annotated[str, typer.Option(help="Sequences at once, with commas.")] = "1",
    drafts: Annotated[str, typer.Option(help="Chains for each sequence, with commas.")] = "1",
    device: Annotated[str, typer.Option(help="cpu, cuda, ..")] = "cuda",
    out: Annotated[Path | None, typer.Option(help="A JSON file; what it holds already is not measured again.")] = None,
    seconds: Annotated[float, typer.Option(help="Begin no further step after this long.")] = 480.0,
) -> None:
    """Measure steps with random weights. The table goes to standard output."""
    console = Console(width=190)
    try:
        if tiny or papers:
            _check_alone("--tiny" if tiny else "--papers", context, tiny)
        subjects = _subjects(tiny, papers, model, method, windows, trees, batches, drafts)
        report, left = _run(subjects, "cpu" if tiny else device, out, seconds)
    except (SpecError, ModuleNotFoundError) as error:
        raise refused(error) from error
    console.print(report.table())
    for name, held in report.fits().items():
        console.print(f"{name}: t(N) in us, highest power first: " + ", ".join(f"{x:.2f}" for x in held["coefficients_us"]))
    for name, why in report.failed.items():
        console.print(f"{name} failed: {why}", markup=False)
    if report.failed:
        raise typer.Exit(FAILED)
    if left:
        console.print(f"{left} steps are left; run the command again with the same --out")
        raise typer.Exit(UNFINISHED)


def _check_alone(plan: str, context: typer.Context, tiny: bool) -> None:
    """Raises: ParameterError for an option beside a plan that names its own."""
    named = ("model", "method", "windows", "trees", "batches", "drafts", *(("papers", "device") if tiny else ()))
    given = [name for name in named if getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"]
    if given:
        raise ParameterError(f"{plan} is a plan of its own, but beside it came --{', --'.join(given)}; leave one out")


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
    """Raises: ParameterError."""
    with suppress(ValueError):
        return tuple(int(part) for part in text.split(","))
    raise ParameterError(f"{name} came as {text!r}; give whole numbers with commas between them")


def _run(subjects: "tuple[Subject, ...]", device: str, out: Path | None, seconds: float) -> "tuple[Report, int]":
    """The report, which is written behind every step, and how many steps are left. Raises: Unsupported, ParameterError."""
    import torch

    from ..cli import write_whole
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
            try:
                report.steps.append(measure(subject, model, 25 if where.type == "cuda" else 3))
            except (SpecError, RuntimeError) as error:
                report.failed[subject.name] = f"{type(error).__name__}: {error}".split("\n")[0]
            if out is not None:
                write_whole(out, report.as_json())
        del model
    return report, sum(not report.has(subject) for subject in subjects)
