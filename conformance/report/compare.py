"""Compare two reports: what fails now but did not before, what is fixed or no longer run, what uses more of its bound.

A case is identified by its adapter, subject, contract, operation and id. A loosened contract is another contract: its cases
are reported as no longer run under the old one. A case whose sizes are of a run's seed is in one report only, unless the
seeds are equal: such cases are counted apart, and are neither new nor no longer run; one that fails now has broken.
"""

from collections.abc import Iterable
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


def shown(found: Comparison, before: Report, after: Report) -> RenderableType:
    """The comparison, for a terminal."""
    lines: list[RenderableType] = [*_headers(before, after)]
    lines += _list("broken", "bold red", found.broken, lambda c: c.after.message if c.after else "")
    lines += _list("no longer run", "bold red", found.gone, lambda c: f"was {c.before.verdict}" if c.before else "")
    lines += _list("fixed", "green", found.fixed, lambda c: f"was {c.before.verdict}" if c.before else "")
    lines += _list("more of the bound", "yellow", found.more, lambda c: "{:.2g} -> {:.2g}".format(*c.used))
    lines += _list("less of the bound", "green", found.less, lambda c: "{:.2g} -> {:.2g}".format(*c.used))
    counts = {"broken": found.broken, "no longer run": found.gone, "fixed": found.fixed, "new": found.new}
    said = ", ".join(f"{len(part)} {name}" for name, part in counts.items())
    said += f", {found.same} as before"
    if any(found.drawn):
        before_only, after_only = found.drawn
        said += f"; drawn by the seeds: {before_only} in the first report only, {after_only} in the second"
    lines.append(Text(said, style="bold red" if found.worse else "bold green"))
    return Group(*lines)


def _headers(before: Report, after: Report) -> Iterable[RenderableType]:
    """The conditions of the two runs that differ."""
    table = Table("", "before", "after", title="run under", title_justify="left")
    old, new = before.header.model_dump(mode="json"), after.header.model_dump(mode="json")
    for name in ("tier", "device", "python", "machine", "cpus", "resumed"):
        if old[name] != new[name]:
            table.add_row(name, str(old[name]), str(new[name]))
    for name in dict.fromkeys([*old["adapters"], *old["versions"], *new["adapters"], *new["versions"]]):
        versions = [head["adapters"].get(name, head["versions"].get(name, "–")) for head in (old, new)]
        if versions[0] != versions[1]:
            table.add_row(name, *versions)
    return [table] if table.row_count else []


def _list(name: str, style: str, changes: tuple[Change, ...], say: object, most: int = 20) -> list[RenderableType]:
    if not changes:
        return []
    lines: list[RenderableType] = [Text(f"{name}: {len(changes)}", style=style)]
    for c in changes[:most]:
        adapter, subject, contract, _, case = c.key
        lines.append(Text(f"    {adapter}: {subject}  {contract}  {case}  {say(c)}"))  # type: ignore[operator]
    return [*lines, *([Text(f"    and {len(changes) - most} more", style="dim")] if len(changes) > most else [])]
