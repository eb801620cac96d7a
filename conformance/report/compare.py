"""Compare two reports: what fails now but did not before, what is fixed or no longer run, what uses more of its bound.

A case is identified by its adapter, subject, contract, operation and id. A loosened contract is another contract: its cases
are reported as no longer run under the old one. A case whose sizes are of a run's seed is in one report only, unless the
seeds are equal: such cases are counted apart, and are neither new nor no longer run; one that fails now has broken.
"""

from collections.abc import Callable
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from .stream import Report, Result

GREEN = ("pass", "known-failure")
FACTOR = 2.0
"""How much more of its bound an output may use before it is reported."""
SMALL = 1e-3
"""Below this fraction of the bound nothing is reported: it may be another order of evaluation."""
Key = tuple[str, str, str, str, str]


@dataclass(frozen=True)
class Change:
    """One case in both reports; it may be missing in one."""

    key: Key
    before: Result | None
    after: Result | None

    @property
    def of_a_seed(self) -> bool:
        """Whether the case is missing in one report because it was drawn in the other."""
        found = self.before or self.after
        return found is not None and found.drawn and not (self.before and self.after)

    @property
    def used(self) -> tuple[float, float]:
        """The largest fraction of a bound used, before and after."""
        before, after = (_used(side) for side in (self.before, self.after))
        return before, after


@dataclass(frozen=True)
class Comparison:
    """What changed between two reports."""

    broken: tuple[Change, ...]
    fixed: tuple[Change, ...]
    gone: tuple[Change, ...]
    new: tuple[Change, ...]
    more: tuple[Change, ...]
    less: tuple[Change, ...]
    same: int
    drawn: tuple[int, int] = (0, 0)
    """Cases of the seeds that only the first report has, and only the second."""

    @property
    def worse(self) -> bool:
        """Whether a case broke, or is no longer run. Using more of a bound is reported, but is not a failure."""
        return bool(self.broken or self.gone)


def compare(before: Report, after: Report, factor: float = FACTOR) -> Comparison:
    """Compare every case that occurs in either report."""
    old, new = _cases(before), _cases(after)
    changes = [Change(key, old.get(key), new.get(key)) for key in dict.fromkeys([*old, *new])]
    both = [c for c in changes if c.before and c.after]
    broken = [c for c in both if c.before.verdict in GREEN and c.after.verdict not in GREEN]  # type: ignore[union-attr]
    broken += [c for c in changes if not c.before and c.after and c.after.verdict not in GREEN]
    fixed = [c for c in both if c.before.verdict not in GREEN and c.after.verdict in GREEN]  # type: ignore[union-attr]
    fixed += [c for c in both if (c.before.verdict, c.after.verdict) == ("known-failure", "pass")]  # type: ignore[union-attr]
    kept = [c for c in both if c.before.verdict in GREEN and c.after.verdict in GREEN]  # type: ignore[union-attr]
    more = [c for c in kept if c.used[1] > factor * c.used[0] and c.used[1] > SMALL]
    less = [c for c in kept if c.used[0] > factor * c.used[1] and c.used[0] > SMALL and c not in fixed]
    told = {c.key for part in (broken, fixed, more, less) for c in part}
    drawn = [c for c in changes if c.of_a_seed and c not in broken]
    return Comparison(
        tuple(broken),
        tuple(fixed),
        tuple(c for c in changes if not c.after and c not in drawn),
        tuple(c for c in changes if not c.before and c not in drawn),
        tuple(sorted(more, key=lambda c: c.used[0] / c.used[1])),
        tuple(sorted(less, key=lambda c: c.used[1] / c.used[0])),
        sum(c.key not in told for c in both),
        (sum(not c.after for c in drawn), sum(not c.before for c in drawn)),
    )


def _cases(report: Report) -> dict[Key, Result]:
    return {
        (r.adapter, r.subject, r.contract, r.operation, r.case): r
        for r in report.results
        if r.case and r.verdict != "not-run"
    }


def _used(result: Result | None) -> float:
    return max((o.utilisation for o in result.outputs), default=0.0) if result else 0.0


@dataclass(frozen=True)
class Part:
    """The changes of one kind, and what to say of each."""

    name: str
    style: str
    changes: tuple[Change, ...]
    say: Callable[[Change], str]


def parts(found: Comparison) -> tuple[Part, ...]:
    """The changes by kind, the worst first."""
    return (
        Part("broken", "bold red", found.broken, lambda c: c.after.message if c.after else ""),
        Part("no longer run", "bold red", found.gone, _was),
        Part("fixed", "green", found.fixed, _was),
        Part("more of the bound", "yellow", found.more, _how_much),
        Part("less of the bound", "green", found.less, _how_much),
    )


def _was(change: Change) -> str:
    return f"was {change.before.verdict}" if change.before else ""


def _how_much(change: Change) -> str:
    return "{:.2g} -> {:.2g}".format(*change.used)


def counted(found: Comparison) -> str:
    """The counts of a comparison, in one line."""
    counts = {"broken": found.broken, "no longer run": found.gone, "fixed": found.fixed, "new": found.new}
    said = ", ".join(f"{len(part)} {name}" for name, part in counts.items())
    said += f", {found.same} as before"
    if any(found.drawn):
        before_only, after_only = found.drawn
        said += f"; drawn by the seeds: {before_only} in the first report only, {after_only} in the second"
    return said


def conditions(before: Report, after: Report) -> list[tuple[str, str, str]]:
    """What the two runs differ in: its name, and the value of each."""
    old, new = before.header.model_dump(mode="json"), after.header.model_dump(mode="json")
    told = [(name, str(old[name]), str(new[name])) for name in ("tier", "device", "python", "machine", "cpus", "resumed")]
    versions = [head["versions"] | head["adapters"] for head in (old, new)]
    names = dict.fromkeys([*old["adapters"], *old["versions"], *new["adapters"], *new["versions"]])
    told += [(name, versions[0].get(name, "–"), versions[1].get(name, "–")) for name in names]
    return [one for one in told if one[1] != one[2]]


def shown(found: Comparison, before: Report, after: Report) -> RenderableType:
    """The comparison, for a terminal."""
    table = Table("", "before", "after", title="run under", title_justify="left")
    for row in conditions(before, after):
        table.add_row(*row)
    lines: list[RenderableType] = [table] if table.row_count else []
    for part in parts(found):
        lines += _list(part)
    lines.append(Text(counted(found), style="bold red" if found.worse else "bold green"))
    return Group(*lines)


def _list(part: Part, most: int = 20) -> list[RenderableType]:
    if not part.changes:
        return []
    lines: list[RenderableType] = [Text(f"{part.name}: {len(part.changes)}", style=part.style)]
    for c in part.changes[:most]:
        adapter, subject, contract, _, case = c.key
        lines.append(Text(f"    {adapter}: {subject}  {contract}  {case}  {part.say(c)}"))
    more = len(part.changes) - most
    return [*lines, *([Text(f"    and {more} more (--html lists all)", style="dim")] if more > 0 else [])]
