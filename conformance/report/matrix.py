"""The terminal view of a report: the matrix, the failures, and a final summary."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from rich import box
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from ssmspec_ref.contract import OPERATIONS

from .activity import IDLE
from .activity import told as activity
from .failure_groups import grouped, listed
from .grid import Cell, groups, not_offered, places, resumed, stopped, totals, wider
from .grid import Group as Grid
from .reading import reading
from .stream import Diagnosis, Header, Result

STYLE = {"pass": "green", "inapplicable": "dim", "known-failure": "yellow", "unknown": "magenta", "fail": "bold red"}
STYLE |= {"not-run": "yellow"}
LINE = 100
"""Longest line that names the operations that are not offered."""
SHOWN = 6
"""Most reasons per adapter to print in the terminal."""
WIDEST = 10_000
"""Columns of a console wide enough for any table."""


def matrix(results: Sequence[Result], console: Console) -> RenderableType:
    """One table for each group of operations: a row per subject and contract, a column per operation.

    A cell shows passed/run, and below it the failures, or the largest error relative to its bound, and the number of cases
    with an output that the contract does not bound usefully. A group wider than the console continues in another table,
    without the rows that have none of its operations.
    """
    return Group(*(table for group in groups(results) for table in _tables(group, console)))


def _tables(group: Grid, console: Console) -> Iterator[Table]:
    """As many operations per table as the console has room for, in order, and at least one."""
    wide, left = console.options.update(width=WIDEST), group.operations
    while left:
        cuts = (_table(group, left[:count], console.width // 2) for count in range(len(left), 0, -1))
        table = next(t for t in cuts if len(t.columns) == 2 or console.measure(t, options=wide).maximum <= console.width)
        yield table
        left = left[len(table.columns) - 1 :]


def _table(group: Grid, operations: Sequence[str], most: int) -> Table:
    """Some operations of a group; names longer than `most` are folded."""
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
    """passed/run, and below it the failures, or the largest utilisation; a dash if the operation is not offered."""
    if not cell.results:
        return Text("–", style="dim")
    text = Text(f"{cell.counts['pass']}/{cell.ran}", style=STYLE[cell.worst])
    if cell.bad:
        return text.append("\n" + ", ".join(cell.bad))
    text.append(f"\n{cell.utilisation:.2g}" if cell.utilisation > 0 else "\nexact", style="dim")
    return text.append(f"\n{cell.void} void", style="yellow") if cell.void else text


def failures(diagnoses: Iterable[Diagnosis], results: Sequence[Result], full: bool = True) -> RenderableType:
    """Each kind of failure once, in reading order; `full` prints the folded lines too."""
    lines: list[RenderableType] = []
    for group in grouped(diagnoses):
        d = group.first
        head = Text(f"{d.verdict}  ", style=STYLE[d.verdict])
        head.append(f"{d.adapter}: {group.operations}  {group.contracts}", style="bold")
        head.append(f"  {group.failures} of {_cases(group.cases)} of {group.subjects}: {d.failing}")
        told = reading(group)
        lines += [Text(), head, *(Text(f"    {name:<9} {said}") for name, said in told.first)]
        lines += [Text(f"    {name:<9} {said}", style="dim") for name, said in (told.rest if full else ())]
        lines += [Text(f"    {line}", style="cyan") for line in told.again]
    for r in results:
        if r.verdict == "unknown" or (r.verdict == "fail" and not r.operation):
            lines.append(Text(f"{r.verdict}  {r.adapter}: {r.subject}  {r.case}  {r.message}", style=STYLE[r.verdict]))
    return Group(*lines)


def left_out(results: Sequence[Result]) -> RenderableType:
    """What was not run: for each adapter one line with the operations that no subject offers, and one line for each reason
    why an operation is offered in part. Longer lists are on the page only."""
    lines: list[Text] = []
    for adapter in dict.fromkeys(r.adapter for r in results):
        own = [r for r in results if r.adapter == adapter and r.operation]
        out = [r for r in own if r.verdict == "inapplicable"]
        offered = {r.operation for r in own if r.contract or r.case}
        absent = {r.operation for r in out} - offered
        if absent:
            lines.append(Text(_absent(adapter, absent, offered), style="dim"))
        partly: dict[tuple[str, str], list[Result]] = defaultdict(list)
        for r in out:
            if r.operation not in absent:
                partly[r.operation if r.contract else "", r.reason].append(r)
        told = [_partly(adapter, operation, reason, some) for (operation, reason), some in partly.items()]
        more = f"{adapter}: {len(told) - SHOWN} more reasons are on the page" if len(told) > SHOWN else ""
        lines += [Text(line, style="dim") for line in [*told[:SHOWN], *([more] if more else [])]]
    return Group(*lines)


def _absent(adapter: str, absent: set[str], offered: set[str]) -> str:
    """The operations that are not offered, if they fit on a line, else how many are."""
    named = f"{adapter}: no {_grouped(absent)}"
    if len(named) <= LINE:
        return named
    count = f"{len(offered)} of {len(offered | absent)} operations {'is' if len(offered) == 1 else 'are'} tested"
    return f"{adapter}: {count}; the others are not offered, and are listed on the page with their reasons"


def _partly(adapter: str, operation: str, reason: str, some: Sequence[Result]) -> str:
    if operation:
        return f"{adapter}: {listed(r.subject for r in some)}: {operation} is not tested with {reason}"
    return f"{adapter}: {listed(r.subject for r in some)}: no {_grouped({r.operation for r in some})}: {reason}"


def _grouped(operations: set[str]) -> str:
    """Operations by name, or by group if all of it is included."""
    whole: dict[str, set[str]] = defaultdict(set)
    for operation in OPERATIONS:
        whole[operation.split(".")[0]].add(operation)
    named = [f"{group}.*" for group, every in whole.items() if every <= operations]
    return ", ".join([*named, *(o for o in sorted(operations) if f"{o.split('.')[0]}.*" not in named)])


def _cases(count: int) -> str:
    return f"{count} case{'' if count == 1 else 's'}"


UNSETTLED = (("fail", "failed"), ("unknown", "stayed unknown"))


def summary(head: Header, results: Sequence[Result], where: str) -> Panel:
    """The final summary: what was tested, the result, and where the report is."""
    lines = []
    for name, version in head.adapters.items():
        own = [r for r in results if r.adapter == name]
        subjects = len({r.subject for r in own if r.case})
        counts = totals(own)
        ran = sum(bool(r.case) and r.verdict != "not-run" for r in own)
        text = Text(f"{name} {version}", style="bold")
        text.append(f": {subjects} subject{'' if subjects == 1 else 's'}, {_cases(ran)}, tier {head.tier}: ")
        shown = [(w, c) for w, c in counts.items() if c and w != "inapplicable"]
        for index, (word, count) in enumerate(shown):
            said = word.replace("not-run", "not run")
            text.append(f"{count} {said}" + (", " if index < len(shown) - 1 else ""), style=STYLE[word])
        lines.append(text)
        lines += _not_run(own)
    unsettled = ((sum(r.verdict == kind and r.failing != IDLE for r in results), said) for kind, said in UNSETTLED)
    bad = [f"{_cases(count)} {said}." for count, said in unsettled if count]
    idle = any(r.failing == IDLE for r in results)
    known = sum(r.verdict == "known-failure" for r in results)
    said = (
        " ".join(bad)
        if bad
        else "No failures, except those listed as known."
        if known
        else "Nothing failed."
        if any(r.case and r.verdict != "not-run" for r in results)
        else "No case was run."
    )
    if refused := Cell(tuple(results)).refused:
        said += f" {_cases(refused)} of them refused: the limits claim what the implementation does not take."
    if known:
        said += f" {_cases(known)} failed as known: see their reasons above."
    if idle:
        said += " Speculation was not exercised, so nothing is known about it."
    lines += [
        Text(said),
        *([Text(told, style="bold yellow")] if (told := stopped(results)) else []),
        *([Text(f"resumed: {resumed(head)}", style="yellow")] if head.resumed else []),
        *(Text(line, style="yellow") for line in [*activity(results), *wider(results)]),
        *_places(head, results),
        Text(
            "The number under a count is the worst error of a passing case, in units of its bound."
            + (" Void: the contract is so wide that an output of zeros would pass." if _any_void(results) else "")
        ),
        *(
            [Text(f"seed of the inputs of repeated calls: {' '.join(f'--seed {seed}' for seed in head.seeds)}")]
            if head.seeds
            else []
        ),
        Text(f"report: {where}"),
    ]
    border = "red" if bad or idle or stopped(results) else "yellow" if head.resumed else "green"
    return Panel(Group(*lines), title="tested against the float64 reference", border_style=border)


def _not_run(own: Sequence[Result]) -> Iterator[Text]:
    """How many cases could have run but did not, and how many operations no subject offers."""
    outside, absent = not_offered(own)
    if outside:
        yield Text(f"inapplicable: {_cases(outside)} with options or sizes that the adapter does not offer", style="dim")
    if absent:
        yield Text(f"not offered: {absent} operation{'' if absent == 1 else 's'}", style="dim")


def _places(head: Header, results: Sequence[Result]) -> Iterator[Text]:
    """Where the cases ran, as observed by their workers."""
    seen, idle = places(results, head.device)
    if seen:
        yield Text(f"ran on: {', '.join(f'{place} ({_cases(count)})' for place, count in seen.items())}")
    if idle:
        yield Text(f"--device {head.device} was given, but these adapters never used it: {listed(idle)}", style="yellow")


def _any_void(results: Sequence[Result]) -> bool:
    return any(o.void for r in results for o in r.outputs)


def show(
    console: Console,
    head: Header,
    results: Sequence[Result],
    diagnoses: Sequence[Diagnosis],
    where: str,
    tabled: bool = False,
    folded: str = "",
) -> None:
    """Print everything; the matrix and the summary come last, where the terminal stops scrolling. `tabled`: the matrix was
    printed before the failures were explained. `folded`: the command that prints what this leaves out of the failures; ""
    to leave out nothing."""
    console.print(left_out(results))
    if diagnoses or any(r.verdict in ("fail", "unknown") for r in results):
        console.print(failures(diagnoses, results, not folded), soft_wrap=True)
    if folded and diagnoses:
        console.print(Text(f"\nmore of each failure: {folded}, or the page", style="dim"), soft_wrap=True)
    console.print()
    if not tabled:
        console.print(matrix(results, console))
    console.print(summary(head, results, where))
