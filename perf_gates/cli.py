"""`ssmspec gates`: the cost of a change, exact counts on a CPU, ratios on a GPU."""

import json
import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from conformance.refusal import FAILED, Refusing, refused
from ssmspec_ref.errors import OptionError
from ssmspec_ref.options import files
from ssmspec_ref.options.extras import installing
from ssmspec_ref.options.typed import Typed
from ssmspec_ref.options.words import one_of

if TYPE_CHECKING:
    from .ratchet.outcome import Outcome
    from .verdicts.measured import Results
    from .verdicts.verdict import Judged

app = typer.Typer(
    cls=Refusing,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help="Speed gates: bytes, registers, measured times and ratios.",
)
RESULTS = Path(__file__).parent / "results"
PAGE = Path("docs/performance.md")
QUIET = 15.0
CHECKS = {
    "counted": ("perf_gates.static.counted",),
    "occupancy": ("perf_gates.static.occupancy",),
    "compiled": ("perf_gates.static.compiled", "--quick"),
}
"""Checks that need no GPU, each in its own process: Triton's interpreter and its compiler exclude each other."""

Folder = Annotated[Path, typer.Argument(help="Folder with the results of a run.")]


@app.command()
def check(
    only: Annotated[str, typer.Option(help="Checks, separated by commas: counted, occupancy, compiled.")] = ",".join(CHECKS),
    as_json: Annotated[bool, typer.Option("--json", help="Print all that the checks print, as JSON.")] = False,
) -> None:
    """Run the gates that need no GPU: bytes, registers, spills, shared memory, load widths, occupancy. One line each."""
    from .verdicts.gates import load

    names = only.split(",")
    for name in names:
        one_of("--only", name, CHECKS)
    need_kernels()
    gates, found = load(), []
    if not as_json:
        typer.echo(f"gates.toml: {len(gates.tables)} tables, {sum(len(t.cells) for t in gates.tables)} cells, no fault")
    for name in names:
        began = time.monotonic()
        code, lines = process(CHECKS[name], name)
        seconds = time.monotonic() - began
        found.append({"check": name, "passed": code == 0, "seconds": round(seconds, 1), "lines": lines})
        if not as_json:
            first, *more = verdict_of(lines) or ["no verdict was printed"]
            typer.echo(f"{name}: {'FAIL' if code else 'pass'} in {seconds:.0f} s: {first}")
            typer.echo("\n".join(f"  {line}" for line in more), nl=bool(more))
    if as_json:
        typer.echo(json.dumps(found))
    raise typer.Exit(0 if all(one["passed"] for one in found) else FAILED)


def verdict_of(lines: list[str]) -> list[str]:
    """The lines that a check prints after its rows: rows are JSON, or end with an empty line."""
    said = [line for line in lines if not line.startswith("{")]
    return [line for line in said[said.index("") if "" in said else 0 :] if line]


def need_kernels() -> None:
    """Exits with an error if Triton or the kernels are not installed."""
    if find_spec("triton") is None:
        raise refused(ModuleNotFoundError(f"triton is not installed here; {installing('kernels')}"))


def process(command: tuple[str, ...], called: str) -> tuple[int, list[str]]:
    """Runs a module: its exit code and its lines; prints progress every `QUIET` seconds to standard error. Triton is imported
    with its compiler, unless the module needs the interpreter."""
    root = str(Path(__file__).parent.parent)
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join([*(path for path in sys.path if path), root])
    began = last = time.monotonic()
    lines = []
    words = [sys.executable, "-m", *command]
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running:
        for line in running.stdout or ():
            lines.append(line.rstrip("\n"))
            if time.monotonic() - last > QUIET:
                last = time.monotonic()
                typer.echo(f"{called}: {len(lines)} rows after {last - began:.0f} s", err=True)
    return running.returncode, lines


