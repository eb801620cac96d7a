"""The matrix of a report as data: for each group of operations, rows of subjects and contracts, and the cells."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isnan

from ..device.observed import CPU, INTERPRETER
from ..judge.raised import REFUSED
from ..judge.stricter import MATTERS
from .activity import IDLE
from .stream import Header, Result

FEW = 3
"""Cases that a stricter contract is derived from."""
RANK = ("pass", "inapplicable", "known-failure", "not-run", "unknown", "fail")
"""Verdicts, the worst last."""


@dataclass(frozen=True)
class Cell:
    """The cases of one operation of one subject under one contract; `idle` if speculation was not exercised in them."""

    results: tuple[Result, ...]
    idle: bool = False

    @property
    def counts(self) -> dict[str, int]:
        """The count of every verdict, including zeros."""
        return {word: sum(r.verdict == word for r in self.results) for word in RANK}

    @property
    def refused(self) -> int:
        """Cases that the implementation refused although its limits claim them."""
        return sum(r.verdict == "fail" and r.failing == REFUSED for r in self.results)

    @property
    def ran(self) -> int:
        """The number of cases that were run."""
        return len(self.results) - self.counts["not-run"]

    @property
    def bad(self) -> list[str]:
        """What did not pass, with counts."""
        words = {"unknown": "unknown", "known-failure": "known", "not-run": "not run"}
        counts = {"fail": self.counts["fail"] - self.refused, REFUSED: self.refused}
        counts |= {said: self.counts[word] for word, said in words.items()}
        idle = self.idle or (self.refused > 0 and self.refused == len(self.results))
        return [f"{count} {said}" for said, count in counts.items() if count] + [IDLE] * idle

    @property
    def worst(self) -> str:
        """The worst verdict; inapplicable if there is no case."""
        found = [r.verdict for r in self.results] + ["unknown"] * self.idle
        return max(found, key=RANK.index, default="inapplicable")

    @property
    def utilisation(self) -> float:
        """The largest error relative to its bound."""
        return max((inf if isnan(o.utilisation) else o.utilisation for r in self.results for o in r.outputs), default=0.0)

    @property
    def void(self) -> int:
        """Cases with an output on which the contract puts no useful bound."""
        return sum(any(o.void for o in r.outputs) for r in self.results)

    @property
    def stricter(self) -> dict[str, int]:
        """The narrower contracts under which every case would pass too that says something about them, and how many do; `FEW`
        say nothing."""
        said = [(name, holds) for r in self.results for name, holds in r.stricter.items()]
        broken = {name for name, holds in said if not holds}
        counts = Counter(name for name, _ in said if name not in broken) if self.counts["pass"] == len(self.results) else {}
        return {name: count for name, count in counts.items() if count >= FEW}


@dataclass(frozen=True)
class Row:
    """One subject under one contract."""

    adapter: str
    subject: str
    contract: str
    cells: Mapping[str, Cell]


@dataclass(frozen=True)
class Group:
    """The operations with one prefix ("ssd"), and the subjects that have any of them."""

    name: str
    operations: tuple[str, ...]
    rows: tuple[Row, ...]


def groups(results: Sequence[Result]) -> list[Group]:
    """The groups with at least one case, in the order of the report."""
    of: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        if result.case and result.operation:
            of[result.operation.split(".")[0]].append(result)
    idle = {(r.adapter, r.subject, r.contract, r.operation) for r in results if r.failing == IDLE}
    return [_group(name, found, idle) for name, found in of.items()]


def _group(name: str, results: list[Result], idle: set[tuple[str, str, str, str]]) -> Group:
    operations = tuple(dict.fromkeys(r.operation for r in results))
    rows: dict[tuple[str, str, str], dict[str, list[Result]]] = defaultdict(lambda: defaultdict(list))
    for r in results:
        rows[r.adapter, r.subject, r.contract][r.operation].append(r)
    cells = {row: {o: Cell(tuple(found.get(o, ())), (*row, o) in idle) for o in operations} for row, found in rows.items()}
    return Group(name, operations, tuple(Row(*row, found) for row, found in cells.items()))


def wider(results: Sequence[Result]) -> list[str]:
    """A line for each contract that is declared wider than what a subject computes, with the operations that show it."""
    found: dict[tuple[str, str, str, str], dict[str, int]] = defaultdict(dict)
    for group in groups(results):
        for row in group.rows:
            for operation, cell in row.cells.items():
                for said, count in cell.stricter.items():
                    found[row.adapter, row.subject, row.contract, said][operation] = count
    return [
        f"{adapter}: {subject}, declared {contract}, would also hold under {said}: {', '.join(counts)} "
        f"({sum(counts.values())} cases at {MATTERS:g} times smaller bounds)"
        for (adapter, subject, contract, said), counts in found.items()
    ]


def places(results: Sequence[Result], asked: str) -> tuple[dict[str, int], list[str]]:
    """Where cases were observed to run, with counts; and the subjects that never used the device given by --device."""
    ran = [r for r in results if r.place]
    counts = Counter(r.place for r in ran)
    used: dict[str, set[str]] = defaultdict(set)
    for r in ran:
        used[r.subject].add(r.place)
    without = {CPU} if asked == "interpreter" else {CPU, INTERPRETER}
    idle = [subject for subject, seen in used.items() if asked != CPU and seen <= without]
    return dict(counts.most_common()), idle


def totals(results: Sequence[Result], adapter: str = "") -> dict[str, int]:
    """The counts of every verdict, for one adapter or for all."""
    return Cell(tuple(r for r in results if adapter in ("", r.adapter))).counts


def not_offered(results: Sequence[Result], adapter: str = "") -> tuple[int, int]:
    """Cases of the tier outside the declared limits, and operations that no subject offers; of one adapter or of all. With
    the cases that ran and those not run they make up the tier."""
    outside, absent = 0, 0
    for name in dict.fromkeys(r.adapter for r in results if adapter in ("", r.adapter)):
        own = [r for r in results if r.adapter == name]
        offered = {r.operation for r in own if r.contract or r.case}
        outside += sum(r.outside for r in own)
        absent += len({r.operation for r in own if r.verdict == "inapplicable"} - offered)
    return outside, absent


def stopped(results: Sequence[Result]) -> str:
    """Why a run stopped early, and how many cases it left; "" if it did not."""
    left = [r for r in results if r.verdict == "not-run"]
    return f"{left[0].reason}; {len(left)} case{' was' if len(left) == 1 else 's were'} not run" if left else ""


def resumed(head: Header) -> str:
    """What to say of results that were kept from an interrupted run; "" if there are none."""
    kept = f"{head.resumed} result{'' if head.resumed == 1 else 's'}"
    return f"{kept} kept from an interrupted run, and not run again" if head.resumed else ""
