"""The verdicts on the papers' tables, as Markdown; `ssmspec gates table --write` writes it into `docs/performance.md`."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from ..files import head
from ..verdicts.gates import Gates
from ..verdicts.verdict import Judged, Verdict
from .page_section import PageSection

MADE = PageSection("papers")
KINDS = {"derived": "derived", "another": "measured by others", "ours": "ours"}
WINDOW = re.compile(r"window of (\d+)")


def text(gates: Gates, judged: Sequence[Judged]) -> str:
    """A line for each table of a paper, then its cells, and why some do not pass."""
    return "\n".join([*summary(judged), "", *cells(gates, judged)])


def summary(judged: Sequence[Judged]) -> Iterator[str]:
    """How many cells of each table have which verdict."""
    total = Counter(j.verdict for j in judged)
    counts = ", ".join(f"{total[v]} {v.value}" for v in Verdict)
    yield f"{len(judged)} cells of the papers' tables: {counts}."
    yield ""
    yield from head(f"table | what it is | {' | '.join(v.value for v in Verdict)}")
    for table in dict.fromkeys(j.table for j in judged):
        own = Counter(j.verdict for j in judged if j.table is table)
        yield f"| {table.source} | {table.kind} | {' | '.join(str(own[v]) for v in Verdict)} |"


def cells(gates: Gates, judged: Sequence[Judged]) -> Iterator[str]:
    """Every table with its dims, its reason, and its cells."""
    for table in dict.fromkeys(j.table for j in judged):
        own = [j for j in judged if j.table is table]
        dims = f"{table.dims} ({gates.dims[table.dims].of})"
        yield f"**{table.source}**: {table.kind}, {dims}. {table.reason} Weights: {table.weights}."
        yield ""
        yield "| | paper | other figure | target | ours | floor | verdict |"
        yield "|---|---|---|---|---|---|---|"
        yield from (row(j) for j in own)
        yield ""
        if table.speed_ups:
            yield from speed_ups(own)
        for of in dict.fromkeys(f"{KINDS[j.cell.kind].capitalize()}: {j.cell.of}." for j in own if j.cell.of):
            yield of
            yield ""
        for why in dict.fromkeys(w for j in own for w in (j.listed or j.why, j.unstable) if w):
            yield f"{why[0].upper()}{why[1:]}."
            yield ""


def speed_ups(judged: Sequence[Judged]) -> Iterator[str]:
    """tau over the cost, for tau of 1 to the window's tokens."""
    windows = [int(WINDOW.findall(j.cell.over[0].operation)[0]) for j in judged]
    taus = range(1, max(windows) + 1)
    yield from head(f"speed-up at tau of | {' | '.join(map(str, taus))}")
    for j, window in zip(judged, windows, strict=True):
        gains = (f"{tau / j.value:.2f}" if j.value and tau <= window else "" for tau in taus)
        yield f"| {j.cell.at} | {' | '.join(gains)} |"
    yield ""


def row(judged: Judged) -> str:
    sign = "<=" if judged.table.sense == "most" else ">="
    ours = "" if judged.value is None else told(judged)
    floor = "" if judged.floor is None else f"{judged.floor:.2f}"
    paper = "" if judged.cell.paper is None else f"{judged.cell.paper:g}"
    other = "" if judged.cell.figure is None else f"{judged.cell.figure:g}, {KINDS[judged.cell.kind]}"
    return f"| {judged.cell.at} | {paper} | {other} | {sign} {judged.target:g} | {ours} | {floor} | {judged.verdict.value} |"


def told(judged: Judged) -> str:
    """The value, with its error if the target lies within it."""
    assert judged.value is not None
    shown = figure(judged.value, judged.target, judged.table.sense)
    apart = 2 * judged.error * judged.value
    return f"{shown} +- {apart:.2g}" if abs(judged.value - judged.target) <= apart else shown


def figure(value: float, target: float, sense: str) -> str:
    """Two digits, or as many as needed for the printed value to be on the same side of the target as the measured one."""
    reached = value <= target if sense == "most" else value >= target
    for digits in range(2, 9):
        shown = round(value, digits)
        if (shown <= target if sense == "most" else shown >= target) == reached:
            return f"{value:.{digits}f}"
    return repr(value)
