"""Test the suite: every planted fault must fail, with other seeds too, and every correct implementation must pass.

A fault is caught if a case of its operation, at the standard tier, fails. Each fault is tested with several draws of all
inputs: the cases stay the same, the random numbers change. A fault that fails in the first draw only was caught by luck. For
operations on whole layers, one kind of layer is tested (`KIND`).

    python -m conformance.meta --out docs/evidence/faults.md
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields, replace
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from ssmspec_ref.contract import Adapter, NumericContract, Subject, Verdict

from .cases import Case
from .faults.catalogue import FAULTS
from .faults.classes import CLASSES, LEFT_OUT
from .faults.fault import Fault
from .judge.verdict import judge
from .main import run_command
from .progress.rotation import ALL, PARTS, Draw, read_draw
from .run.plan import Job, Selection, plan
from .suite.called import Arguments
from .suite.specification import Specification

DRAWS, ENOUGH = 3, 3
STRIDE = 7919
"""Draws of each fault; most failing cases to find in the first; the amount that one draw adds to every seed."""
KIND = "mamba2"


@dataclass(frozen=True)
class Redrawn(Specification):
    """A specification whose cases use other random numbers."""

    shift: int = 0

    def identify(self, case: Case) -> str:
        return f"{super().identify(case)}+{self.shift}" if self.shift else super().identify(case)


def redrawn(specification: Specification, shift: int) -> Redrawn:
    """The specification with every seed shifted."""

    def draw(case: Case, contract: NumericContract) -> Arguments:
        return specification.draw(replace(case, seed=case.seed + shift), contract)

    given = {field.name: getattr(specification, field.name) for field in fields(Specification)}
    return Redrawn(**{**given, "draw": draw}, shift=shift)


@dataclass(frozen=True)
class Caught:
    """The result of one fault: cases that failed in the first draw (at most `ENOUGH`), how, and how many draws caught it."""

    fault: Fault
    cases: int
    failed: tuple[str, ...]
    kinds: tuple[str, ...]
    draws: int

    @property
    def surely(self) -> bool:
        return self.draws == DRAWS


def jobs(subject: Subject, operation: str, tier: str = "standard") -> list[Job]:
    """The cases of one operation; for layers, those of one kind, unless the fault is one of others."""
    found, _ = plan({"faults": Adapter("faults", "1", (subject,))}, Selection(tier=tier, operation=operation))
    kinds = subject.capabilities[operation].limits.options.get("kind", (KIND,))
    return [job for job in found if job.case.options.get("kind", kinds[0]) in kinds]


def tabled(found: Sequence[Job]) -> list[Job]:
    """Those of the tables, without sizes and histories of production and without what is drawn when a run starts."""
    limits = {id(job.specification): (job.specification, job.capability.limits) for job in found}
    names = {specification.identify(case) for specification, own in limits.values() for case in specification.tabled(own)}
    return [job for job in found if job.identity in names]


def hunt(fault: Fault) -> Caught:
    """Test a fault: every case of the tables in the first draw, those of production if none fails, and in every further draw
    until one fails."""
    found = jobs(fault.subject, fault.operation)
    tables = tabled(found)
    failed = list(islice(((job.identity, kind) for job in tables if (kind := failing(job, 0))), ENOUGH))
    if not failed:
        others = (job for job in found if job not in tables)
        failed = list(islice(((job.identity, kind) for job in others if (kind := failing(job, 0))), ENOUGH))
    first = [identity for identity, _ in failed]
    likely = sorted(found, key=lambda job: job.identity not in first)
    draws = sum(any(failing(job, shift * STRIDE) for job in likely) for shift in range(1, DRAWS))
    return Caught(fault, len(found), tuple(first), tuple(sorted({kind for _, kind in failed})), draws + bool(failed))


def failing(job: Job, shift: int) -> str:
    """How a case fails with shifted seeds; "" if it passes."""
    specification = redrawn(job.specification, shift) if shift else job.specification
    judgement = judge(specification, job.capability, job.case)
    return judgement.kind if judgement.verdict is Verdict.FAIL else ""


def drawn(draw: Draw | None) -> list[int]:
    """The indices of the faults to hunt: all, or of each class a fifth, and at least one."""
    if draw is None:
        return list(range(len(FAULTS)))
    classes: dict[str, dict[str, int]] = {}
    for number, fault in enumerate(FAULTS):
        classes.setdefault(fault.bug_class, {})[f"{fault.name} {fault.operation}"] = number
    return sorted(named[name] for of, named in classes.items() for name in draw.chosen(of, list(named)))


def groups(numbers: Iterable[int]) -> list[list[int]]:
    """The indices of faults, grouped by operation: these share their expected values."""
    by: dict[str, list[int]] = {}
    for number in numbers:
        by.setdefault(FAULTS[number].operation, []).append(number)
    return sorted(by.values(), key=len, reverse=True)


def hunt_all(processes: int, draw: Draw | None = None) -> Iterator[Caught]:
    """The faults of a draw (None: all), in the order of the catalogue."""
    caught: dict[int, Caught] = {}
    with ProcessPoolExecutor(processes, mp_context=get_context("fork")) as pool:
        for found in pool.map(_hunted, groups(drawn(draw))):
            caught.update(found)
    for number in sorted(caught):
        yield replace(caught[number], fault=FAULTS[number])


def _hunted(numbers: Iterable[int]) -> dict[int, Caught]:
    """The results of some faults, without their subjects, which cannot be pickled."""
    found = {number: hunt(FAULTS[number]) for number in numbers}
    return {number: replace(one, fault=replace(one.fault, subject=Subject("", {}))) for number, one in found.items()}


def shown(found: Sequence[Caught]) -> Table:
    """The table for a terminal."""
    table = Table("class", "fault", "operation", "caught by", "how", "cases", "draws", title="planted faults")
    for c in sorted(found, key=lambda c: list(CLASSES).index(c.fault.bug_class)):
        style = "" if c.surely else "bold red"
        first = c.failed[0].split("/", 1)[1] if c.failed else "nothing"
        counted = f"{len(c.failed)}{'+' if len(c.failed) == ENOUGH else ''} of {c.cases}"
        named = (c.fault.bug_class, c.fault.name, c.fault.operation, first, ", ".join(c.kinds), counted, f"{c.draws}/{DRAWS}")
        table.add_row(*named, style=style)
    return table


def markdown(found: Sequence[Caught]) -> str:
    """The table as Markdown, for the committed page."""
    sure = sum(c.surely for c in found)
    of_class = {bug_class: [c for c in found if c.fault.bug_class == bug_class] for bug_class in CLASSES}
    lines = [
        "# Planted faults",
        "",
        "Made by `python -m conformance.meta --out docs/evidence/faults.md`.",
        "",
        "Each fault is a small wrong implementation in `conformance/faults`. It is caught if a case of",
        f"its operation fails at the tier standard. It is tested with {DRAWS} different draws of all inputs; a fault that",
        "only some draws catch was caught by luck.",
        f"`{ENOUGH}+` means that the search stopped there. Faults that an outsider made are in",
        "[strangers.md](strangers.md).",
        "",
        f"**{sure} of {len(found)} faults are caught in every draw.**",
        "",
        "| class | faults | caught in every draw | by one case only |",
        "|---|---:|---:|---:|",
        *(_totals(bug_class, own) for bug_class, own in of_class.items()),
        "",
    ]
    for bug_class, means in CLASSES.items():
        own = of_class[bug_class]
        lines += [f"## {bug_class}", "", f"{means[0].upper()}{means[1:]}.", ""]
        if not own:
            lines += [f"Not planted: {LEFT_OUT[bug_class]}.", ""]
            continue
        lines += ["| fault | what it does | operation | cases | draws | first caught by |", "|---|---|---|---:|---:|---|"]
        for c in own:
            counted = f"{len(c.failed)}{'+' if len(c.failed) == ENOUGH else ''}/{c.cases}"
            first = f"`{c.failed[0].split('/', 1)[1]}` ({', '.join(c.kinds)})" if c.failed else "**nothing**"
            lines.append(
                f"| {c.fault.name} | {c.fault.says} | {c.fault.operation} | {counted} | {c.draws}/{DRAWS} | {first} |"
            )
        lines.append("")
    lines += ["## Not planted", "", *(f"- {what}: {why}" for what, why in LEFT_OUT.items())]
    return "\n".join(lines) + "\n"


def _totals(bug_class: str, own: Sequence[Caught]) -> str:
    sure, once = sum(c.surely for c in own), sum(len(c.failed) == 1 for c in own)
    return f"| [{bug_class}](#{bug_class.lower()}) | {len(own)} | {sure} | {once} |"


def main(
    processes: Annotated[int, typer.Option(min=1)] = 2,
    out: Annotated[Path | None, typer.Option(help="Write the table to this Markdown file.")] = None,
    draw: Annotated[str, typer.Option(help="all, today, or DATE:TREE: a fifth of the faults of each class.")] = ALL,
) -> None:
    """Test the suite by its planted faults. Exits with 1 if one is missed, or was caught by luck."""
    try:
        fifth = read_draw(draw)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if out and fifth:
        raise typer.BadParameter("--out writes the table of all planted faults; need --draw all")
    console = Console(width=200)
    console.print(
        "planted faults: all" if fifth is None else f"planted faults: one in {PARTS}: --draw {fifth}", highlight=False
    )
    found = list(hunt_all(processes, fifth))
    console.print(shown(found))
    missed = [c for c in found if not c.surely]
    console.print(f"{len(found) - len(missed)} of {len(found)} faults are caught in each of {DRAWS} draws", highlight=False)
    if out:
        out.write_text(markdown(found), encoding="utf-8")
    if missed:
        raise typer.Exit(1)


if __name__ == "__main__":
    sys.exit(run_command(main))
