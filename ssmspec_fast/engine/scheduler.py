"""Schedules a stream of requests: which wait, join or are refused. A request that fails affects no other.

    continuous    a waiting request joins as soon as a slot is free                                       (1)
    clearing      the whole queue starts as one batch when it holds `capacity` requests, or when its
                  oldest request has waited for `wait` seconds; only while nothing runs               (2)

A turn admits requests, launches a step for the running ones, and reads the step before it. Memory is counted when the
engine is built, and the queue is bounded: a request beyond the bound is refused. One thread takes turns; any thread may
submit and cancel.

A free slot goes to the client with the fewest requests in slots; of its requests, the oldest is next.

An engine that reads prompts in pieces reads at most one run of them in a turn, and the next only after the running requests
have taken steps for as long. So these keep at least half of the time, and wait for one run at a time.

If a step fails, every request in it restarts from its prompt, each alone, so that only the request at fault fails again.
Windows that were already shown are not shown again.
Source: Snakes and Ladders, section 4, for (2).
"""

import threading
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import torch

from ssmspec_ref.errors import ParameterError

from ..errors import MemoryRefused
from .loop import Engine, Show
from .requests import Finish, Request, Result, Settings

Ending = Finish | Literal["cancelled"]

CLIENTS = 1024
"""The clients whose last turn is remembered: there is no end of addresses."""


class Clock(Protocol):
    """A clock. Units: seconds."""

    def now(self) -> float: ...

    def stepped(self, rows: int) -> None:
        """Called after a step of `rows` rows was launched."""

    def sleep_until(self, moment: float) -> None: ...


class RealClock:
    """The host's clock."""

    def now(self) -> float:
        return time.monotonic()

    def stepped(self, rows: int) -> None: ...

    def sleep_until(self, moment: float) -> None:
        time.sleep(max(0.0, moment - self.now()))


class Policy(Protocol):
    """Decides when waiting requests join."""

    def admits(self, arrivals: Sequence[float], running: int, free: int, now: float) -> int:
        """How many of the oldest requests join now; `arrivals` are those of the waiting ones, oldest first."""
        ...

    def next_admission(self, arrivals: Sequence[float]) -> float:
        """When the waiting requests join if nothing runs and no other request arrives."""
        ...


class Continuous:
    """Policy (1)."""

    def admits(self, arrivals: Sequence[float], running: int, free: int, now: float) -> int:
        return min(free, len(arrivals))

    def next_admission(self, arrivals: Sequence[float]) -> float:
        return arrivals[0]


@dataclass(frozen=True)
class Clearing:
    """Policy (2). Raises: ParameterError for a capacity below 1, or a wait below 0."""

    capacity: int
    wait: float

    def __post_init__(self) -> None:
        if self.capacity < 1 or not 0 <= self.wait < float("inf"):
            raise ParameterError(f"capacity and wait are {self.capacity} and {self.wait}; give 1 or more, and 0 or more")

    def admits(self, arrivals: Sequence[float], running: int, free: int, now: float) -> int:
        if running or not arrivals or now < self.next_admission(arrivals):
            return 0
        return min(self.capacity, free, len(arrivals))

    def next_admission(self, arrivals: Sequence[float]) -> float:
        full = arrivals[self.capacity - 1] if len(arrivals) >= self.capacity else float("inf")
        return min(full, arrivals[0] + self.wait)


@dataclass(frozen=True)
class Served:
    """One request: when it arrived, joined, emitted its first token and ended; its output; why it ended. Units: seconds."""

    number: int
    arrival: float
    start: float
    finish: float
    tokens: tuple[int, ...]
    ending: Ending
    why: str = ""
    first: float = 0.0

    @property
    def latency(self) -> float:
        return self.finish - self.arrival

    @property
    def wait(self) -> float:
        """From arrival to the first token."""
        return self.first - self.arrival


@dataclass
class Waiting:
    """A request with its times. A `suspect` one was in a step that failed, and runs alone."""

    request: Request
    arrival: float
    client: str = ""
    start: float = 0.0
    suspect: bool = False
    first: float = 0.0

    def again(self) -> "Waiting":
        """The same request, restarted from its prompt; windows already shown are not shown again."""
        old = self.request
        show = old.show if old.show is None or isinstance(old.show, Unseen) else Unseen(old.show)
        if isinstance(show, Unseen):
            show.shown, show.seen = max(show.shown, len(old.output)), 0
        return replace(self, request=Request(old.number, old.key, old.prompt, old.settings, show), suspect=True)


