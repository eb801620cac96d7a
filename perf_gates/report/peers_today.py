"""The table of the kernels that engines run today, as Markdown, from `peers_today.json`.

`python -m perf_gates.report.peers_today perf_gates/results --write` writes it into perf_gates/README.md.

A cell is a piece of work at a shape and a batch. Ours leads where it is faster than every other side of its cell; if a side
was not measured, that is not known. Exits with 1 unless all sides were measured.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from conformance.main import run_command

from .. import files
from ..files import head
from ..gpu.today.pinned import pinned
from ..gpu.today.works import OURS, WORKS, Work
from ..static.shapes import BATCHES
from ..verdicts.measured import TODAY
from .page_section import PageSection

README = Path(__file__).parent.parent / "README.md"
MADE = PageSection("peers of today")
UNMEASURED, WRONG = "-", 0.03
"""The sign for no figure; the relative error of outputs or states, in 2-norms, from which a side is called wrong."""

Row = dict[str, Any]
Found = dict[tuple[str, str, int, str], Row]
"""Measurements by work, shape, batch and side."""


def read(folder: Path) -> dict[str, Any]:
    """The part as it was written; nothing if there is none."""
    return files.read(folder / f"{TODAY}.json")


def measured(part: dict[str, Any]) -> Found:
    return {(t["work"], t["model"], t["batch"], t["side"]): t for t in part.get("timings", [])}


def lines() -> Iterator[tuple[Work, str]]:
    yield from ((work, model) for work in WORKS for model in work.shapes)


def leads(work: Work, model: str, batch: int, found: Found) -> bool | None:
    """Whether ours is faster than every other side; None if that is not known."""
    us = {side: found.get((work.name, model, batch, side), {}).get("us") for side in work.sides}
    ours, others = us.pop(OURS), us.values()
    if ours is None or any(theirs is not None and not ours < theirs for theirs in others):
        return None if ours is None else False
    return None if None in others else True


def headline(found: Found) -> str:
    """In how many cells ours leads, and what is not known."""
    said = [leads(work, model, batch, found) for work, model in lines() for batch in BATCHES]
    if not found:
        return f"Peers of today: unmeasured ({len(said)} cells)."
    unknown = said.count(None)
    left = f"; of {unknown} more it is not known, since a side was not measured" if unknown else ""
    return f"In {said.count(True)} of {len(said) - unknown} cells ours is faster than the fastest peer of today{left}."


def table(found: Found) -> Iterator[str]:
    """A line for each side: microseconds by batch, the fastest of a cell in bold, and the largest errors over the batches."""
    yield from head(f"work | shape | side | {' | '.join(map(str, BATCHES))} | of its bound | outputs | states | contract")
    for work, model in lines():
        for side in work.sides:
            rows = [found.get((work.name, model, batch, side)) for batch in BATCHES]
            times = [cell(work, model, batch, side, found) for batch in BATCHES]
            yield f"| {work.name} | {model} | {side} | {' | '.join(times)} | {' | '.join(errors(rows))} |"


def cell(work: Work, model: str, batch: int, side: str, found: Found) -> str:
    row = found.get((work.name, model, batch, side))
    if row is None:
        return UNMEASURED
    held = [found[at]["us"] for other in work.sides if (at := (work.name, model, batch, other)) in found]
    return f"**{row['us']:.2f}**" if row["us"] == min(held) else f"{row['us']:.2f}"


def errors(rows: list[Row | None]) -> tuple[str, str, str, str]:
    """The largest share of the bound and relative errors, and the contract that the bound is of."""
    there = [row for row in rows if row is not None]
    if not there:
        return UNMEASURED, UNMEASURED, UNMEASURED, "unmeasured"
    used = max(row["used"] for row in there)
    outputs, states = (
        max((row[name] for row in there if row[name] is not None), default=None) for name in ("outputs", "states")
    )
    wrong = any(far is not None and not far <= WRONG for far in (outputs, states))
    shown = UNMEASURED if states is None else f"{states:.1e}"
    return f"{used:.2f}{' **wrong**' if wrong else ''}", f"{outputs:.1e}", shown, there[0]["contract"]


def peers(part: dict[str, Any]) -> Iterator[str]:
    """The projects with their versions and dates, and what is not among the sides."""
    given: dict[str, str] = part.get("machine", {}).get("peers", {})
    yield from head("peer | version | built | not timed, because | its authors' figure")
    for wheel in pinned()["wheel"]:
        if "project" in wheel:
            version = given.get(wheel["project"], "unmeasured")
            date = wheel["date"] if version in (wheel["version"], "unmeasured") else "unknown"
            yield f"| {wheel['project']} | {version} | {date} | | |"
    for other in pinned()["unbuilt"]:
        yield f"| {other['peer']} | {UNMEASURED} | {UNMEASURED} | {other['reason']} | {other['published']} |"


def faults(part: dict[str, Any], found: Found) -> Iterator[str]:
    """What was not measured, and why where a run said so."""
    said = {error.partition("): ")[0] + ")": error.partition("): ")[2] for error in part.get("errors", [])}
    for work, model in lines():
        for side in work.sides:
            gone = [batch for batch in BATCHES if (work.name, model, batch, side) not in found]
            if gone:
                why = next((said[case] for b in gone if (case := str((work.name, model, b, side))) in said), "not run")
                yield f"{work.name}, {model}, {side}, batch {', '.join(map(str, gone))}: {why}"


def text(folder: Path) -> str:
    """Everything between the markers."""
    part = read(folder)
    found = measured(part)
    parts = [headline(found), "\n".join(table(found)), "\n".join(peers(part))]
    if found and (lacks := list(faults(part, found))):
        parts += ["Not measured:", "\n".join(f"- {fault}" for fault in lacks)]
    return "\n\n".join(parts)


def main(
    results: Annotated[Path, typer.Argument(help="The folder of a run.")],
    write: Annotated[bool, typer.Option("--write", help="Write the table into README.md.")] = False,
) -> int:
    part = read(results)
    print(text(results))
    if write:
        MADE.write(README, text(results))
    wrong = list(faults(part, measured(part)))
    print(f"{len(wrong)} sides are not measured whole" if wrong else "all sides are measured", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(run_command(main))