@app.command()
def table(
    context: typer.Context,
    results: Folder = RESULTS,
    write: Annotated[bool, typer.Option("--write", help="Write the table into the page.")] = False,
    page: Annotated[Path, typer.Option(help="Page to write.")] = PAGE,
) -> None:
    """Print every table of the papers: their figure, the target, ours, the floor, the verdict."""
    from .report.paper_table import MADE, text
    from .verdicts.gates import load

    if write:
        files.readable("--page", page)
        files.writable("--page", page)
    else:
        Typed(context).unused(["--page"], "without --write the table is only printed", "give --write")
    gates, judged = load(), judgements(results)
    shown = text(gates, judged)
    typer.echo(shown)
    if write:
        MADE.write(page, shown)


def held(results: Path) -> "Results":
    """The parts of a run. Refused for a folder without times."""
    need_kernels()
    from .verdicts.history import NotComparableError, timed
    from .verdicts.measured import Results

    found = Results(results)
    try:
        timed(found)
    except NotComparableError as error:
        raise refused(error) from None
    return found


def judgements(results: Path) -> "list[Judged]":
    """The verdicts of all cells of the papers' tables."""
    return [j for j in outcome_of(results).judged if j.row.kernel is None]


def outcome_of(results: Path) -> "Outcome":
    """A run compared with the committed limits."""
    from .machine import kernels_hash
    from .ratchet import bars
    from .ratchet.outcome import outcome
    from .verdicts.gates import load

    found = held(results)
    return outcome(load(), found, kernels_hash(), bars.read())


@app.command()
def verdicts(
    results: Folder = RESULTS,
    tight: Annotated[bool, typer.Option("--tight", help="Also exit with 1 if a limit should be updated.")] = False,
) -> None:
    """Exit with 1 if a figure is worse than its limit, misses a target it had reached, or is unknown."""
    found = outcome_of(results)
    typer.echo("\n".join(found.lines()))
    raise typer.Exit(FAILED if found.reds or (tight and found.asks) else 0)


@app.command()
def accept(
    results: Folder = RESULTS,
    reason: Annotated[str, typer.Option(help="Why these times become the new limits.")] = "",
) -> None:
    """Take the times of a run as the new limits. Limits of unmeasured figures stay, and those of slower baselines."""
    from .machine import kernels_hash
    from .ratchet import bars
    from .ratchet.accepting import NotAcceptedError, accepted
    from .ratchet.baselines import kept
    from .verdicts.gates import load

    need_kernels()
    found, before = held(results), bars.read()
    if not reason.strip():
        raise OptionError("--reason is missing; say why these times become the new limits")
    try:
        made = accepted(load(), found, kernels_hash(), before, reason)
    except NotAcceptedError as error:
        raise refused(error) from None
    bars.write(made)
    for one in kept(load(), found, before):
        typer.echo(str(one))
    typer.echo(f"{bars.FILE}: {len(made.times)} limits, {len(made.missed)} cells miss their target")


@app.command()
def why(
    name: Annotated[str, typer.Argument(help="Part of the names of the rows, as `verdicts` prints them.")],
    results: Annotated[Path, typer.Option(help="Folder with the results of a run.")] = RESULTS,
) -> None:
    """Explain a figure: operands, files, hashes, limits, floor, reason, and the last run within its limit."""
    from .ratchet import bars
    from .ratchet.why import explained
    from .verdicts.gates import load
    from .verdicts.history import runs

    if not name.strip():
        raise OptionError("the name is empty, and part of every name; give part of the names of some rows")
    rows = [j for j in outcome_of(results).judged if name in j.row.name]
    if not rows:
        raise OptionError(f"no row has {name!r} in its name; `ssmspec gates table` and `verdicts` print the rows")
    read, earlier = held(results), runs()
    for j in rows:
        typer.echo("\n".join(explained(j, load(), read, bars.read(), earlier)))


