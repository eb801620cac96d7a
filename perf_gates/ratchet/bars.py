"""Limits ("bars"): the accepted microseconds of every measurement, and the cells that are known to miss their target.

    allowed = slack + 3 sqrt(e_bar^2 + e_now^2)        slack of `gates.toml`; e the relative errors of both medians     (1)
    slower    now / bar > 1 + allowed                                                                                (2)
    faster    now / bar < 1 / (1 + allowed)                                                                          (3)
    noisy     now / bar > 1 + allowed with errors of at most `noise` of `gates.toml`, and not slower                 (4)

By (4) a large error does not hide a slower kernel: such a time is unknown, not within its limit.

A limit is named by part, shape, operation and batch; `commits` names the commit that reached it. Code that changed keeps its
limit: a change must not make it slower. The copy and the empty launch of a part have limits too, because
figures divide by them. `ssmspec gates accept` writes the file, with a reason.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from math import inf, sqrt
from pathlib import Path
from typing import Any

from ..verdicts.gates import Limits, Slack
from ..verdicts.measured import At, Results

FILE = Path(__file__).parent / "bars.json"
LEAST_NOISE = 0.002
"""The smallest credible relative error of a median: the resolution of the events, and the effect of placement."""
MACHINE = "the machine"
COPY_BYTES = 2**32
"""The bytes of the copy that a part measures: 2 GiB read and written."""


@dataclass(frozen=True)
class Bar:
    """One measurement. Units: microseconds, a share, bytes (0: not measured)."""

    us: float
    noise: float
    memory: int = 0


@dataclass(frozen=True)
class Bars:
    """`run` names the GPU and versions, `commits` the commit of each part, `peers` the versions of the packages whose code a
    part timed, `missed` the cells below their target and the value of each."""

    run: dict[str, str]
    reason: str
    times: dict[str, Bar]
    missed: dict[str, float] = field(default_factory=dict)
    commits: dict[str, str] = field(default_factory=dict)
    peers: dict[str, dict[str, str]] = field(default_factory=dict)


def name_of(at: At) -> str:
    return f"{at.part}/{at.shape}/{at.operation}/{at.batch}"


def times(results: Results) -> dict[str, Bar]:
    """Every measurement of a run that has a time, and the copy and the empty launch of each part."""
    found: dict[str, Bar] = {}
    for part, held in results.parts.items():
        machine = held["machine"]
        if copied := machine.get("copy_bytes_per_us"):
            found[f"{part}/{MACHINE}/copy/1"] = Bar(COPY_BYTES / copied, 0.0)
            found[f"{part}/{MACHINE}/empty launch/1"] = Bar(machine["empty_launch_us"], 0.0)
    for at, timing in results.timings.items():
        if timing["us"] > 0:
            noise, memory = timing.get("noise"), int(timing.get("memory", 0))
            found[name_of(at)] = Bar(timing["us"], 1.0 if noise is None else noise, memory)
    return found


def read(file: Path = FILE) -> Bars:
    held: dict[str, Any] = json.loads(file.read_text())
    timed = {name: Bar(**bar) for name, bar in held["times"].items()}
    return Bars(held["run"], held["reason"], timed, held["missed"], held["commits"], held["peers"])


def write(bars: Bars, file: Path = FILE) -> None:
    """Writes one line per limit, so that a diff shows which changed."""

    def block(rows: Iterable[tuple[str, Any]]) -> str:
        return ",\n".join(f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in sorted(rows))

    timed = block((name, asdict(bar)) for name, bar in bars.times.items())
    named = {"run": bars.run, "reason": bars.reason, "commits": bars.commits, "peers": bars.peers}
    head = ",\n".join(f" {json.dumps(name)}: {json.dumps(value)}" for name, value in named.items())
    file.write_text(f'{{\n{head},\n "missed": {{\n{block(bars.missed.items())}\n }},\n "times": {{\n{timed}\n }}\n}}\n')


def slack_of(name: str, slacks: Iterable[Slack]) -> Slack:
    """The first entry whose pattern matches. Raises: LookupError for none."""
    for slack in slacks:
        if fnmatchcase(name, slack.of):
            return slack
    raise LookupError(f"{name} matches no [[slack]] of gates.toml; end the list with an entry for *")


def allowed(name: str, bar: Bar, now: Bar, slacks: Iterable[Slack], most: float = inf) -> float:
    """(1), with errors of at most `most`."""
    errors = (min(max(of.noise, LEAST_NOISE), most) for of in (bar, now))
    return slack_of(name, slacks).share + 3 * sqrt(sum(error**2 for error in errors))


@dataclass(frozen=True)
class Moved:
    """A measurement and its limit. `how`: slower, noisy (slower, or only noise), faster, leapt (implausibly fast), larger,
    smaller, missing, new."""

    name: str
    how: str
    before: float
    after: float

    def __str__(self) -> str:
        if self.how == "missing":
            return f"{self.name}: not measured; its limit is {self.before:.2f} us"
        if self.how == "new":
            return f"{self.name}: {self.after:.2f} us, without a limit; run `ssmspec gates accept`"
        if self.how == "noisy":
            return f"{self.name}: {self.after:.2f} us, limit {self.before:.2f}: slower, or only noisy; measure it again"
        unit = "bytes" if self.how in ("larger", "smaller") else "us"
        return f"{self.name}: {self.how}, {self.after:.2f} {unit}, limit {self.before:.2f}"


def moved(bars: Bars, found: dict[str, Bar], limits: Limits, slacks: tuple[Slack, ...]) -> Iterator[Moved]:
    """Measurements above or below their limit, missing, or without one; (2) to (4). NaN is slower."""
    for name, bar in bars.times.items():
        if name not in found:
            yield Moved(name, "missing", bar.us, 0.0)
            continue
        now, most = found[name], 1 + allowed(name, bar, found[name], slacks)
        if not now.us <= bar.us * most:
            yield Moved(name, "slower", bar.us, now.us)
        elif now.us > bar.us * (1 + allowed(name, bar, now, slacks, limits.noise)):
            yield Moved(name, "noisy", bar.us, now.us)
        elif now.us < bar.us * limits.leap and slack_of(name, slacks).share < 1 - limits.leap:
            yield Moved(name, "leapt", bar.us, now.us)
        elif now.us < bar.us / most:
            yield Moved(name, "faster", bar.us, now.us)
        if bar.memory and not now.memory <= bar.memory * (1 + limits.memory):
            yield Moved(name, "larger", bar.memory, now.memory)
        elif now.memory < bar.memory / (1 + limits.memory):
            yield Moved(name, "smaller", bar.memory, now.memory)
    yield from (Moved(name, "new", 0.0, now.us) for name, now in found.items() if name not in bars.times)
