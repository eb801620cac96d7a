"""The terminal's view of a report: the matrix, the failures, and one last screen."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import groupby

from rich import box
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from .report import Diagnosis, Header, Result

RANK = ("pass", "inapplicable", "known-failure", "unknown", "fail")
STYLE = {"pass": "green", "inapplicable": "dim", "known-failure": "yellow", "unknown": "magenta", "fail": "bold red"}


def matrix(results: Sequence[Result]) -> RenderableType:
    """For each group of operations, one table: a row for each subject and contract, a column for each operation.

    A cell reads passed/run; below it what did not pass, or the worst error in units of its bound, and how many cases have an
    output of which the contract says nothing.
    """
    groups: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        if result.operation:
            groups[result.operation.split(".")[0]].append(result)
    return Group(*(_table(name, found) for name, found in groups.items() if any(r.case for r in found)))


def _table(name: str, results: list[Result]) -> Table:
    operations = list(dict.fromkeys(r.operation for r in results if r.case))
    rows: dict[tuple[str, str, str], dict[str, list[Result]]] = defaultdict(lambda: defaultdict(list))
    for result in results:
        if result.case:
            rows[result.adapter, result.subject, result.contract][result.operation].append(result)
    table = Table(title=name, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("", overflow="fold")
    for operation in operations:
        table.add_column(operation.split(".", 1)[1].replace("_", " "), justify="right", no_wrap=True)
    for adapter, found in groupby(rows, key=lambda row: row[0]):
        table.add_row(Text(adapter, style="bold underline"))
        for _, subject, contract in found:
            cells = rows[adapter, subject, contract]
            head = Text(subject).append(f"\n  {contract}", style="dim")
            table.add_row(head, *(cell(cells[operation]) for operation in operations))
        table.add_section()
    return table


def cell(results: Sequence[Result]) -> Text:
    """passed/run, and below it what did not pass, or the worst utilisation; a dash where the operation is not offered."""
    if not results:
        return Text("–", style="dim")
    counts = {word: sum(r.verdict == word for r in results) for word in RANK}
    worst = max((word for word, count in counts.items() if count), key=RANK.index)
    text = Text(f"{counts['pass']}/{len(results)}", style=STYLE[worst])
    bad = [word for word in ("fail", "unknown", "known-failure") if counts[word]]
    if bad:
        return text.append("\n" + ", ".join(f"{counts[word]} {word.removesuffix('-failure')}" for word in bad))
    utilisation = max((o.utilisation for r in results for o in r.outputs), default=0.0)
    text.append(f"\n{utilisation:.2g}" if utilisation > 0 else "\nexact", style="dim")
    empty = sum(any(o.void for o in r.outputs) for r in results)
    return text.append(f"\n{empty} void", style="yellow") if empty else text


def failures(diagnoses: Iterable[Diagnosis], results: Sequence[Result]) -> RenderableType:
    """Each way of failing once: the subjects that share it, its smallest case and the line that runs it again."""
    ways: dict[tuple[str, ...], list[Diagnosis]] = defaultdict(list)
    for d in diagnoses:
        ways[d.verdict, d.adapter, d.operation, d.contract, d.failing, d.smallest].append(d)
    lines: list[RenderableType] = []
    for (verdict, adapter, operation, contract, failing, smallest), found in sorted(ways.items(), key=_worst_first):
        head = Text(f"{verdict}  ", style=STYLE[verdict])
        head.append(f"{adapter}: {operation}  {contract}", style="bold")
        failed, ran = sum(d.failures for d in found), sum(d.cases for d in found)
        head.append(f"  {failed} of {_cases(ran)} of {', '.join(d.subject for d in found)}: {failing}")
        d = found[0]
        why = f"known     {d.reason}  {d.link}" if d.reason else f"source    {d.source}"
        lines += [Text(), head, *(Text(f"    {part}") for part in (d.message, f"smallest  {smallest}", why))]
        lines.append(Text(f"    {d.rerun}", style="cyan"))
    for r in results:
        if r.verdict == "unknown" or (r.verdict == "fail" and not r.operation):
            lines.append(Text(f"{r.verdict}  {r.adapter}: {r.subject}  {r.case}  {r.message}", style=STYLE[r.verdict]))
    return Group(*lines)


def _worst_first(way: tuple[tuple[str, ...], list[Diagnosis]]) -> tuple[int, str, str]:
    verdict, adapter, operation, *_ = way[0]
    return -RANK.index(verdict), adapter, operation


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
        said.append(Text(f"{adapter}: {', '.join(subjects)}: {what} {reason}", style="dim"))
    return Group(*said)


def _cases(count: int) -> str:
    return f"{count} case{'' if count == 1 else 's'}"


def summary(head: Header, results: Sequence[Result], where: str) -> Panel:
    """The last screen: what was judged, what came of it, where the report lies."""
    lines = []
    for name, version in head.adapters.items():
        own = [r for r in results if r.adapter == name]
        subjects = len({r.subject for r in own if r.case})
        counts = {word: sum(r.verdict == word for r in own) for word in RANK}
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
    )
    if known:
        said += f" {_cases(known)} failed as listed: deviations of the implementation, with their reasons above."
    lines += [
        Text(said),
        Text(
            "Inapplicable: not offered. The number under a count: the worst error of a passing case, in units of its bound."
            + (" Void: the contract is so wide that zeros would pass as one of the outputs." if _any_void(results) else "")
        ),
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
    console.print(matrix(results))
    console.print(summary(head, results, where))
