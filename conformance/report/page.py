"""A report as one HTML page: the matrix, the cases of each cell, kinds of failure, utilisation, environment.

The page is self-contained and works from disk. The matrix, the kinds of failure and the drawings are in its HTML; the cases
of a cell are embedded data, which its script shows when a cell is opened.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from .activity import told as activity
from .compare import Comparison, conditions, counted, parts
from .failure_groups import grouped
from .grid import RANK, Cell, Group, groups, not_offered, places, resumed, stopped, totals, wider
from .plot import plots
from .reading import reading
from .stream import Output, Report, Result

TEMPLATES = Path(__file__).parent.parent / "templates"


@dataclass(frozen=True)
class Shown:
    """A cell as printed: its number in the page's data, and its two lines."""

    number: int
    cell: Cell

    @property
    def first(self) -> str:
        return f"{self.cell.counts['pass']}/{self.cell.ran}"

    @property
    def second(self) -> str:
        bad = self.cell.bad + ([f"{self.cell.void} void"] if self.cell.void else [])
        return ", ".join(bad) or (f"{self.cell.utilisation:.2g}" if self.cell.utilisation > 0 else "exact")

    @property
    def share(self) -> float:
        """How much of the bound the worst output uses, between 0 and 1, for its bar."""
        return min(1.0, self.cell.utilisation) if self.cell.utilisation == self.cell.utilisation else 1.0


def page(report: Report) -> str:
    """The page of a report, as HTML."""
    found = groups(report.results)
    shown = number_cells(found)
    seen, idle = places(report.results, report.header.device)
    outside, absent = not_offered(report.results)
    return str(
        _templates()
        .get_template("page.html.j2")
        .render(
            head=report.header,
            foot=report.footer,
            groups=found,
            shown=shown,
            adapters={name: totals(report.results, name) for name in report.header.adapters},
            totals=totals(report.results),
            ran=sum(bool(r.case) and r.verdict != "not-run" for r in report.results),
            outside=outside,
            absent=absent,
            seen=seen,
            idle=idle,
            rank=RANK,
            seconds=sum(r.seconds for r in report.results),
            wider=[*activity(report.results), *wider(report.results)],
            resumed=resumed(report.header),
            stopped=stopped(report.results),
            failure_groups=grouped(report.diagnoses),
            reading=reading,
            squares=squares,
            loose=[r for r in report.results if r.verdict == "unknown" or (r.verdict == "fail" and not r.operation)],
            left_out=left_out(report.results),
            plots=plots(report.results),
            style=_style(),
            script=Markup((TEMPLATES / "page.js").read_text(encoding="utf-8")),
            data=Markup(embedded(data(shown))),
        )
    )


def comparison(found: Comparison, before: Report, after: Report) -> str:
    """The page of a comparison, as HTML: every change, not only the first ones."""
    return str(
        _templates()
        .get_template("compare.html.j2")
        .render(
            adapters=list(dict.fromkeys([*before.header.adapters, *after.header.adapters])),
            worse=found.worse,
            said=counted(found),
            conditions=conditions(before, after),
            parts=parts(found),
            style=_style(),
        )
    )


def _style() -> Markup:
    return Markup((TEMPLATES / "page.css").read_text(encoding="utf-8"))


def number_cells(found: list[Group]) -> dict[tuple[str, str, str, str], Shown]:
    """Every cell with cases, by adapter, subject, contract and operation."""
    shown: dict[tuple[str, str, str, str], Shown] = {}
    for group in found:
        for row in group.rows:
            for operation, cell in row.cells.items():
                if cell.results:
                    shown[row.adapter, row.subject, row.contract, operation] = Shown(len(shown), cell)
    return shown


def data(shown: dict[tuple[str, str, str, str], Shown]) -> dict[str, Any]:
    """The data for the script: for each cell its names and its cases; repeated texts are stored once."""
    texts: dict[str, int] = {}

    def text(said: str) -> int:
        return texts.setdefault(said, len(texts))

    cells = [
        {"name": list(name), "cases": [_case(r, text) for r in one.cell.results]}
        for name, one in sorted(shown.items(), key=lambda item: item[1].number)
    ]
    return {"cells": cells, "texts": list(texts), "rank": list(RANK)}


def _case(r: Result, text: Any) -> list[Any]:
    """case, verdict, kind, message, source, reason, link, rerun, seconds, outputs."""
    outputs = [[text(o.name), *map(_number, (o.utilisation, o.error, o.bound)), _at(o), *_wrong(o)] for o in r.outputs]
    told = [text(part) for part in (r.failing, r.message, r.source, r.reason, r.link)]
    rerun = text(r.rerun.replace(r.case, "\x00"))
    return [r.case, RANK.index(r.verdict), *told, rerun, round(r.seconds, 4), outputs]


def _wrong(o: Output) -> list[Any]:
    """Both values, and the picture, for a wrong output."""
    if o.utilisation <= 1 or o.expected is None or o.got is None:
        return []
    return [_exact(o.expected), _exact(o.got), list(o.picture)]


def _exact(x: float) -> float | str:
    return float(f"{x:.9g}") if abs(x) < float("inf") else str(x)


def squares(picture: Sequence[str]) -> list[tuple[int, int, str]]:
    """The wrong positions of a picture: column, row, and how far off, from 1 to 9."""
    return [(x, y, letter) for y, row in enumerate(picture[1:]) for x, letter in enumerate(row) if letter != "."]


def _number(x: float) -> float | str:
    """Three digits; values that JSON cannot represent become text."""
    return float(f"{x:.3g}") if abs(x) < float("inf") else str(x)


def _at(o: Output) -> str:
    """The position of the worst element. Of an older report only the first is known, and the values are of that one."""
    return f"first at {_place(o.first)}" if o.at is None else _place(o.at)


def _place(position: dict[str, int]) -> str:
    return ", ".join(f"{axis}={index}" for axis, index in position.items())


def embedded(value: Any) -> str:
    """JSON, escaped so that it cannot end the HTML element that contains it."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def left_out(results: list[Result]) -> list[tuple[str, str, str, list[str]]]:
    """Adapter, subject, reason and operations of everything that was not run."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for r in results:
        if r.verdict == "inapplicable":
            found.setdefault((r.adapter, r.subject, r.reason), []).append(r.operation)
    return [(*who, operations) for who, operations in found.items()]


@cache
def _templates() -> Environment:
    return Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
