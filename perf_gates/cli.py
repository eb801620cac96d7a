"""`ssmspec gates`: what a change costs, exactly on a CPU, by ratio on a GPU."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from conformance.refusal import FAILED, refused
from ssmspec_ref.errors import ParameterError

if TYPE_CHECKING:
    from .verdict import Judged

app = typer.Typer(pretty_exceptions_enable=False, no_args_is_help=True, help="Performance gates: bytes, registers, ratios.")
RESULTS = Path(__file__).parent / "results"
PAGE = Path("docs/performance.md")
CHECKS = {
    "counted": ("perf_gates.counted",),
    "occupancy": ("perf_gates.occupancy",),
    "compiled": ("perf_gates.compiled", "--quick"),
}
"""What needs no GPU, each in a process of its own: the interpreter and the compiler exclude each other."""

Folder = Annotated[Path, typer.Argument(help="The parts of a run.")]


@app.command()
def check(
    only: Annotated[str, typer.Option(help="Names of checks, with commas: counted, occupancy, compiled.")] = ",".join(CHECKS),
) -> None:
    """The gates that need no GPU: counted bytes, registers, spills, shared memory, widths, warps an SM."""
    from .gates import load

    names = only.split(",")
    if unknown := [name for name in names if name not in CHECKS]:
        raise refused(ParameterError(f"check came as {unknown[0]!r}; give some of {', '.join(CHECKS)}"))
    need_kernels()
    gates, failed = load(), []
    typer.echo(f"gates.toml: {len(gates.tables)} tables, {sum(len(t.cells) for t in gates.tables)} cells, no fault")
    for name in names:
        if process(CHECKS[name]):
            failed.append(name)
        typer.echo(f"{name}: {'FAIL' if name in failed else 'pass'}")
    raise typer.Exit(FAILED if failed else 0)


def need_kernels() -> None:
    """Refuse where what the kernels need is not installed: to compile and interpret them, and to know which of them stand."""
    if find_spec("triton") is None:
        reason = "triton is not installed here; for kernels and their gates: pip install 'ssmspec[kernels]'"
        raise refused(ModuleNotFoundError(reason))


def process(command: tuple[str, ...]) -> int:
    """Run a module, and its exit code. Triton is imported as it compiles, but where the module asks for the interpreter."""
    root = str(Path(__file__).parent.parent)
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join([*(path for path in sys.path if path), root])
    return subprocess.run([sys.executable, "-m", *command], env=environment, check=False).returncode


@app.command()
def table(
    results: Folder = RESULTS,
    write: Annotated[bool, typer.Option("--write", help="Put it into the page.")] = False,
    page: Annotated[Path, typer.Option(help="The page.")] = PAGE,
) -> None:
    """Every table of the papers: the paper's figure, the target, ours, the floor, the verdict."""
    from .gates import load
    from .paper_table import MADE, text

    gates, judged = load(), judgements(results)
    shown = text(gates, judged)
    typer.echo(shown)
    if write:
        page.write_text(MADE.put(page.read_text(), shown))


def judgements(results: Path) -> "list[Judged]":
    """Of every cell of the papers' tables. Refused for a folder without a time: all that is not measured would pass."""
    need_kernels()
    from .gates import load
    from .history import NotComparableError, timed
    from .machine import kernels_hash
    from .measured import Results
    from .verdict import judge

    held = Results(results)
    try:
        timed(held)
    except NotComparableError as error:
        raise refused(error) from None
    return list(judge(load(), held, kernels_hash()))


@app.command()
def verdicts(results: Folder = RESULTS) -> None:
    """Exit with 1 where a cell fails, or cannot be compared though it was measured."""
    from .verdict import Verdict

    wrong = 0
    for j in judgements(results):
        if j.verdict is Verdict.FAIL or (j.verdict is Verdict.NOT_COMPARABLE and j.value is not None):
            wrong += 1
            typer.echo(f"{j.verdict.value}: {j.table.id}, {j.cell.at}: {j.value:.3f} for {j.target}  {j.why}")
    raise typer.Exit(FAILED if wrong else 0)


@app.command()
def keep(results: Folder = RESULTS) -> None:
    """Add a run to the history, and say what has become slower than the best of the last runs."""
    from .gates import load
    from .history import NotComparableError, regressions, run_of, runs
    from .history import keep as kept
    from .measured import Results

    limits = load().limits
    try:
        run, earlier = run_of(Results(results)), runs()
        slower = list(regressions(earlier, run, limits)) if earlier else []
    except NotComparableError as error:
        raise refused(error) from None
    for change in slower:
        typer.echo(f"FAIL: {change.name}: {change.before:.2f} -> {change.after:.2f} us, {change.ratio:.3f}, p {change.p:.1g}")
    typer.echo(f"{run.name}: {'kept' if kept(run) else 'was kept already'}, {len(slower)} regressions")
    raise typer.Exit(FAILED if slower else 0)


@app.command()
def compare(before: Folder, after: Folder) -> None:
    """Two runs: what changed, and whether that is more than noise."""
    from .gates import load
    from .history import NotComparableError, lost, run_of, table
    from .history import compare as compared
    from .measured import Results

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
    folder: Annotated[Path, typer.Option("--traces", help="Real outputs: *.txt, or *.jsonl with prompt and output.")],
    tokens: Annotated[str, typer.Option(help="What a token is: byte, or word.")] = "byte",
    drafts: Annotated[int, typer.Option(help="Chains for each window.")] = 2,
    length: Annotated[int, typer.Option(help="Tokens of a chain.")] = 6,
    results: Annotated[Path, typer.Option(help="The parts of a run.")] = RESULTS,
) -> None:
    """The tau of n-gram drafting on real outputs, and the speed-up that the measured steps make of it."""
    from .measured import Results
    from .traces import TraceError, read, replay, table

    try:
        replayed = [replay(trace, length, drafts) for trace in read(folder, tokens)]
    except TraceError as error:
        raise refused(error) from None
    typer.echo("\n".join(table(replayed, Results(results), length, drafts)))


@app.command()
def page(
    results: Folder = RESULTS,
    out: Annotated[Path, typer.Option(help="A folder for the page and its pictures.")] = Path("docs/pictures"),
) -> None:
    """An HTML page with plots: roofline, ratios, cost over window and tree, throughput over batch."""
    from .page import write

    for file in write(results, out, judgements(results)):
        typer.echo(str(file))
