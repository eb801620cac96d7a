"""The table of a run on a GPU, as Markdown.

`python -m perf_gates.report.kernel_table perf_gates/results --write` writes it into perf_gates/README.md.

A cell has the value and the verdict of `ssmspec gates verdicts`. Exits with 1 if the results are incomplete: a cell without
its measurement, a part made with other kernels than the current ones, a part with a fault, or a missed target that
`missed.toml` does not explain.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from conformance.main import run_command
from ssmspec_ref.errors import OptionError

from ..files import head
from ..machine import kernels_hash
from ..ratchet import bars
from ..ratchet.rows import kernels as kernel_rows
from ..static.shapes import BATCHES
from ..verdicts import gates, missed, targets
from ..verdicts.measured import LOOKED_AT, PARTS, Missing, Results, fault, ruled
from ..verdicts.targets import SHAPES, Cell, accurate_prompts, peer_of, steps
from ..verdicts.verdict import Judged, Verdict, judge
from . import missed_cells
from .page_section import PageSection
from .paper_table import figure

README = Path(__file__).parent.parent / "README.md"
NOT_RUN = "not run: no time left"
MADE = PageSection("table")
TRIED = (
    "Missed targets: what limits each one, and what was tried, with times of the same part and run. A figure without a unit "
    "is a ratio: the time with a change over the time without it, or, after `steps`, the time over that of a plain step. In "
    "`a, not b`, b is the figure of the kernel that was changed. A program is a Triton program; rows are the sequences of a "
    "batch; aligned rows flush in the same step, staggered rows in different ones:"
)


def judged(results: Results, kernels: str) -> list[Judged]:
    """The cells of the table, then those that are counted apart, by the committed limits."""
    return list(judge(gates.load(), results, kernels, bars.read(), kernel_rows()))


def faults(results: Results, kernels: str) -> Iterator[str]:
    """Why the results are not those of one complete run of these kernels."""
    for part in PARTS:
        if part not in results.parts:
            yield f"{part}: no file"
            continue
        found = results.parts[part]
        if other := fault(part, found["machine"], kernels):
            yield other
        yield from (f"{part}: {error}" for error in found.get("errors", []))
        if not found.get("complete", "verdicts" in found):
            yield f"{part}: incomplete"
        failed = [v for v in found.get("verdicts", []) if not v["passed"]]
        left = sum(v["message"] == NOT_RUN for v in failed)
        if left:
            yield f"{part}: {left} of {len(found['verdicts'])} checks {NOT_RUN}"
        ran = (v for v in failed if v["message"] != NOT_RUN)
        yield from (f"{part}: {v['kernel']} {v['model']} {v['variant']} {v['batch']}: {v['message']}" for v in ran)
    cells = judged(results, kernels)
    for j in cells:
        if j.value is None:
            yield j.why.removeprefix("not measured: ")
        try:
            best_peer(j, results)
        except Missing as missing:
            yield str(missing)
    yield from missed_cells.faults(cells, missed.reasons())


def line(j: Judged, results: Results) -> str:
    """A row of the table; a dash for what is missing."""
    cell = j.row.kernel
    assert cell is not None
    sign = ">=" if cell.least else "<="
    reached = "-" if j.value is None else figure(j.value, j.target, j.table.sense)
    verdict = j.verdict.value if j.verdict in (Verdict.PASS, Verdict.NEAR) else f"**{j.verdict.value}**"
    try:
        best = best_peer(j, results)
    except Missing:
        best = "-"
    columns = cell.what, cell.shape, cell.batch, f"{sign} {cell.target}", reached, floor(cell, results), best, verdict
    return f"| {' | '.join(map(str, columns))} |"


def floor(cell: Cell, results: Results) -> str:
    """What bytes and launches allow; a dash if unknown."""
    try:
        return cell.floor if isinstance(cell.floor, str) else f"{cell.floor(results):.2f}"
    except Missing:
        return "-"


def best_peer(j: Judged, results: Results) -> str:
    """The peer's figure. Raises: Missing."""
    cell = j.row.kernel
    assert cell is not None
    best = cell.best if isinstance(cell.best, str) else f"{cell.best(results):.2f}"
    return f"{best} {cell.peer}".strip()


def speed(lines: Iterable[str]) -> Iterator[str]:
    """A table of targets."""
    yield from head("what | shape | batch | target | ours | floor | best peer | verdict")
    yield from lines


def conformance(verdicts: list[dict[str, Any]]) -> Iterator[str]:
    """A row for each kernel and shape."""
    yield from head("kernel | shape | checks | largest share of a bound | failed")
    for kernel, model in dict.fromkeys((v["kernel"], v["model"]) for v in verdicts):
        own = [v for v in verdicts if (v["kernel"], v["model"]) == (kernel, model)]
        used = [v["utilisation"] for v in own if v["utilisation"] is not None]
        most = f"{max(used):.2f}" if used else "bits"
        yield f"| {kernel} | {model} | {len(own)} | {most} | {sum(not v['passed'] for v in own)} |"


