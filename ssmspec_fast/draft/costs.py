"""The time of a step, by its rows and by the tokens of its window: from a table, or measured while the engine runs.

Between two known windows of a batch it is linear. `Costs` are times that were measured once. `StepTimes` are those of this
engine:

    a step's time    = from when the result of the step before it was read until its own was                      (1)
    t(batch, tokens) = the median of the last KEPT (1) of steady steps                                            (2)
    change           = the median of what (1) of the steps at a change to drafts, or back, is above (2)           (3)
    catch up         = the median of what (1) of a step in which a drafter catches up is above t(batch, 1)        (4)

The host reads every result, waiting for the step if it has to, so that (1) is the time that a step really adds, whether the
device or the host is the slower. A step is steady if those before and after it have the same rows and window: what the host
does for another step, and what brings states up to date, is in (3) and not in (2). What contains a prompt, and the first
step of a shape, in which kernels are compiled and graphs recorded, is left out of all. Of an even number of times the lower
of the two in the middle is the median. Rows count as the next power of two; a window that was not measured at a batch has the
time of the nearest batch at which it was, in the proportion of what was measured at both.
"""

import json
import time
from collections import deque
from collections.abc import Callable, Collection, Hashable, Mapping
from importlib.resources import files
from math import inf, log2
from typing import Any, NamedTuple

from ssmspec_ref.errors import ParameterError

KEPT, ENOUGH = 9, 2
"""Times of a step that are kept, and that are measured before anything is chosen."""


class Step(NamedTuple):
    """A step whose result was read: its rows, the tokens of its window (None: a drafter caught up), and those of the last
    step that was launched by then, which is this one, or the next one where steps are launched ahead."""

    rows: int
    tokens: int | None
    launched: int | None


def between(known: Mapping[int, float], tokens: int) -> float | None:
    """The time of a window between two known ones, or of a known one; None outside them."""
    if tokens in known:
        return known[tokens]
    below = max((n for n in known if n < tokens), default=None)
    above = min((n for n in known if n > tokens), default=None)
    if below is None or above is None:
        return None
    return known[below] + (known[above] - known[below]) * (tokens - below) / (above - below)


class Costs:
    """A table `us[batch][tokens of the window]`. A batch beyond the table is an error.

    Raises: ParameterError for a batch without a window of 1, or a time that is not positive.
    """

    def __init__(self, us: Mapping[int, Mapping[int, float]]) -> None:
        self.us = {batch: dict(times) for batch, times in sorted(us.items())}
        for batch, times in self.us.items():
            if batch < 1 or 1 not in times or not all(0 < time < inf for time in times.values()):
                raise ParameterError(
                    f"batch {batch} has the times {times}; give a positive time for each window, also for that of 1"
                )
        if not self.us:
            raise ParameterError("the table is empty; give the times of at least one batch")

    def check(self, tokens: int) -> None:
        """Raises: ParameterError if it lacks windows of this length."""
        for batch in self.us:
            self(batch, tokens)

    def row(self, batch: int) -> int:
        """The table's batch: this one, or the next larger. Raises: ParameterError beyond the table."""
        found = next((known for known in self.us if known >= batch), None)
        if found is None:
            raise ParameterError(
                f"the table ends at batches of {max(self.us)}, and this batch has {batch}; measure that size too"
            )
        return found

    def __call__(self, batch: int, tokens: int) -> float:
        """The time of a step. Raises: ParameterError for a window longer than the table's."""
        times = self.us[self.row(batch)]
        found = between(times, tokens)
        if found is None:
            raise ParameterError(
                f"the table has windows of {sorted(times)} tokens at this batch, but not of {tokens}; measure it"
            )
        return found

    def unknown(self, batch: int, windows: Collection[int]) -> int | None:
        """A window that must be measured before anything is chosen: none."""
        return None

    def change(self, batch: int, drafting: bool) -> float:
        """What it costs to begin with drafts, or to stop (3)."""
        return 0.0

    def catch_up(self, batch: int) -> float:
        """What it costs a drafter to read what it has not read, once (4)."""
        return 0.0

    def left_out(self, results: int) -> None:
        """The next results that are read contain something other than steps."""

    def read(self, step: Step) -> float | None:
        """The time of a step whose result was read; None if it is left out."""
        return None if step.tokens is None else self(step.rows, step.tokens)


