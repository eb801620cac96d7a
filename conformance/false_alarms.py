"""Run correct implementations with many seeds: all of them must pass.

    python -m conformance.false_alarms --seeds 3000 --kept alarms.jsonl --out docs/evidence/false-alarms.md

3,000 seeds take about 15 minutes of one core. With `--kept` a run that was stopped continues where it ended: the file has a
line for each block of seeds that is done, and is refused once the sources have changed.

Every seed draws other inputs for one case of the table, in turn, and every rewriting (`rewritings`) is tested on it. Cases of
more than 20 tokens are left to the suite itself. A failing case is named, and the command exits with 1.
"""

import hashlib
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

import ssmspec_ref
from ssmspec_ref.contract import Verdict

from .judge.verdict import judge
from .main import run_command
from .meta import STRIDE, jobs, redrawn
from .rewritings import Rewriting, every

LONGEST, BLOCK = 20, 50
"""Most tokens of a case, and seeds that one process takes at a time."""


@dataclass(frozen=True)
class Tally:
    """The results of one rewriting: cases, outputs compared, the largest fraction of a bound, and the failed cases."""

    name: str
    contract: str
    judged: int
    compared: int
    worst: float
    blamed: tuple[str, ...]


def tally(rewriting: Rewriting, seeds: Iterable[int]) -> Tally:
    """Test one rewriting with every seed."""
    subject = rewriting.subject
    found = [job for job in jobs(subject, f"{rewriting.recurrence}.scan") if job.case.sizes["t"] <= LONGEST]
    judged, compared, worst, blamed = 0, 0, 0.0, []
    for seed in seeds:
        job = found[seed % len(found)]
        specification = redrawn(job.specification, STRIDE * (seed + 1))
        judgement = judge(specification, job.capability, job.case)
        judged += 1
        compared += len(judgement.outputs)
        worst = max([worst, *(o.utilisation for o in judgement.outputs)])
        if judgement.verdict is not Verdict.PASS:
            blamed.append(f"{job.identity} seed {seed}: {judgement.kind} {judgement.message}")
    return Tally(subject.name, str(rewriting.contract), judged, compared, worst, tuple(blamed))


def campaign(seeds: int, processes: int, kept: Path | None = None) -> list[Tally]:
    """Test every rewriting with the seeds from 0 on, in blocks; those that `kept` has are not run again.

    Raises: ValueError for a file that other sources made.
    """
    blocks = [range(begin, min(begin + BLOCK, seeds)) for begin in range(0, seeds, BLOCK)]
    done = dict(read(kept)) if kept and kept.exists() else {}
    with ExitStack() as stack:
        pool = stack.enter_context(ProcessPoolExecutor(processes, mp_context=get_context("fork")))
        stream = kept and stack.enter_context(kept.open("a", encoding="utf-8"))
        tasks = {
            pool.submit(tally, rewriting, block): (rewriting.subject.name, block)
            for block in blocks
            for rewriting in every()
            if (rewriting.subject.name, block) not in done
        }
        for future in as_completed(tasks):
            name, block = tasks[future]
            done[name, block] = future.result()
            if stream:
                line = {"sources": sources(), "seeds": [block.start, block.stop], **asdict(done[name, block])}
                stream.write(json.dumps(line) + "\n")
                stream.flush()
    return [together([done[rewriting.subject.name, block] for block in blocks]) for rewriting in every()]


def read(kept: Path) -> Iterator[tuple[tuple[str, range], Tally]]:
    """The blocks that an earlier run finished. A last line that is cut short is none, and is removed.

    Raises: ValueError for a file that other sources made.
    """
    text = kept.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    kept.write_text(whole, encoding="utf-8")
    for line in map(json.loads, whole.splitlines()):
        made, block = line.pop("sources"), range(*line.pop("seeds"))
        if made != sources():
            raise ValueError(f"{kept} was made by sources {made}, these are {sources()}; remove it, or name another file")
        yield (line["name"], block), Tally(**{**line, "blamed": tuple(line["blamed"])})


@cache
def sources() -> str:
    """A digest of the suite and the reference."""
    homes = Path(__file__).parent, Path(ssmspec_ref.__file__).parent
    return hashlib.sha256(b"".join(path.read_bytes() for home in homes for path in sorted(home.rglob("*.py")))).hexdigest()[
        :16
    ]


def together(parts: Sequence[Tally]) -> Tally:
    """Merge the blocks of one rewriting."""
    return Tally(
        parts[0].name,
        parts[0].contract,
        sum(t.judged for t in parts),
        sum(t.compared for t in parts),
        max(t.worst for t in parts),
        tuple(said for t in parts for said in t.blamed),
    )


def markdown(found: Sequence[Tally], seeds: int) -> str:
    """The table as Markdown, for the committed page."""
    lines = [
        "# False alarms",
        "",
        f"Made by `python -m conformance.false_alarms --seeds {seeds} --out docs/evidence/false-alarms.md`.",
        "",
        "Correct implementations with other orders of evaluation and other formats",
        "(`conformance/rewritings.py`) run the cases of the suite with new inputs for each seed.",
        "A case that does not pass is a false alarm.",
        "",
        f"**{sum(len(t.blamed) for t in found)} false alarms in {sum(t.judged for t in found)} cases.**",
        "",
        "| implementation | contract | cases | outputs compared | worst error / bound | false alarms |",
        "|---|---|---:|---:|---:|---:|",
    ]
    lines += [f"| {t.name} | `{t.contract}` | {t.judged} | {t.compared} | {t.worst:.3f} | {len(t.blamed)} |" for t in found]
    return "\n".join(lines) + "\n"


def main(
    seeds: Annotated[int, typer.Option(min=1, help="Seeds for each implementation.")] = 40,
    processes: Annotated[int, typer.Option(min=1)] = 2,
    kept: Annotated[Path | None, typer.Option(help="Keep what is done in this file, and continue where it ends.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the table to this Markdown file.")] = None,
) -> None:
    """Test correct implementations with many seeds. Exits with 1 if one fails."""
    try:
        found, console = campaign(seeds, processes, kept), Console(width=120)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    table = Table("implementation", "contract", "cases", "worst", "false alarms", title="right, written differently")
    for t in found:
        table.add_row(t.name, t.contract, str(t.judged), f"{t.worst:.3f}", str(len(t.blamed)))
    console.print(table)
    for t in found:
        for said in t.blamed:
            console.print(f"{t.name}: {said}", soft_wrap=True, highlight=False, style="red")
    if out:
        out.write_text(markdown(found, seeds), encoding="utf-8")
    if any(t.blamed for t in found):
        raise typer.Exit(1)


if __name__ == "__main__":
    sys.exit(run_command(main))
