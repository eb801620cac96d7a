"""The smallest schedule that breaks an engine in one way: each request alone, then fewer requests, then other ones.

Its limits are seconds of work of judge and engine (`judge.clock`); of a server elsewhere, the time until it answers.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, TypeGuard

import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded

from ...draws import by_seed_alone
from ...judge.clock import Clock
from ..laws import FAILED
from ..schedules import LONGEST, Ask, Schedule, in_turn, reduced, schedules
from .attempts import Attempts, Break

MOST = 1000
"""Schedules to draw, at most, when a failure is sought in simpler traffic."""
REPEATED, EACH = (2, 3, 4, 6, 9), 30
"""Lengths of prompts that repeat a few tokens, and how many are drawn of each."""


class Smallest:
    """The smallest schedule known to break: it, its finding and what explains that. `past` ran before it."""

    def __init__(self, attempts: Attempts, schedule: Schedule, broken: Break, past: Sequence[Schedule]) -> None:
        self.attempts, self.past = attempts, tuple(past)
        self.schedule, (self.finding, self.says) = schedule, broken
        self.seconds = attempts.judge.shrinking
        self.once, self.fixed, self.reducible = False, False, False
        self.clock = Clock(0)

    def repeat(self) -> None:
        """Run the schedule again in a new engine, and each of its requests alone; then there is time for smaller ones."""
        again = self.attempts.tried(self.schedule, fresh=True)
        self.once, self.fixed = self.attempts.once, self.attempts.fixed
        if again is not None:
            self.keep(self.schedule, again)
        whole = self.schedule
        self.alone(whole)
        if again is None and self.schedule is whole and self.once and self.finding.kind.startswith(FAILED):
            self.breaking(self.repeating(), Clock(self.seconds))
        repeats = again is not None or self.schedule is not whole
        if not repeats:
            self.says = f"only after the {len(self.past)} schedules before it; {self.says}"
        single = size(self.schedule)[0] == 1 and repeats
        if single:
            self.shorter()
        self.reducible = not (single or self.once)
        self.clock = Clock(0 if self.once else self.seconds / (1 if single else 3))

    def keep(self, schedule: Schedule, broken: Break) -> None:
        self.schedule, (self.finding, self.says) = schedule, broken

    def same(self, broken: Break | None) -> TypeGuard[Break]:
        """Whether a schedule broke in this way too."""
        return broken is not None and broken[0].kind == self.finding.kind

    def alone(self, schedule: Schedule) -> None:
        """Each request of a schedule alone: what hypothesis, which keeps the order of what was drawn, does not reach in
        time. First the whole prompts, the longest first, of one that breaks then its last tokens; of none, those of all."""
        clock = Clock(self.seconds / (1 if self.once else 3))
        pairs = self.attempts.prompts(schedule)
        self.attempts.close()
        longest = sorted(pairs, key=lambda one: -len(one[1]))
        first = self.breaking((ends(ask, ids, len(ids))[0] for ask, ids in longest), clock)
        if first is not None:
            pairs = [(first, first.own)]
        every = (
            one
            for k in range(1, max(len(ids) for _, ids in pairs) + 1)
            for ask, ids in pairs
            if k <= len(ids)
            for one in ends(ask, ids, k)
        )
        self.breaking(every, clock)

    def breaking(self, candidates: Iterator[Ask], clock: Clock) -> Ask | None:
        """The first request that breaks alone: one after another in one process, and again in a new one if it breaks."""
        for ask in candidates:
            if clock.ended:
                return None
            alone = ((ask,),)
            if self.attempts.tried(alone, fresh=self.attempts.engine is None, count=False) is None:
                continue
            broken = self.attempts.tried(alone, fresh=True)
            self.attempts.close()
            if self.same(broken):
                self.keep(alone, broken)
                return ask
        return None

    def shorter(self) -> None:
        """A single request that asks for fewer tokens, the fewest first."""
        ((ask,),) = self.schedule
        self.breaking((replace(ask, most=most) for most in range(1, ask.most)), Clock(self.seconds / 3))

    def repeating(self) -> Iterator[Ask]:
        """Other requests, the shortest prompts first, for an error that no single request of the schedule causes: an
        engine that lives on answers many of them in one process. They repeat a few tokens, so that n-grams draft."""
        rng = np.random.default_rng(self.attempts.judge.seed)
        for length in REPEATED:
            for _ in range(EACH):
                pattern = rng.integers(1, min(self.attempts.judge.vocabulary, 64), size=rng.integers(1, 4))
                yield Ask(pattern=tuple(map(int, pattern)), length=length, most=LONGEST)

    def smaller(self, schedule: Schedule) -> bool:
        """Whether another schedule breaks a new engine too; false where there is no more time."""
        if self.clock.ended:
            return False
        broken = self.attempts.tried(schedule, fresh=True)
        if broken is not None and size(schedule) <= size(self.schedule):
            self.keep(schedule, broken)
        return broken is not None

    def reduce(self) -> None:
        """Leave out what the break does not need: first that requests run together, and all slots but one. If nothing that
        was run breaks so, other requests are drawn that run one after another."""
        if not self.reducible:
            return
        clock, half = Clock(self.seconds), Clock(self.seconds / 2)
        schedule, attempts = self.schedule, self.attempts
        options, history = attempts.options, attempts.full(*self.past, self.schedule)
        if not self.fixed:
            attempts.options = options.model_copy(update={"slots": 1})
        drawn = self.searched(half)
        found = next(filter(self.breaks, chain(map(in_turn, (attempts.full(schedule), history)), drawn)), None)
        if found is None:
            attempts.options = options
            found = next(filter(self.breaks, (attempts.full(schedule), history)), None)
        if found is not None:
            reduced(found, self.breaks, lambda: not clock.ended)

    def breaks(self, schedule: Schedule) -> bool:
        """Whether a schedule breaks a new engine in this way; then it is kept."""
        broken = self.attempts.tried(schedule, fresh=True)
        if self.same(broken):
            self.keep(schedule, broken)
            return True
        return False

    def searched(self, clock: Clock) -> Iterator[Schedule]:
        """Requests one after another, up to one that breaks an engine with one slot in this way; nothing where none does in
        time."""
        attempts = self.attempts
        offer = attempts.offer.without("batch", "join", "cancel")
        run: list[Schedule] = []
        broken: list[Schedule] = []

        @seeded(attempts.judge.seed)
        @settings(
            max_examples=MOST, deadline=None, database=None, phases=(Phase.generate,), suppress_health_check=list(HealthCheck)
        )
        @given(schedule=schedules(attempts.judge.vocabulary, offer, 1))
        def every(schedule: Schedule) -> None:
            if not broken and not clock.ended:
                run.append(schedule)
                if self.same(attempts.tried(schedule, fresh=len(run) == 1, count=False)):
                    broken.append(schedule)

        with by_seed_alone():
            every()
        if broken:
            yield attempts.full(broken[0])
            yield attempts.full(*run)


def ends(ask: Ask, ids: tuple[int, ...], length: int) -> tuple[Ask, ...]:
    """A request with the last tokens of a prompt, alone and greedy; and as it was in the schedule, if that differs."""
    usual: dict[str, Any] = {"tail": (), "of": None, "continues": False, "after": 0, "cancel": None}
    alone = replace(ask, pattern=ids[-length:], length=length, **usual)
    greedy = replace(alone, stop_at=None, temperature=0.0, seed=0, drafts=None, drafter=None)
    found = (greedy, replace(greedy, stop_at=ask.stop_at), replace(alone, stop_at=None), alone)
    return tuple(dict.fromkeys(found))


def size(schedule: Schedule) -> tuple[int, int]:
    """The size of a schedule for shrinking: requests, then tokens and settings."""
    every = [ask for asks in schedule for ask in asks]
    return len(every), sum(len(ask.own) + ask.most + ask.after for ask in every)