def measured(model: str, method: str, device: str = "h200") -> Costs:
    """The committed table of a model under a method; a plain step counts as a window of 1. Raises: ParameterError."""
    held = json.loads((files("ssmspec_fast.bench") / "costs.json").read_text())
    us: dict[int, dict[int, float]] = {}
    for step in held.get(device, ()):
        if step["model"] == model and step["method"] in (method, "plain"):
            us.setdefault(step["batch"], {})[step["window"]] = step["us"]
    us = {batch: times for batch, times in us.items() if 1 in times}  # batches for which a plain step was measured
    if not us:
        raise ParameterError(f"no costs of {model} with {method} on {device} are committed; measure them with ssmspec bench")
    return Costs(us)


def median(times: Collection[float]) -> float:
    """The time in the middle, or the lower of two."""
    return sorted(times)[(len(times) - 1) // 2]


class StepTimes(Costs):
    """(1) to (4). `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock, self.last, self.ignored = clock, 0.0, 1
        self.us: dict[int, dict[int, float]] = {}
        self.times = dict[tuple[int, int], deque[float]]()
        self.changes, self.caught_up = dict[tuple[int, bool], deque[float]](), dict[int, deque[float]]()
        self.before: tuple[int, int | None] | None = None
        self.ahead = 0.0

    def check(self, tokens: int) -> None:
        """Every window can be measured."""

    def row(self, batch: int) -> int:
        return 1 << (batch - 1).bit_length()

    def __call__(self, batch: int, tokens: int) -> float:
        """The time of a step. Raises: ParameterError for a window that was not measured at any batch."""
        batch = self.row(batch)
        own = self.us.get(batch, {})
        found = between(own, tokens)
        if found is not None:
            return found
        others = [
            (abs(log2(known / batch)), found, times) for known, times in self.us.items() if (found := between(times, tokens))
        ]
        for _, found, times in sorted(others, key=lambda other: (own.keys().isdisjoint(other[2]), other[0])):
            both = min(own.keys() & times.keys(), default=None)
            return found if both is None else found * own[both] / times[both]
        raise ParameterError(f"no window of {tokens} tokens was measured; measure the shortest and the longest first")

    def unknown(self, batch: int, windows: Collection[int]) -> int | None:
        """The shortest window until it was measured at this batch, the longest until it was measured at any."""
        short, long, batch = min(windows), max(windows), self.row(batch)
        if len(self.times.get((batch, short), ())) < ENOUGH:
            return short
        return None if any(n == long and len(times) >= ENOUGH for (_, n), times in self.times.items()) else long

    def change(self, batch: int, drafting: bool) -> float:
        of_kind = {known: times for (known, kind), times in self.changes.items() if kind == drafting}
        return near(of_kind, self.row(batch))

    def catch_up(self, batch: int) -> float:
        return near(self.caught_up, self.row(batch)) if self.caught_up else self(batch, 1)

    def left_out(self, results: int) -> None:
        self.ignored = max(self.ignored, results)

    def read(self, step: Step) -> float | None:
        now, batch = self.clock(), self.row(step.rows)
        us, self.last = 1e6 * (now - self.last), now  # (1)
        before, self.before = self.before, (batch, step.tokens)
        if self.ignored:
            self.ignored, self.ahead = self.ignored - 1, 0.0
            return None
        known = self.us.setdefault(batch, {})
        if step.tokens is None:
            keep(self.caught_up, batch, us - known.get(1, us))  # (4)
        elif before == self.before and step.launched == step.tokens:
            known[step.tokens] = median(keep(self.times, (batch, step.tokens), us))  # (2)
        elif step.tokens in known:
            self.changed(step, us - known[step.tokens], before)
        return us

    def changed(self, step: Step, more: float, before: tuple[int, int | None] | None) -> None:
        """Adds what a step at a change took above its time (3); a change ahead of time takes part of two steps."""
        assert step.tokens is not None
        self.ahead += more
        if step.launched != step.tokens or before is None:
            return
        drafting, drafted = step.tokens > 1, before[1] is not None and before[1] > 1
        if drafting != drafted:
            keep(self.changes, (self.row(step.rows), drafting), max(0.0, self.ahead))
        self.ahead = 0.0


def keep(times: dict[Any, deque[float]], key: Hashable, us: float) -> deque[float]:
    """Adds a time to the last ones."""
    found = times.setdefault(key, deque(maxlen=KEPT))
    found.append(us)
    return found


def near(times: Mapping[int, Collection[float]], batch: int) -> float:
    """The median at this batch, or at the nearest one that was measured; 0 if there is none."""
    nearest = min(times, key=lambda known: abs(log2(known / batch)), default=None)
    return 0.0 if nearest is None else median(times[nearest])
