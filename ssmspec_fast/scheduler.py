"""A stream of requests: who waits, who joins, who is turned away; each request ends by itself and harms no other.

    continuous    a waiting request joins as soon as a slot is free                                       (1)
    clearing      the queue is cleared when it holds `capacity` requests, or when its oldest has waited
                  `wait`, and nothing runs; what has come by then is one batch                            (2)

A turn admits requests, launches a step for those that run, and reads the step before it. What is held is counted when the
engine is built, and the queue has an end: a request too many is refused.
Source: Snakes and Ladders, section 4, for (2).
"""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch

from ssmspec_ref.errors import ParameterError, SpecError

from .engine import Engine
from .errors import MemoryRefused
from .requests import Finish, Request, Result, Settings

Ending = Finish | Literal["cancelled"]


class Clock(Protocol):
    """Units: seconds."""

    def now(self) -> float: ...

    def stepped(self, rows: int) -> None:
        """A step of so many rows was launched."""

    def sleep_until(self, moment: float) -> None: ...


class RealClock:
    """The host's."""

    def now(self) -> float:
        return time.monotonic()

    def stepped(self, rows: int) -> None: ...

    def sleep_until(self, moment: float) -> None:
        time.sleep(max(0.0, moment - self.now()))


class Policy(Protocol):
    """When waiting requests join."""

    def admits(self, arrivals: Sequence[float], running: int, free: int, now: float) -> int:
        """How many of the oldest join now; `arrivals` are those of the waiting ones, oldest first."""
        ...

    def next_admission(self, arrivals: Sequence[float]) -> float:
        """When the waiting ones join, if nothing runs and none comes."""
        ...


class Continuous:
    """(1)."""

    def admits(self, arrivals: Sequence[float], running: int, free: int, now: float) -> int:
        return min(free, len(arrivals))

    def next_admission(self, arrivals: Sequence[float]) -> float:
        return arrivals[0]


@dataclass(frozen=True)
class Clearing:
    """(2). Raises: ParameterError for a capacity below 1, or a wait below 0."""

    capacity: int
    wait: float

    def __post_init__(self) -> None:
        if self.capacity < 1 or not 0 <= self.wait < float("inf"):
            raise ParameterError(f"capacity and wait came as {self.capacity} and {self.wait}; give 1 or more, and 0 or more")

    def admits(self, arrivals: Sequence[float], running: int, free: int, now: float) -> int:
        if running or not arrivals or now < self.next_admission(arrivals):
            return 0
        return min(self.capacity, free, len(arrivals))

    def next_admission(self, arrivals: Sequence[float]) -> float:
        full = arrivals[self.capacity - 1] if len(arrivals) >= self.capacity else float("inf")
        return min(full, arrivals[0] + self.wait)


@dataclass(frozen=True)
class Served:
    """One request: when it came, joined and ended, what it said, and why it ended. Units: seconds."""

    number: int
    arrival: float
    start: float
    finish: float
    tokens: tuple[int, ...]
    ending: Ending
    why: str = ""

    @property
    def latency(self) -> float:
        return self.finish - self.arrival


@dataclass
class Waiting:
    """A request with its times."""

    request: Request
    arrival: float
    start: float = 0.0


class Scheduler:
    """Serves one stream of an engine. `most_tokens` bounds the tokens of the prompts that wait.

    Raises: ParameterError (a policy that asks for more slots than there are), SlotError as `Engine.open`.
    """

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        policy: Policy | None = None,
        clock: Clock | None = None,
        most_tokens: int = 2**20,
    ) -> None:
        self.policy: Policy = Continuous() if policy is None else policy
        capacity = getattr(self.policy, "capacity", 1)
        if capacity > engine.slots:
            raise ParameterError(f"batches of {capacity} came for an engine of {engine.slots} slots; give it as many")
        self.engine, self.settings, self.most_tokens = engine, settings, most_tokens
        self.clock: Clock = RealClock() if clock is None else clock
        self.sequences = engine.open(settings)
        self.waiting: deque[Waiting] = deque()
        self.running: dict[int, Request] = {}
        self.joined: dict[int, Waiting] = {}
        self.count = 0

    def close(self) -> None:
        """The engine is free for another stream."""
        self.engine.close()

    def submit(self, prompt: Sequence[int], key: int | None = None, arrival: float | None = None) -> int:
        """A request's number.

        Raises: EmptyWindow, ParameterError, LengthError for a prompt that cannot be served; MemoryRefused for one too many.
        """
        self.engine.check([prompt], self.settings)
        held = sum(len(one.request.prompt) for one in self.waiting)
        if held + len(prompt) > self.most_tokens:
            raise MemoryRefused(
                f"a prompt of {len(prompt)} tokens came while {held} wait and {self.most_tokens} may; ask again later"
            )
        number, self.count = self.count, self.count + 1
        request = Request(number, number if key is None else key, list(prompt))
        self.waiting.append(Waiting(request, self.clock.now() if arrival is None else arrival))
        return number

    def cancel(self, number: int) -> Served | None:
        """A waiting or running request ends here and now; None where it has ended already."""
        for one in self.waiting:
            if one.request.number == number:
                self.waiting.remove(one)
                return self.served(one, (), "cancelled")
        for slot, request in self.running.items():
            if request.number == number:
                del self.running[slot]
                self.sequences.ended[slot] = True
                self.engine.drafter.release(self.engine.rows([slot]))
                return self.served(self.joined.pop(number), tuple(request.output), "cancelled")
        return None

    @property
    def idle(self) -> bool:
        return not (self.waiting or self.running or self.engine.rounds)

    @torch.no_grad()
    def turn(self) -> list[Served]:
        """Admit, step, read; what ended meanwhile."""
        done = self.admit()
        if self.running:
            self.engine.step(self.running, self.sequences)
            self.clock.stepped(len(self.running))
        late = 1 if self.running and self.engine.graphs is not None else 0
        while len(self.engine.rounds) > late:
            for number, result in self.engine.leave(self.running, self.settings):
                done.append(self.result(self.joined.pop(number), result))
        return done

    def admit(self) -> list[Served]:
        """The oldest of those that wait, as many as the policy says; those that cannot begin, by their reason."""
        free = self.engine.slots - len(self.running)
        arrivals = [one.arrival for one in self.waiting]
        count = self.policy.admits(arrivals, len(self.running), free, self.clock.now())
        joining = [self.waiting.popleft() for _ in range(count)]
        for one in joining:
            one.start = self.clock.now()
        try:
            self.begin(joining)
        except (SpecError, RuntimeError):
            return [found for one in joining if (found := self.alone(one)) is not None]
        return []

    def begin(self, joining: list[Waiting]) -> None:
        """Into free slots, all or none."""
        before = dict(self.running)
        try:
            self.engine.join([one.request for one in joining], self.running, self.sequences, self.settings)
        except BaseException:
            for slot in set(self.running) - set(before):
                del self.running[slot]
                self.sequences.ended[slot] = True
            raise
        self.joined |= {one.request.number: one for one in joining}

    def alone(self, one: Waiting) -> Served | None:
        """One that could not begin with others; failed where it cannot begin alone either."""
        try:
            self.begin([one])
        except (SpecError, RuntimeError) as error:
            return self.served(one, (), "failed", f"{type(error).__name__}: {error}")
        return None

    def result(self, one: Waiting, result: Result) -> Served:
        return self.served(one, result.tokens, result.finish)

    def served(self, one: Waiting, tokens: tuple[int, ...], ending: Ending, why: str = "") -> Served:
        now = self.clock.now()
        return Served(one.request.number, one.arrival, one.start or now, now, tokens, ending, why)
