"""Chooses how many tokens to draft, by the cost of a window at this batch size and the recent acceptance.

    a_j    = accepted / offered at place j of a window, older rounds weighted less               (1)
    tau(K) = 1 + a_1 + a_1 a_2 + .. + a_1 .. a_K                                                (2)
    K      = the K with the highest tau(K) / t(batch, K + 1); 0 unless it gains `margin`        (3)

Costs t come from a table that was measured once, never from live times, so that the choice depends on the tokens alone.
K = 0 is a window of the root alone: plain decoding at the method's cost. Then each `patience`-th window offers one draft,
to learn whether drafting pays again. Feedback is one round late. K does not change the distribution of sampled tokens,
nor the tokens of greedy decoding.
Source: Snakes and Ladders, section 5.3, which tabulates a plan for each batch size.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from math import inf

from torch import Tensor

from ssmspec_ref.errors import ParameterError

from ..draft import Drafter
from ..draft.wrapper import Wrapper
from .sequences import Sequences
from .window import Proposal, Window


class Costs:
    """The time of a step, `us[batch][tokens of the window]`, linear between windows. A batch beyond the table is an error.

    Raises: ParameterError for a batch without a window of 1, or a time that is not positive.
    """

    def __init__(self, us: Mapping[int, Mapping[int, float]]) -> None:
        self.us = {batch: dict(sorted(times.items())) for batch, times in sorted(us.items())}
        for batch, times in self.us.items():
            if batch < 1 or 1 not in times or not all(0 < time < inf for time in times.values()):
                raise ParameterError(
                    f"batch {batch} has the times {times}; give a positive time for each window, also for that of 1"
                )
        if not self.us:
            raise ParameterError("the table is empty; give the times of at least one batch")

    def longest(self, batch: int) -> int:
        return max(self.us[self.row(batch)])

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
        if tokens in times:
            return times[tokens]
        below = max((n for n in times if n < tokens), default=None)
        above = min((n for n in times if n > tokens), default=None)
        if below is None or above is None:
            raise ParameterError(
                f"the table has windows of {sorted(times)} tokens at this batch, but not of {tokens}; measure it"
            )
        return times[below] + (times[above] - times[below]) * (tokens - below) / (above - below)


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


class Chooser:
    """(1) to (3) for windows of at most `most` drafts.

    Raises: ParameterError (most below 1, margin or fade outside [0, 1), patience below 1, a table of shorter windows).
    """

    def __init__(
        self, costs: Costs, most: int, *, margin: float = 0.02, fade: float = 0.02, patience: int = 32, prior: float = 0.7
    ) -> None:
        if most < 1 or patience < 1 or not 0 <= margin < 1 or not 0 <= fade < 1 or not 0 <= prior <= 1:
            raise ParameterError(
                f"most, margin, fade, patience, prior are {most}, {margin}, {fade}, {patience}, {prior}; give 1 or more, "
                "two parts of 1, 1 or more, and a probability"
            )
        for batch in costs.us:
            costs(batch, 1 + most)
        self.costs, self.most, self.margin, self.fade, self.patience = costs, most, margin, fade, patience
        self.offered, self.accepted = [1.0] * most, [prior] * most
        self.silent = 0

    def tau(self, drafts: int) -> float:
        """(2)."""
        found, all_so_far = 1.0, 1.0
        for offered, accepted in zip(self.offered[:drafts], self.accepted[:drafts], strict=True):
            all_so_far *= accepted / offered
            found += all_so_far
        return found

    def choose(self, batch: int) -> int:
        """(3)."""
        plain = 1 / self.costs(batch, 1)
        rates = [self.tau(k) / self.costs(batch, 1 + k) for k in range(self.most + 1)]
        best = rates.index(max(rates))
        if best and rates[best] >= (1 + self.margin) * plain:
            self.silent = 0
            return best
        self.silent += 1
        return 1 if self.silent % self.patience == 0 else 0

    def learn(self, drafts: int, advanced: Sequence[int]) -> None:
        """Updates (1) with the results of windows of `drafts` drafts; a window that emitted nothing is ignored."""
        for count in advanced:
            for place in range(min(drafts, count) if count else 0):
                self.offered[place] = (1 - self.fade) * self.offered[place] + 1
                self.accepted[place] = (1 - self.fade) * self.accepted[place] + (place + 1 < count)


class Budgeted(Wrapper):
    """Chains of a drafter, cut to the chosen length; nothing is drafted if that is 0.

    Raises: ParameterError for a drafter of trees or of several rows, or one that must see every window (a model).
    """

    def __init__(self, inner: Drafter, chooser: Chooser) -> None:
        if inner.trees or inner.drafts > 1 or inner.follows or inner.nodes != 1 + chooser.most:
            raise ParameterError(
                f"the drafter has {inner.nodes} nodes; it must draft chains of {chooser.most} and read tokens only"
            )
        super().__init__(inner)
        self.chooser, self.chosen = chooser, 0

    def choose_shape(self, rows: int) -> int:
        """The number of drafts of the next window, for `rows` rows."""
        self.chosen = self.chooser.choose(rows)
        return self.chosen

    def every_shape(self) -> Iterator[int]:
        """Chooses and yields each number of drafts in turn."""
        for drafts in range(self.chooser.most + 1):
            self.chosen = drafts
            yield drafts

    def read_round(self, shape: int | None, advanced: Sequence[int]) -> None:
        self.chooser.learn(self.chosen if shape is None else shape, advanced)

    def propose(self, sequences: Sequences, slots: Tensor) -> Proposal:
        if self.chosen == 0:
            return Proposal(Window(sequences.roots(slots)[:, None], slots))
        window = self.inner.propose(sequences, slots).window
        lengths = None if window.lengths is None else window.lengths.clamp_max(1 + self.chosen)
        return Proposal(Window(window.tokens[:, : 1 + self.chosen].contiguous(), slots, lengths))
