"""The matrix of a report as data: for each group of operations, rows of subjects and contracts, and what fills a cell."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .report import Result

RANK = ("pass", "inapplicable", "known-failure", "unknown", "fail")
"""Verdicts, the worst last."""


@dataclass(frozen=True)
class Cell:
    """The cases of one operation of one subject under one contract."""

    results: tuple[Result, ...]

    @property
    def counts(self) -> dict[str, int]:
        """Of every verdict, none left out."""
        return {word: sum(r.verdict == word for r in self.results) for word in RANK}

    @property
    def worst(self) -> str:
        """The worst verdict; inapplicable where there is no case."""
        return max((r.verdict for r in self.results), key=RANK.index, default="inapplicable")

    @property
    def utilisation(self) -> float:
        """The largest error in units of its bound."""
        return max((o.utilisation for r in self.results for o in r.outputs), default=0.0)

    @property
    def void(self) -> int:
        """Cases with an output of which the contract says nothing."""
        return sum(any(o.void for o in r.outputs) for r in self.results)


@dataclass(frozen=True)
class Row:
    """One subject under one contract."""

    adapter: str
    subject: str
    contract: str
    cells: Mapping[str, Cell]


@dataclass(frozen=True)
class Group:
    """The operations of one name ("ssd"), and the subjects that have any of them."""

    name: str
    operations: tuple[str, ...]
    rows: tuple[Row, ...]


def groups(results: Sequence[Result]) -> list[Group]:
    """The groups in which a case was run, in the order of the report."""
    of: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        if result.case and result.operation:
            of[result.operation.split(".")[0]].append(result)
    return [_group(name, found) for name, found in of.items()]


def _group(name: str, results: list[Result]) -> Group:
    operations = tuple(dict.fromkeys(r.operation for r in results))
    rows: dict[tuple[str, str, str], dict[str, list[Result]]] = defaultdict(lambda: defaultdict(list))
    for r in results:
        rows[r.adapter, r.subject, r.contract][r.operation].append(r)
    cells = {row: {o: Cell(tuple(found.get(o, ()))) for o in operations} for row, found in rows.items()}
    return Group(name, operations, tuple(Row(*row, found) for row, found in cells.items()))


def totals(results: Sequence[Result], adapter: str = "") -> dict[str, int]:
    """The counts of every verdict, of one adapter or of all."""
    return Cell(tuple(r for r in results if adapter in ("", r.adapter))).counts
