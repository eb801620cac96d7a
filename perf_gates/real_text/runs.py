"""Runs of engines over some texts, timed whole by the host's clock: prompts, drafts, verification, tokens on the host.

    speed     tokens emitted over seconds                                                              (1)
    tau       tokens emitted over windows                                                              (2)
    speed-up  (1) of a way over (1) of plain decoding of the same texts, rule, batch and model          (3)

The ways take turns on each text (or on each batch of texts), plain decoding first and last; of several rounds the fastest
time of each text counts. So what disturbs the machine for a while disturbs all ways. Before that an engine records its steps
and decodes the beginning of some texts: kernels are compiled, and where drafts are chosen, steps have been measured.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from math import inf
from typing import Any

from .judge import Judge
from .texts import Text
from .ways import Models, Room, Way, built, engine, freed, plain_at

WARM, ROUNDS = 64, 3
"""Tokens of each text that are decoded before the timed runs; the most rounds."""
BUILDING = 0.7
"""The most of a block's time in which engines are built."""

Tokens = tuple[int, ...]


@dataclass(frozen=True)
class Row:
    """One way over some texts. `each`: seconds, tokens and windows of each text, where they are decoded one after the other.

    `compared` tokens were compared with plain decoding's, up to the first difference of each text; `different` texts differ
    (None: not compared), `ties` more differ by rounding. `differences`: text, place and distance of each of these (`judge`).
    `noise`: how far two runs of plain decoding lie apart. Units: seconds.
    """

    texts: str
    way: str
    how: str
    batch: int
    temperature: float
    rule: str
    tokens: int
    windows: int
    seconds: float
    each: tuple[tuple[float, int, int], ...]
    compared: int
    different: int | None
    ties: int
    noise: float
    differences: tuple[tuple[int, int, float], ...] = ()

    @property
    def speed(self) -> float:
        return self.tokens / self.seconds

    @property
    def tau(self) -> float:
        return self.tokens / self.windows


@dataclass
class Table:
    """The rows of a part, what they were made with, and what the time did not reach."""

    part: str
    about: dict[str, Any] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    save: Callable[["Table"], None] = lambda held: None

    def as_json(self) -> dict[str, Any]:
        return {"part": self.part, "about": self.about, "rows": [asdict(row) for row in self.rows], "skipped": self.skipped}


class Clock:
    """The time of a part, shared out among its blocks. Units: seconds."""

    def __init__(self, minutes: float, now: Callable[[], float] = time.monotonic) -> None:
        self.now, self.until = now, now() + 60 * minutes

    @property
    def left(self) -> float:
        return self.until - self.now()

    def share(self, of: float, all_left: float) -> float:
        """When a block ends that may take the part `of` among what is left."""
        return self.now() + self.left * of / all_left


@dataclass
class Runner:
    """An engine for one way, and what it has done of each group of texts."""

    way: Way
    made: Any
    seconds: dict[Tokens, list[float]] = field(default_factory=dict)
    results: dict[int, Any] = field(default_factory=dict)

    def run(self, texts: Sequence[Text], keys: Tokens, budget: int | None = None) -> None:
        settings = engine("engine.requests", "Settings")
        most = [len(texts[n].output) for n in keys]
        each = [settings(length if budget is None else min(budget, length)) for length in most]
        began = time.perf_counter()
        found = self.made.generate([texts[n].prompt for n in keys], each, keys)
        if budget is None:
            self.seconds.setdefault(keys, []).append(time.perf_counter() - began)
            self.results |= dict(zip(keys, found, strict=True))

    @property
    def tokens(self) -> dict[int, Tokens]:
        return {n: result.tokens for n, result in self.results.items()}

    def windows(self, n: int) -> int:
        return len(self.results[n].statistics.advanced)


