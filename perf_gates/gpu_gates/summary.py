"""A run as Markdown: what is red, what needs a new limit, what changed, and how long each part took."""

from collections.abc import Iterator, Sequence
from typing import Any

from ..files import head
from ..ratchet.bars import Bar, Bars
from ..ratchet.outcome import Outcome
from ..verdicts.verdict import Judged, Verdict
from .parts import PARTS, Took

SHOWN = 40
"""Most lines of a list; the number of further ones is printed."""
CHANGED = 0.02
"""A measurement that changed by less than this share of its limit is not listed."""


def text(outcome: Outcome, now: dict[str, Bar], bars: Bars, took: Took, pairs: Sequence[dict[str, Any]]) -> str:
    lines = [
        f"# GPU gates: {'red' if outcome.reds else 'green'}",
        f"{len(outcome.judged)} cells: {outcome.counts()}. Bars of commit {measured_at(bars)}.",
        *listed("Red", outcome.reds),
        *listed("Asks for a new bar (`ssmspec gates accept RESULTS --reason ..`)", outcome.asks),
        *changed(now, bars),
        *core(pairs),
        *durations(took),
        *listed("Known misses", [missed(j) for j in outcome.judged if j.verdict is Verdict.MISS]),
        *listed("Listed as unmeasured", [str(j) for j in outcome.judged if j.listed and not j.red]),
    ]
    return "\n".join(lines) + "\n"


def measured_at(bars: Bars) -> str:
    """The commits of the parts, each once; `unknown` where none is recorded."""
    return ", ".join(sorted({commit[:7] for commit in bars.commits.values()})) or "unknown"


def missed(j: Judged) -> str:
    return f"{j.row.name}: {j.value:.4g} for {j.target:g}"


def listed(title: str, found: Sequence[str]) -> Iterator[str]:
    """A list in a section, if it is not empty."""
    if found:
        yield f"\n## {title}: {len(found)}\n"
        yield from (f"- {line}" for line in found[:SHOWN])
        if len(found) > SHOWN:
            yield f"- and {len(found) - SHOWN} more, in junit.xml"


def changed(now: dict[str, Bar], bars: Bars) -> Iterator[str]:
    """Measurements that changed, the most changed first."""
    ratios = {name: now[name].us / bar.us for name, bar in bars.times.items() if name in now and bar.us > 0}
    far = sorted((n for n, r in ratios.items() if not abs(r - 1) <= CHANGED), key=lambda n: -abs(ratios[n] - 1))
    yield f"\n## What changed: {len(far)} of {len(ratios)} measurements by more than {CHANGED:.0%}\n"
    if far:
        yield from head("measurement | bar, us | now, us | ratio")
        yield from (f"| {n} | {bars.times[n].us:.2f} | {now[n].us:.2f} | {ratios[n]:.3f} |" for n in far[:SHOWN])


def core(pairs: Sequence[dict[str, Any]]) -> Iterator[str]:
    if pairs:
        yield "\n## Core set\n"
        yield from head("pair | best | ratio | error | verdict | with a delay")
    for p in pairs:
        best = "none" if p["best"] is None else f"{p['best']:.4g}"
        yield f"| {p['name']} | {best} | {p['ratio']:.4f} | {p['error']:.2%} | {p['verdict']} | {p['delayed']['verdict']} |"


def durations(took: Took) -> Iterator[str]:
    """How long each part took; one that did not run is unknown."""
    yield "\n## Parts\n"
    yield from head("part | seconds | ended")
    for part in PARTS:
        yield f"| {part.name} | {took.seconds.get(part.name, '-')} | {took.ended.get(part.name, 'not run: unknown')} |"
    yield f"| all | {sum(took.seconds.values()):.0f} | |"
