"""The verdict on a whole run: its cells, the measurements off their limits, and the impossible times."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from ..verdicts.gates import Gates
from ..verdicts.measured import Results
from ..verdicts.verdict import Judged, Verdict, judge
from .bars import Bars, Moved, moved, times
from .possible import every

WORSE = ("slower", "noisy", "larger", "missing", "leapt")
"""What makes a run fail: worse than its limit, perhaps worse, missing, or implausibly fast. Everything else needs a new
limit."""


@dataclass(frozen=True)
class Outcome:
    """All results of a run."""

    judged: tuple[Judged, ...]
    off: tuple[Moved, ...]
    impossible: tuple[str, ...]

    @property
    def worse(self) -> list[Moved]:
        return [m for m in self.off if m.how in WORSE]

    @property
    def asks(self) -> list[str]:
        """Limits that should be updated."""
        told = [str(m) for m in self.off if m.how not in WORSE]
        return told + [str(j) for j in self.judged if j.verdict is Verdict.TIGHTEN]

    @property
    def reds(self) -> list[str]:
        """Why a run is red."""
        cells = [
            str(j) if j.verdict is not Verdict.PASS else f"listed as unmeasured, and passes: {j.row.name}"
            for j in self.judged
            if j.red
        ]
        return [*self.impossible, *map(str, self.worse), *cells]

    def counts(self) -> str:
        found = Counter(j.verdict for j in self.judged)
        return ", ".join(f"{found[verdict]} {verdict.value}" for verdict in Verdict)

    def lines(self) -> Iterator[str]:
        """Everything that is not green, the red results first."""
        yield from (f"red: {line}" for line in self.reds)
        yield from (f"asks: {line}" for line in self.asks)
        yield from (str(j) for j in self.judged if j.listed and not j.red)
        yield f"{len(self.judged)} cells: {self.counts()}; {len(self.reds)} red, {len(self.asks)} need a new limit"


def outcome(gates: Gates, results: Results, kernels: str, bars: Bars) -> Outcome:
    off = tuple(moved(bars, times(results), gates.limits, gates.slacks))
    return Outcome(tuple(judge(gates, results, kernels, bars)), off, tuple(every(results, gates.limits)))
