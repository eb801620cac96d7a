"""What is chosen is compared with plain decoding and with drafts at every step, on a simulated clock.

The costs are like those that were measured (docs/real-text.md): of an H200 with Mamba2-2.7B's shape and with a model of 127M,
and of a CPU with the model that ships. A chooser passes if its time is at most 1 / 0.95 of the better of the two, and at most
1 / 0.98 of plain decoding's; each planted fault fails somewhere.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pytest

from ssmspec_fast.draft import Drafter
from ssmspec_fast.draft.chooser import Chooser, Chosen, chosen
from ssmspec_fast.draft.costs import Step, StepTimes, keep, median

from .simulated import Machine, Text, gains

LENGTH, OF_BETTER, OF_PLAIN = 512, 0.95, 0.98


class Case(NamedTuple):
    """A machine, the most drafts, the sequences at once, and whether the drafter keeps a state."""

    machine: Machine
    most: int
    slots: int = 1
    follows: bool = False


MACHINES = {
    "H200, n-gram, batch 1": Case(Machine({1: 2181, 2: 2351, 4: 2366, 8: 2490}, host=150, prompt=3e4), 7),
    "H200, ring, batch 1": Case(Machine({1: 2181, 2: 2700, 8: 2800}, settle=300, host=150, prompt=3e4), 7),
    "H200, lookup, batch 4": Case(Machine({1: 2521, 2: 2700, 8: 3300, 16: 4700}, host=150, prompt=3e4), 15, 4),
    "H200, n-gram, batch 16": Case(Machine({1: 3793, 2: 4300, 8: 6650}, host=300, prompt=1e5), 7, 16),
    "H200, small drafter, batch 1": Case(Machine({1: 627, 4: 1300}, catch_up=100, prompt=1e4), 3, 1, True),
    "H200, multi-step, batch 1": Case(Machine({1: 1066, 4: 3200}, catch_up=100, prompt=1e4), 3, 1, True),
    "H200, small drafter, batch 16": Case(Machine({1: 780, 4: 2200}, catch_up=300, prompt=1e4), 3, 16, True),
    "CPU, lookup, batch 1": Case(Machine({1: 17000, 9: 31700}, ahead=False, prompt=2e5), 8),
    "CPU, drafter, batch 1": Case(Machine({1: 17000, 5: 47000}, catch_up=10000, ahead=False, prompt=2e5), 4, 1, True),
    "CPU, ring, batch 4": Case(
        Machine({1: 25800, 5: 108000}, settle=60000, catch_up=15000, ahead=False, prompt=8e5), 4, 4, True
    ),
}


def drawn(rates: Sequence[float], most: int, seed: int) -> Text:
    """At each place, how many of `most` drafts are accepted, each with the place's probability."""
    rng = np.random.default_rng(seed)
    misses = rng.random((len(rates), most)) >= np.asarray(rates)[:, None]
    return [int(row.argmax()) if row.any() else most for row in misses]


ACCEPTED: dict[str, Callable[[int], Sequence[float]]] = {
    "none": lambda n: [0.0] * n,
    "few": lambda n: [0.3] * n,
    "half": lambda n: [0.5] * n,
    "many": lambda n: [0.7] * n,
    "most": lambda n: [0.9] * n,
    "none, then most": lambda n: [0.05] * (n // 2) + [0.9] * (n - n // 2),
    "most, then none": lambda n: [0.9] * (n // 2) + [0.05] * (n - n // 2),
    "bursts": lambda n: [0.05 if place // 30 % 2 else 0.95 for place in range(n)],
}


def shortfall(case: Case, accepted: str, make: Callable[[Drafter, StepTimes], Chosen] = chosen, warm: int = 64) -> float:
    """What is chosen over what is demanded: at least 1 is right."""
    count = 8 if case.slots == 1 else 2 * case.slots
    texts = [drawn(ACCEPTED[accepted](LENGTH), case.most, seed) for seed in range(count)]
    forced, found = gains(case.machine, texts, case.most, case.slots, follows=case.follows, make=make, warm=warm)
    return min(found / OF_PLAIN, found / (OF_BETTER * max(1.0, forced)))


@pytest.mark.parametrize("accepted", ACCEPTED)
@pytest.mark.parametrize("name", MACHINES)
def test_chosen_is_as_fast_as_the_better_of_plain_and_forced(name: str, accepted: str) -> None:
    assert shortfall(MACHINES[name], accepted) >= 1


def always(inner: Drafter, costs: StepTimes) -> Chosen:
    """Drafts at every step."""
    return by_choice(inner, costs, lambda chooser: chooser.most)


def never(inner: Drafter, costs: StepTimes) -> Chosen:
    return by_choice(inner, costs, lambda chooser: 0)


def by_choice(inner: Drafter, costs: StepTimes, choice: Callable[[Chooser], int]) -> Chosen:
    class Planted(Chooser):
        def choose(self, batch: int, behind: int = 0) -> int:
            return choice(self)

    return Chosen(inner, Planted(costs, inner.depth))


class Forgetful(StepTimes):
    """Forgets what it costs to change and to catch up, and counts a window's own time only."""

    def change(self, batch: int, drafting: bool) -> float:
        return 0.0

    def catch_up(self, batch: int) -> float:
        return 0.0

    def read(self, step: Step) -> float | None:
        us = super().read(step)
        return None if us is None else self.us[self.row(step.rows)].get(step.tokens or 1, us)


class Recording(StepTimes):
    """Counts what is recorded at first, and what a prompt takes, as the time of a window."""

    def left_out(self, results: int) -> None:
        self.ignored = 0

    def read(self, step: Step) -> float | None:
        now, batch = self.clock(), self.row(step.rows)
        us, self.last = 1e6 * (now - self.last), now
        if step.tokens is not None:
            self.us.setdefault(batch, {})[step.tokens] = median(keep(self.times, (batch, step.tokens), us))
        return us


class Wrong(StepTimes):
    """Believes that windows of drafts take `factor` times as long as they do."""

    factor = 2.0

    def __call__(self, batch: int, tokens: int) -> float:
        return super().__call__(batch, tokens) * (self.factor if tokens > 1 else 1.0)


class Short(Wrong):
    factor = 0.5


def timed(kind: type[StepTimes]) -> Callable[[Drafter, StepTimes], Chosen]:
    """Chosen by other step times."""
    return lambda inner, costs: chosen(inner, kind(costs.clock))


PLANTED = {
    "always drafts": (always, "H200, ring, batch 1", "none"),
    "never drafts": (never, "H200, ring, batch 1", "most"),
    "forgets the cost of changes and of catching up": (timed(Forgetful), "CPU, ring, batch 4", "most"),
    "counts recording and prompts as a step's cost": (timed(Recording), "H200, ring, batch 1", "none"),
    "costs of drafts twice as high": (timed(Wrong), "CPU, drafter, batch 1", "most"),
    "costs of drafts half as high": (timed(Short), "CPU, ring, batch 4", "most"),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_chooser_is_caught(fault: str) -> None:
    """By the cases of the test above, with graphs that are recorded when they are first needed."""
    make, name, accepted = PLANTED[fault]
    machine = MACHINES[name].machine
    case = MACHINES[name]._replace(machine=machine._replace(record=3e5 if machine.ahead else 0.0))
    assert shortfall(case, accepted, make) < 1 <= shortfall(case, accepted)