def machine(results: Results) -> str:
    """Where it was measured; the copy bandwidth is that of each part."""
    heads = [found["machine"] for found in results.parts.values()]
    m = heads[0]
    copies = [h["copy_bytes_per_us"] / 1e6 for h in heads if "copy_bytes_per_us" in h]
    launches = [h["empty_launch_us"] for h in heads if "empty_launch_us" in h]
    return (
        f"{m['gpu']}, driver {m['driver']}, torch {m['torch']}, Triton {m['triton']}, kernels at commit "
        f"{m['commit'][:7]}; copy {min(copies):.2f} to {max(copies):.2f} TB/s, an empty launch "
        f"{min(launches):.2f} to {max(launches):.2f} us."
    )


def text(results: Results) -> str:
    """Everything between the markers."""
    found = judged(results, kernels_hash())
    listed = {*targets.cells()}
    table, further = ([j for j in found if (j.row.kernel in listed) is within] for within in (True, False))
    verdicts = results.parts.get("model_shapes", {}).get("verdicts", [])
    parts = [
        machine(results),
        count(table),
        *older(results),
        "\n".join(speed(line(j, results) for j in table)),
        f"Counted separately, because they are newer than the table: {count(further)}",
        "\n".join(speed(line(j, results) for j in further)),
        "A plain step in us, and our slowest over our fastest. Figures divided by a step use the fastest of its line:",
        "\n".join(plain_steps(results)),
        "Prefill with products as accurate as fp32, over the peer's time. No peer has such products. The targets are above:",
        "\n".join(accurate(results)),
        TRIED,
        "\n".join(missed_cells.text(found, missed.reasons())),
        *lacking(results),
        f"Conformance at the shapes of models: {len(verdicts)} checks, {sum(not v['passed'] for v in verdicts)} failed.",
        "\n".join(conformance(verdicts)),
    ]
    return "\n\n".join(parts)


def count(found: Sequence[Judged]) -> str:
    """How many cells have which verdict."""
    each = Counter(j.verdict for j in found)
    return f"{len(found)} cells: {', '.join(f'{each[verdict]} {verdict.value}' for verdict in Verdict)}."


def older(results: Results) -> Iterator[str]:
    """Which outputs were checked in parts that are older than the current rule."""
    parts = [part for part in LOOKED_AT if part in results.parts and not ruled(part, results.parts[part]["machine"])]
    if parts:
        yield (
            f"Measured before each launch of a graph had its own output: {', '.join(parts)}. There our launches shared "
            "one output, which was checked at most once, after one launch or one cycle before the recording. Three products "
            "of the linear layers were compared; paths of a tree with separate states were not, and all launches of a "
            "prefill took the same prompt."
        )


def plain_steps(results: Results) -> Iterator[str]:
    """A row for each shape and batch: our step in each part that measures it, the spread, and the peer's."""
    yield from head("shape | batch | alone | next to buffers | next to the peer's | slowest / fastest | the peer's")
    for shape in SHAPES:
        for b in BATCHES:
            each = [results.timings[at]["us"] if at in results.timings else None for at in steps(shape, b)]
            ours = [us for us in each[:-1] if us is not None]
            spread = f"{max(ours) / min(ours):.2f}" if len(ours) == len(each) - 1 else "-"
            *shown, theirs = ("-" if us is None else f"{us:.2f}" for us in each)
            yield f"| {shape} | {b} | {' | '.join(shown)} | {spread} | {theirs} {peer_of(shape)} |"


def accurate(results: Results) -> Iterator[str]:
    """A row for each prefill kernel."""
    yield from head("kernel | shape | over the peer's")
    for kernel, shape, peer, ratio in accurate_prompts():
        try:
            shown = f"{ratio(results):.2f}"
        except Missing:
            shown = "-"
        yield f"| {kernel} | {shape} | {shown} {peer} |"


def lacking(results: Results) -> Iterator[str]:
    """Why the results are incomplete, for the table itself."""
    if wrong := list(faults(results, kernels_hash())):
        yield "What these results lack:"
        yield "\n".join(f"- {fault}" for fault in wrong)


def main(
    folder: Annotated[Path, typer.Argument(metavar="RESULTS", help="The folder of a run.")],
    write: Annotated[bool, typer.Option("--write", help="Write the table into README.md.")] = False,
    only_missed: Annotated[bool, typer.Option("--missed", help="Print only the cells that do not pass.")] = False,
) -> int:
    results = Results(folder)
    if not results.parts:
        raise OptionError(f"{folder} has no part of a run; give the folder that one wrote")
    short = (line(j, results) for j in judged(results, kernels_hash()) if j.verdict is not Verdict.PASS)
    print("\n".join(speed(short)) if only_missed else text(results))
    wrong = list(faults(results, kernels_hash()))
    if write:
        MADE.write(README, text(results))
    print("\n".join(wrong) or "\nall parts are complete", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(run_command(main))
