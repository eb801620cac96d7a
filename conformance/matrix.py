"""The terminal's view of a report: the matrix, the failures, and one last screen."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from rich import box
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from .grid import Cell, groups, totals
from .grid import Group as Grid
from .report import Diagnosis, Header, Result
from .ways import listed, ways

STYLE = {"pass": "green", "inapplicable": "dim", "known-failure": "yellow", "unknown": "magenta", "fail": "bold red"}
WIDEST = 10_000
"""Columns of a console on which a table is as wide as it would be."""


def matrix(results: Sequence[Result], console: Console) -> RenderableType:
    """For each group of operations, one table: a row for each subject and contract, a column for each operation.

    A cell reads passed/run; below it what did not pass, or the worst error in units of its bound, and how many cases have an
    output of which the contract says nothing. A group that is wider than the console goes on in a further table, where a
    row that has none of its operations is left out.
    """
    return Group(*(table for group in groups(results) for table in _tables(group, console)))


def _tables(group: Grid, console: Console) -> Iterator[Table]:
    """As many operations in each table as the console has room for, in their order, and one at least."""
    wide, left = console.options.update(width=WIDEST), group.operations
    while left:
        cuts = (_table(group, left[:count], console.width // 2) for count in range(len(left), 0, -1))
        table = next(t for t in cuts if len(t.columns) == 2 or console.measure(t, options=wide).maximum <= console.width)
        yield table
        left = left[len(table.columns) - 1 :]


def _table(group: Grid, operations: Sequence[str], most: int) -> Table:
    """Some operations of a group, beside names that are folded where they are longer than `most`."""
    table = Table(title=group.name, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("", overflow="fold", max_width=most)
    for operation in operations:
        table.add_column(operation.split(".", 1)[1].replace("_", " "), justify="right", no_wrap=True)
    told = [row for row in group.rows if any(row.cells[operation].results for operation in operations)]
    for adapter, rows in groupby(told, key=lambda row: row.adapter):
        table.add_row(Text(adapter, style="bold underline"))
        for row in rows:
            head = Text(row.subject).append(f"\n  {row.contract}", style="dim")
            table.add_row(head, *(_text(row.cells[operation]) for operation in operations))
        table.add_section()
    return table


def _text(cell: Cell) -> Text:
    """passed/run, and below it what did not pass, or the worst utilisation; a dash where the operation is not offered."""
    if not cell.results:
        return Text("–", style="dim")
    counts = cell.counts
    text = Text(f"{counts['pass']}/{len(cell.results)}", style=STYLE[cell.worst])
    bad = [word for word in ("fail", "unknown", "known-failure") if counts[word]]
    if bad:
        return text.append("\n" + ", ".join(f"{counts[word]} {word.removesuffix('-failure')}" for word in bad))
    text.append(f"\n{cell.utilisation:.2g}" if cell.utilisation > 0 else "\nexact", style="dim")
    return text.append(f"\n{cell.void} void", style="yellow") if cell.void else text


def failures(diagnoses: Iterable[Diagnosis], results: Sequence[Result]) -> RenderableType:
    """Each way of failing once: the subjects that share it, its smallest case and the line that runs it again."""
    lines: list[RenderableType] = []
    for way in ways(diagnoses):
        d = way.first
        head = Text(f"{d.verdict}  ", style=STYLE[d.verdict])
        head.append(f"{d.adapter}: {d.operation}  {d.contract}", style="bold")
        head.append(f"  {way.failures} of {_cases(way.cases)} of {way.subjects}: {d.failing}")
        why = f"known     {d.reason}  {d.link}" if d.reason else f"source    {d.source}"
        told = [d.message, d.diverges and f"diverges  {d.diverges}", f"smallest  {d.smallest}"]
        told += [d.looks_like and f"looks     {d.looks_like}", why]
        lines += [Text(), head, *(Text(f"    {part}") for part in told if part), Text(f"    {d.rerun}", style="cyan")]
    for r in results:
        if r.verdict == "unknown" or (r.verdict == "fail" and not r.operation):
            lines.append(Text(f"{r.verdict}  {r.adapter}: {r.subject}  {r.case}  {r.message}", style=STYLE[r.verdict]))
    return Group(*lines)


def left_out(results: Sequence[Result]) -> RenderableType:
    """What was not run and why, one line for each reason; a group of operations that is left out whole is named once."""
    whole: dict[str, set[str]] = defaultdict(set)
    for r in results:
        if r.operation:
            whole[r.operation.split(".")[0]].add(r.operation)
    per_subject: dict[tuple[str, str, str, bool], set[str]] = defaultdict(set)
    for r in results:
        if r.verdict == "inapplicable":
            per_subject[r.adapter, r.subject, r.reason, bool(r.contract)].add(r.operation)
    lines: dict[tuple[str, str, str, bool], list[str]] = defaultdict(list)
    for (adapter, subject, reason, partly), operations in per_subject.items():
        named = [f"{group}.*" for group, every in whole.items() if every <= operations]
        named += [o for o in sorted(operations) if f"{o.split('.')[0]}.*" not in named]
        lines[adapter, ", ".join(named), reason, partly].append(subject)
    said = []
    for (adapter, what_not, reason, partly), subjects in lines.items():
        what = f"{what_not} without" if partly else f"no {what_not}:"
        said.append(Text(f"{adapter}: {listed(subjects)}: {what} {reason}", style="dim"))
    return Group(*said)


def _cases(count: int) -> str:
    return f"{count} case{'' if count == 1 else 's'}"


def summary(head: Header, results: Sequence[Result], where: str) -> Panel:
    """The last screen: what was judged, what came of it, where the report lies."""
    lines = []
    for name, version in head.adapters.items():
        own = [r for r in results if r.adapter == name]
        subjects = len({r.subject for r in own if r.case})
        counts = totals(own)
        ran = sum(bool(r.case) for r in own)
        text = Text(f"{name} {version}", style="bold")
        text.append(f": {subjects} subject{'' if subjects == 1 else 's'}, {_cases(ran)}, tier {head.tier}: ")
        shown = [(w, c) for w, c in counts.items() if c]
        for index, (word, count) in enumerate(shown):
            text.append(f"{count} {word}" + (", " if index < len(shown) - 1 else ""), style=STYLE[word])
        lines.append(text)
    bad = sum(r.verdict in ("fail", "unknown") for r in results)
    known = sum(r.verdict == "known-failure" for r in results)
    said = (
        f"{_cases(bad)} failed or stayed unknown."
        if bad
        else "Nothing failed that is not listed."
        if known
        else "Nothing failed."
        if any(r.case for r in results)
        else "No case was run."
    )
    if known:
        said += f" {_cases(known)} failed as listed: deviations of the implementation, with their reasons above."
    lines += [
        Text(said),
        Text(
            "Inapplicable: not offered. The number under a count: the worst error of a passing case, in units of its bound."
            + (" Void: the contract is so wide that zeros would pass as one of the outputs." if _any_void(results) else "")
        ),
        *([Text(f"inputs that came second: {' '.join(f'--seed {seed}' for seed in head.seeds)}")] if head.seeds else []),
        Text(f"report: {where}"),
    ]
    return Panel(Group(*lines), title="judged against the float64 reference", border_style="red" if bad else "green")


def _any_void(results: Sequence[Result]) -> bool:
    return any(o.void for r in results for o in r.outputs)


def show(console: Console, head: Header, results: Sequence[Result], diagnoses: Sequence[Diagnosis], where: str) -> None:
    """Everything; the matrix and what was judged come last, where a terminal stops."""
    console.print(left_out(results))
    if diagnoses or any(r.verdict in ("fail", "unknown") for r in results):
        console.print(failures(diagnoses, results), soft_wrap=True)
    console.print()
    console.print(matrix(results, console))
    console.print(summary(head, results, where))