@dataclass
class Unseen:
    """Shows only the windows after the first `shown` tokens."""

    show: Show
    shown: int = 0
    seen: int = 0

    def __call__(self, window: Any) -> None:
        new = self.seen + len(window.tokens) - self.shown
        self.seen += len(window.tokens)
        if new > 0:
            tokens = window.tokens[-new:]
            logits = None if window.logits is None else window.logits[-new:]
            self.show(window if len(tokens) == len(window.tokens) else window._replace(tokens=tokens, logits=logits))


class Scheduler:
    """Serves one stream of an engine. `settings` is the default for requests without their own; `most_tokens` limits the
    prompt tokens in the queue.

    Raises: ParameterError (a policy needs more slots than there are), SlotError as `Engine.open`.
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
            raise ParameterError(
                f"batches have {capacity} requests, but the engine has {engine.slots} slots; build it with as many"
            )
        self.engine, self.settings, self.most_tokens = engine, settings, most_tokens
        self.clock: Clock = RealClock() if clock is None else clock
        self.sequences = engine.open(settings)
        self.waiting: deque[Waiting] = deque()
        self.running: dict[int, Request] = {}
        self.joined: dict[int, Waiting] = {}
        self.count, self.owed, self.last, self.taken = 0, 0.0, dict[str, int](), 0
        self.queue, self.turning = threading.Lock(), threading.RLock()

    def close(self) -> None:
        """Frees the engine for another stream."""
        self.engine.close()

    def submit(
        self,
        prompt: Sequence[int],
        settings: Settings | None = None,
        *,
        key: int | None = None,
        arrival: float | None = None,
        show: Show | None = None,
        client: str = "",
    ) -> int:
        """Queues a request of a client and returns its number; from any thread, without waiting for a step. `show` receives
        its windows, in the thread that takes turns; an exception it raises ends this request as failed.

        Raises: EmptyWindow, ParameterError, LengthError for a request that cannot be served; MemoryRefused if the queue is
        full.
        """
        settings = self.settings if settings is None else settings
        tokens = self.engine.check(prompt, settings)
        with self.queue:
            held = sum(len(one.request.prompt) for one in self.waiting)
            if held + len(tokens) > self.most_tokens:
                raise MemoryRefused(
                    f"a prompt of {len(tokens)} tokens is too much: {held} already wait, "
                    f"and at most {self.most_tokens} may; send it again later"
                )
            number = self.count
            request = Request(number, settings.key(number, key), tokens, settings, show)
            self.waiting.append(Waiting(request, self.clock.now() if arrival is None else arrival, client))
            self.count += 1
        return number

    def cancel(self, number: int) -> Served | None:
        """Ends a waiting or running request now; None if it has already ended. From any thread; during a step, a running
        request ends after the step."""
        with self.queue:
            for one in self.waiting:
                if one.request.number == number:
                    self.waiting.remove(one)
                    return self.served(one, (), "cancelled")
        with self.turning, self.queue:
            for waits in self.waiting:  # restarted in the meantime and queued again
                if waits.request.number == number:
                    self.waiting.remove(waits)
                    return self.served(waits, (), "cancelled")
            return self.end(number, "cancelled")

    def end(self, number: int, ending: Ending, why: str = "") -> Served | None:
        """Takes a running request out of its slot, with the output so far."""
        for slot, request in self.running.items():
            if request.number == number:
                del self.running[slot]
                self.sequences.ended[slot] = True
                self.engine.drafter.release(self.engine.rows([slot]))
                self.engine.ask([one.settings for one in self.running.values()])
                return self.served(self.joined.pop(number), tuple(request.output), ending, why)
        return None

    @property
    def idle(self) -> bool:
        return not (self.waiting or self.running or self.engine.rounds)

    @torch.no_grad()
    def turn(self) -> list[Served]:
        """Admits, steps, reads; returns the requests that ended."""
        with self.turning:
            done = self.admit()
            try:
                done += self.stepped()
            except Exception as error:  # a drafter may raise anything
                done += self.apart(error)
            for request in list(self.running.values()):
                if request.fault is not None:
                    ended = self.end(request.number, "failed", said(request.fault))
                    done += [] if ended is None else [ended]
            return done

    def stepped(self) -> list[Served]:
        """Pieces of prompts or nothing, a step of all requests whose prompts are read, and the result of the step before."""
        done, ready = [], self.read()
        begun = self.clock.now()
        if ready:
            self.engine.step(ready, self.sequences)
            self.clock.stepped(len(ready))
        late = 1 if ready and self.engine.graphs is not None else 0
        while len(self.engine.rounds) > late:
            for number, result in self.engine.leave(self.running):
                done.append(self.result(self.joined.pop(number), result))
        for one in self.joined.values():
            if one.request.output:
                one.first = one.first or self.clock.now()
        self.owed -= self.clock.now() - begun
        return done

    def read(self) -> dict[int, Request]:
        """Reads pieces of prompts, unless steps are owed time; returns the requests that can take a step."""
        if self.owed <= 0 or not self.engine.ready(self.running):
            begun = self.clock.now()
            read = self.engine.read(self.running, self.sequences)
            self.owed = self.clock.now() - begun if read else 0.0
        return self.engine.ready(self.running)

    def apart(self, error: Exception) -> list[Served]:
        """After a failed step, whose result is discarded: a request that ran alone has failed; several restart, each
        alone."""
        self.engine.rounds.clear()
        self.sequences.ended.fill_(True)
        self.engine.drafter.release(self.engine.rows(sorted(self.running)))
        back = [self.joined.pop(request.number) for request in self.running.values()]
        self.running.clear()
        if len(back) == 1:
            return [self.served(back[0], tuple(back[0].request.output), "failed", said(error))]
        with self.queue:
            self.waiting.extendleft(one.again() for one in sorted(back, key=lambda one: -one.request.number))
        return []

    def admit(self) -> list[Served]:
        """Starts waiting requests, as many as the policy says; returns those that cannot start, with the reason."""
        free = self.engine.slots - len(self.running)
        with self.queue:
            arrivals = [one.arrival for one in self.waiting]
            if self.waiting and self.waiting[0].suspect:
                count = 0 if self.running else 1
            elif any(one.suspect for one in self.joined.values()):
                count = 0
            else:
                count = self.policy.admits(arrivals, len(self.running), free, self.clock.now())
                count = next((n for n in range(count) if self.waiting[n].suspect), count)
            joining = self.fairest(count)
        for one in joining:
            one.start = one.start or self.clock.now()
        try:
            self.begin(joining)
        except Exception:
            return [found for one in joining if (found := self.alone(one)) is not None]
        return []

    def fairest(self, count: int) -> list[Waiting]:
        """Takes requests from the queue, one after the other: the oldest of the client that has the fewest in slots; of
        several such clients that whose turn was the longest ago."""
        held, found = Counter(one.client for one in self.joined.values()), list[Waiting]()
        for _ in range(count):
            place = 0
            if not self.waiting[0].suspect:
                names = [one.client for one in self.waiting]
                place = min(range(len(names)), key=lambda n: (held[names[n]], self.last.get(names[n], 0)))
            one = self.waiting[place]
            del self.waiting[place]
            found.append(one)
            held[one.client] += 1
            self.taken += 1
            self.last.pop(one.client, None)
            self.last[one.client] = self.taken
            if len(self.last) > CLIENTS:
                del self.last[next(iter(self.last))]
        return found

    def waits(self, client: str) -> int:
        """How many requests of a client wait."""
        with self.queue:
            return sum(one.client == client for one in self.waiting)

    def begin(self, joining: list[Waiting]) -> None:
        """Puts requests into free slots, all or none."""
        before = dict(self.running)
        try:
            self.engine.join([one.request for one in joining], self.running, self.sequences)
        except BaseException:
            for slot in set(self.running) - set(before):
                del self.running[slot]
                self.sequences.ended[slot] = True
            raise
        self.joined |= {one.request.number: one for one in joining}

    def alone(self, one: Waiting) -> Served | None:
        """Retries alone a request that could not start with others; fails it if that fails too."""
        try:
            self.begin([one])
        except Exception as error:
            return self.served(one, (), "failed", said(error))
        return None

    def result(self, one: Waiting, result: Result) -> Served:
        return self.served(one, result.tokens, result.finish)

    def served(self, one: Waiting, tokens: tuple[int, ...], ending: Ending, why: str = "") -> Served:
        now = self.clock.now()
        return Served(one.request.number, one.arrival, one.start or now, now, tokens, ending, why, one.first or now)


def said(error: Exception) -> str:
    """An error as text: its type and its message."""
    return f"{type(error).__name__}: {error}"