@app.command()
def keep(
    context: typer.Context,
    history: Annotated[Path, typer.Option("--history", envvar="SSMSPEC_GATES_HISTORY", help="Your file of saved runs.")],
    results: Folder = RESULTS,
    accept: Annotated[bool, typer.Option("--accept", help="Save the run although it regressed.")] = False,
    reason: Annotated[str, typer.Option(help="Why it is saved although it regressed.")] = "",
) -> None:
    """Add a run to a history. One that is slower than the best of the last runs is not kept without --accept and a reason."""
    from .verdicts.gates import load
    from .verdicts.history import NotComparableError, PlaceError, regressions, run_of, runs
    from .verdicts.history import keep as kept
    from .verdicts.measured import Results

    if accept and not reason.strip():
        raise OptionError("--accept needs --reason: why is a run with regressions saved?")
    if not accept:
        Typed(context).unused(["--reason"], "it explains --accept", "give --accept")
    files.writable("--history", history, parents=True)
    limits = load().limits
    try:
        run, earlier = run_of(Results(results)), runs(history)
        slower = list(regressions(earlier, run, limits)) if earlier else []
        for change in slower:
            typer.echo(
                f"FAIL: {change.name}: {change.before:.2f} -> {change.after:.2f} us, {change.ratio:.3f}, p {change.p:.1g}"
            )
        if slower and not accept:
            typer.echo(f"{run.name}: not saved, {len(slower)} regressions; --accept --reason saves it")
            raise typer.Exit(FAILED)
        added = kept(run, history, reason if slower else "")
    except (NotComparableError, PlaceError) as error:
        raise refused(error) from None
    typer.echo(f"{run.name}: {'saved' if added else 'already saved'} in {history}, {len(slower)} regressions")


@app.command()
def compare(before: Folder, after: Folder) -> None:
    """Compare two runs: what changed, and whether that is more than noise."""
    from .verdicts.gates import load
    from .verdicts.history import NotComparableError, lost, run_of, table
    from .verdicts.history import compare as compared
    from .verdicts.measured import Results

    try:
        a, b = run_of(Results(before)), run_of(Results(after))
        changes = compared(a, b)
    except NotComparableError as error:
        raise refused(error) from None
    typer.echo("\n".join(table(changes, load().limits.significance)))
    for name in lost(a, b):
        typer.echo(f"only before: {name}")


@app.command()
def traces(
    folder: Annotated[
        Path, typer.Option("--traces", help="Folder of real outputs: *.txt, or *.jsonl with prompt and output.")
    ],
    tokens: Annotated[str, typer.Option(help="Unit of a token: byte, word or piece.")] = "byte",
    drafts: Annotated[int, typer.Option(min=1, help="Draft chains per step.")] = 2,
    length: Annotated[int, typer.Option(min=1, help="Tokens per chain.")] = 6,
    results: Annotated[Path, typer.Option(help="Folder with the results of a run.")] = RESULTS,
) -> None:
    """Tokens per step of n-gram drafting on real outputs, and the speed-up that follows from measured steps."""
    from .verdicts.measured import Results
    from .verdicts.traces import KINDS, TraceError, read, replay, table

    one_of("--tokens", tokens, KINDS)
    if not folder.is_dir():
        raise OptionError(f"--traces {folder} is not a folder; give a folder of real outputs")
    try:
        replayed = [replay(trace, length, drafts) for trace in read(folder, tokens)]
    except TraceError as error:
        raise refused(error) from None
    typer.echo("\n".join(table(replayed, Results(results), length, drafts)))


@app.command()
def page(
    results: Folder = RESULTS,
    out: Annotated[Path, typer.Option(help="Folder for the page and its pictures.")] = Path("docs/pictures"),
) -> None:
    """Write an HTML page with plots: roofline, ratios, cost by window and tree, throughput by batch."""
    need_kernels()
    files.folder("--out", out)
    from .report.page import write

    for file in write(results, out, judgements(results)):
        typer.echo(str(file))