def runner(way: Way, models: Models, texts: Sequence[Text], batch: int, forced: Any) -> Runner:
    """An engine that has recorded its steps and decoded a little."""
    made = built(way, models, Room(batch, max(len(text.whole) for text in texts)), forced)
    made.prepare(engine("engine.requests", "Settings")(1))
    found = Runner(way, made)
    for keys in grouped(range(min(len(texts), 2 * batch)), batch):
        found.run(texts, keys, WARM)
    return found


def grouped(keys: Sequence[int], batch: int) -> list[Tokens]:
    """Texts one by one, or all in one run, which refills its rows."""
    return [(n,) for n in keys] if batch == 1 else [tuple(keys)]


def measured(
    held: Table, until: float, clock: Clock, ways: Sequence[Way], models: Models, texts: Sequence[Text], batch: int, called:
    str, forced: Any = None, judge: Judge | None = None,
) -> None:  # fmt: skip
    """Adds the rows of plain decoding and of every way to a table; what the time does not reach is listed there."""
    began = clock.now()
    plain = runner(plain_at(ways[0].temperature), models, texts, batch, forced)
    runners = [plain]
    for way in ways:
        if len(runners) > 1 and clock.now() > began + BUILDING * (until - began):
            held.skipped.append(f"{called}, batch {batch}, temperature {way.temperature:g}: {way.name}, {way.how}")
            continue
        runners.append(runner(way, models, texts, batch, forced))
    groups = grouped(range(len(texts)), batch)
    for number, keys in [(number, keys) for number in range(ROUNDS) for keys in groups]:
        if clock.now() > until and plain.seconds:
            missing = [texts[n].name for other in groups if other not in plain.seconds for n in other]
            held.skipped += [f"{called}, batch {batch}, temperature {ways[0].temperature:g}: {name}" for name in missing]
            break
        for one in (*runners, plain):
            one.run(texts, keys)
        print(
            f"{called}, batch {batch}, round {number + 1}, text {keys[0] + 1} of {len(texts)}: {progress(runners)}",
            flush=True,
        )
    wanted = {n: texts[n].output if forced is not None else tokens for n, tokens in plain.tokens.items()}
    held.rows += [row(one, called, batch, wanted, judge, one is plain) for one in runners]
    del runners, plain
    freed()
    held.save(held)


def progress(runners: Sequence[Runner]) -> str:
    """The speed-ups so far."""
    plain, *others = (sum(map(min, one.seconds.values())) for one in runners)
    return ", ".join(f"{plain / seconds:.2f}" for seconds in others)


def row(one: Runner, called: str, batch: int, wanted: dict[int, Tokens], judge: Judge | None, plain: bool) -> Row:
    way, tokens, fastest = one.way, one.tokens, {keys: min(times) for keys, times in one.seconds.items()}
    count, ties, different, differences = 0, 0, 0, list[tuple[int, int, float]]()
    law = way.temperature > 0 and way.rule != "naive"
    for n in () if law else sorted(tokens):
        found, same = compared(tokens[n], wanted[n])
        count += found
        if not same:
            place = judge.distance(n, tokens[n], wanted[n], way.temperature) if judge else (found - 1, inf)
            differences.append((n, *place))
            ties, different = ties + (place[1] <= 1), different + (not place[1] <= 1)
    each = tuple((fastest[keys], len(tokens[keys[0]]), one.windows(keys[0])) for keys in fastest) if batch == 1 else ()
    apart = [abs(times[0] - times[1]) / min(times) for times in one.seconds.values()] if plain else [0.0]
    return Row(
        called, way.name, way.how, batch, way.temperature, way.rule or "greedy", sum(map(len, tokens.values())),
        sum(map(one.windows, tokens)), sum(fastest.values()), each, count, None if law else different, ties, max(apart),
        tuple(differences),
    )  # fmt: skip


def compared(found: Tokens, wanted: Tokens) -> tuple[int, bool]:
    """The tokens compared, up to the first difference, and whether there is none."""
    at = next((i for i, (a, b) in enumerate(zip(found, wanted, strict=False)) if a != b), None)
    if at is not None:
        return at + 1, False
    return min(len(found), len(wanted)), len(found) == len(wanted)
