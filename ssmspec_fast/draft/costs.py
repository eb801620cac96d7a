"""The time of a step, by its rows and by the tokens of its window: from a table, or measured while the engine runs.

Between two known windows of a batch it is linear. `Costs` are times that were measured once. `StepTimes` are those of this
engine:

    a step's time = from when the result of the step before it was read until its own was            (1)
    t(batch, tokens) = the median of the last KEPT of them; rows count as the next power of two       (2)

The host reads every result, waiting for the step if it has to, so that (1) is the time that a step really adds, whether the
device or the host is the slower. With a median (2), a step that took long for another reason (another program, a graph that
was being recorded) does not count. What follows the start of a request is left out, because it contains the prompt.
"""

import json
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from importlib.resources import files
from math import inf
from statistics import median

from ssmspec_ref.errors import ParameterError

KEPT, ENOUGH = 9, 3
"""Times of a step that are kept, and that are measured before anything is chosen."""
DELAYED = 2
"""Results that are read after a prompt was: a graph's step is launched before the result of the previous one is read."""


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

    def started(self) -> None:
        """Called when a request has begun."""

    def read(self, batch: int, tokens: int | None) -> None:
        """Called when the result of a step was read; None for a step that is not to be counted."""


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


class StepTimes(Costs):
    """(1) and (2). `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock, self.last, self.ignored = clock, 0.0, DELAYED
        self.us, self.times = {}, dict[tuple[int, int], deque[float]]()

    def check(self, tokens: int) -> None:
        """Every window can be measured."""

    def row(self, batch: int) -> int:
        return 1 << (batch - 1).bit_length()

    def unknown(self, batch: int, windows: Collection[int]) -> int | None:
        """The shortest or the longest window, until both have been measured."""
        batch = self.row(batch)
        return next((n for n in (min(windows), max(windows)) if len(self.times.get((batch, n), ())) < ENOUGH), None)

    def started(self) -> None:
        self.ignored = DELAYED

    def read(self, batch: int, tokens: int | None) -> None:
        """Adds a step's time (1). The first of a window is left out: kernels are compiled then."""
        now, batch = self.clock(), self.row(batch)
        before, self.last = self.last, now
        if self.ignored or tokens is None:
            self.ignored = max(0, self.ignored - 1)
            return
        times = self.times.get((batch, tokens))
        if times is None:
            self.times[batch, tokens] = deque(maxlen=KEPT)
            return
        times.append(1e6 * (now - before))
        self.us.setdefault(batch, {})[tokens] = median(times)  # (2)
