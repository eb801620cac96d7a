"""A drawing of how much of its bound each output uses: a row per subject and contract, a tick per output of each case.

The scale is logarithmic from 10^-6 to 10^4; smaller and larger values are drawn at its ends, exact ones at the far left. The
line at 1 is the bound.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .stream import Result

LOW, HIGH = -6.0, 4.0
LEFT, EXACT, WIDTH, RIGHT = 330, 44, 620, 14
"""Sizes in the drawing: the labels, the column of exact outputs, the scale, and a margin."""
ROW, TICK, TOP, BOTTOM = 18, 11, 22, 26


@dataclass(frozen=True)
class Strip:
    """One row: its label, and one path of ticks each for outputs within and beyond the bound."""

    y: int
    subject: str
    contract: str
    within: str
    beyond: str
    ticks: int


@dataclass(frozen=True)
class Plot:
    """The drawing of one adapter."""

    adapter: str
    strips: tuple[Strip, ...]
    grid: tuple[tuple[float, str], ...]

    @property
    def width(self) -> int:
        return LEFT + EXACT + WIDTH + RIGHT

    @property
    def height(self) -> int:
        return TOP + ROW * len(self.strips) + BOTTOM

    @property
    def bound(self) -> float:
        return place(1.0)


def place(utilisation: float) -> float:
    """The position of a utilisation. NaN is at the far right."""
    if math.isnan(utilisation) or math.isinf(utilisation):
        return LEFT + EXACT + WIDTH
    if utilisation <= 0:
        return float(LEFT + 10)
    share = (min(max(math.log10(utilisation), LOW), HIGH) - LOW) / (HIGH - LOW)
    return LEFT + EXACT + WIDTH * share


def plots(results: Sequence[Result]) -> list[Plot]:
    """One drawing for each adapter with compared outputs."""
    of: dict[str, dict[tuple[str, str], list[Result]]] = defaultdict(lambda: defaultdict(list))
    for r in results:
        if r.outputs:
            of[r.adapter][r.subject, r.contract].append(r)
    return [_plot(adapter, rows) for adapter, rows in of.items()]


def _plot(adapter: str, rows: dict[tuple[str, str], list[Result]]) -> Plot:
    strips = []
    for number, ((subject, contract), results) in enumerate(rows.items()):
        y = TOP + ROW * number
        used = [o.utilisation for r in results for o in r.outputs]
        beyond = [u for u in used if not u <= 1]
        within = [u for u in used if u <= 1]
        strips.append(Strip(y, subject, contract, _ticks(within, y), _ticks(beyond, y), len(used)))
    exponents = range(int(LOW), int(HIGH) + 1, 2)
    grid = [(place(0.0), "0"), *((place(10.0**e), f"1e{e}" if e else "1") for e in exponents)]
    return Plot(adapter, tuple(strips), tuple(grid))


def _ticks(used: Iterable[float], y: int) -> str:
    """A path of ticks; ticks at the same position are drawn once."""
    places = sorted({round(place(u), 1) for u in used})
    return "".join(f"M{x:g} {y + (ROW - TICK) // 2}v{TICK}" for x in places)
