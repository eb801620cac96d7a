"""The single thread that runs the scheduler; the server's thread submits and cancels completions."""

import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from ..engine.loop import Engine
from ..engine.requests import Settings
from ..engine.scheduler import Scheduler, Served
from .choice import Choice
from .refusal import Refused

LEAST = 0.4
"""Seconds that a step may still take when the time of the drain is over."""


class Worker:
    """At most `queue` completions wait, `each` of one client; one more is refused. Every submitted completion is told when it
    ends.

    Raises: SlotError for an engine that is in use.
    """

    def __init__(self, engine: Engine, queue: int, each: int) -> None:
        self.scheduler = Scheduler(engine, Settings(0), most_tokens=queue * engine.cache)
        self.queue, self.each, self.choices = queue, each, dict[int, Choice]()
        self.lock, self.work, self.leaving = threading.Lock(), threading.Event(), deque[int]()
        self.deadline: float | None = None
        self.timer: threading.Timer | None = None
        self.closed, self.broken, self.late = False, "", 0
        self.seconds = 0.0
        """Processor time of the engine's thread."""
        self.thread = threading.Thread(target=self.run, name="ssmspec engine", daemon=True)

    def start(self) -> None:
        self.thread.start()

    def refuse(self, count: int = 1, client: str = "") -> None:
        """Raises: Refused if `count` more completions of a client cannot be accepted now."""
        if self.broken:
            raise Refused(500, f"the engine has stopped: {self.broken}; start the server again", code="engine_stopped")
        if self.closed or self.deadline is not None:
            raise Refused(503, "the server is shutting down; ask again", code="shutting_down")
        waiting = len(self.scheduler.waiting)
        if waiting + count > self.queue:
            said = f"{waiting} completions are waiting, {count} more do not fit into the queue of {self.queue}"
            raise Refused(429, f"{said}; ask again later, or start with a longer --queue", code="queue_full")
        mine = self.scheduler.waits(client) if count else 0
        if mine + count > self.each:
            said = f"{mine} completions of this client are waiting, {count} more are too many; it may have {self.each}"
            raise Refused(429, f"{said}; ask again later, or start with a higher --per-client", code="queue_full")

    def submit(self, choices: Sequence[Choice], client: str = "") -> list[int]:
        """The numbers of these completions of a client: either all are accepted or none.

        The random numbers of each depend on the seed of its settings and its place among those of one prompt.
        Raises: Refused; EmptyWindow, ParameterError, LengthError for what cannot be served.
        """
        numbers = list[int]()
        with self.lock:
            self.refuse(len(choices), client)
            try:
                for choice in choices:
                    given: dict[str, Any] = {"key": choice.key, "show": self.shown(choice), "client": client}
                    number = self.scheduler.submit(choice.prompt, choice.settings, **given)
                    self.choices[number] = choice
                    numbers.append(number)
            except Exception:
                for number in numbers:
                    self.choices.pop(number)
                    self.cancel(number)
                raise
            finally:
                self.work.set()
        return numbers

    def shown(self, choice: Choice) -> Any:
        """A function that receives the windows of a completion; after a stop string the completion leaves its slot."""

        def show(seen: Any) -> None:
            if not choice.over and choice.window(seen):
                self.leaving.append(seen.request)

        return show

    def cancel(self, number: int) -> None:
        """Removes a completion from the queue, or from its slot after the current step. From any thread, without waiting."""
        self.leaving.append(number)
        self.work.set()

    def drain(self, seconds: float) -> None:
        """Accepts no more completions; those accepted may finish, and after `seconds` the rest is refused."""
        self.deadline = time.monotonic() + seconds
        self.timer = threading.Timer(seconds, self.expire)
        self.timer.daemon = True
        self.timer.start()

    def expire(self) -> None:
        """The time of the drain is over."""
        self.late = len(self.choices)
        self.refuse_all()

    def refuse_all(self) -> None:
        """Ends the thread after the current step; unfinished completions are refused now, even if the step never ends."""
        self.closed = True
        self.work.set()
        with self.lock:
            left = list(self.choices)
        for number in left:
            self.leaving.append(number)
            self.end(Served(number, 0.0, 0.0, 0.0, (), "failed" if self.broken else "cancelled", self.broken))

    def close(self) -> None:
        """Refuses what is unfinished, and waits for the thread: while draining no longer than the last second of it."""
        if self.timer is not None:
            self.timer.cancel()
        self.refuse_all()
        self.thread.join(None if self.deadline is None else max(LEAST, self.deadline + LEAST - time.monotonic()))

    @property
    def why(self) -> str:
        """What it could not do before it ended; empty: nothing."""
        if self.broken:
            return f"the engine had stopped: {self.broken}"
        if self.thread.is_alive():
            return "the engine did not end its step in time; it is left behind"
        return f"{self.late} completions were refused when --drain had passed" if self.late else ""

    def run(self) -> None:
        """Runs until it is closed, or the engine raises an error that is no request's fault."""
        try:
            while not self.closed:
                self.work.clear()
                if self.scheduler.idle and not self.leaving and not self.closed:
                    self.work.wait()
                self.turn()
        except Exception as error:
            self.broken = f"{type(error).__name__}: {error}"
        self.refuse_all()
        if not self.broken:
            self.remove()
            self.scheduler.close()

    def turn(self) -> None:
        """Cancels, steps, and notifies completions that have ended."""
        begun = time.thread_time()
        self.remove()
        for served in self.scheduler.turn():
            self.end(served)
        self.seconds += time.thread_time() - begun

    def remove(self) -> None:
        """Cancels what is to leave."""
        while self.leaving:
            gone = self.scheduler.cancel(self.leaving.popleft())
            if gone is not None:
                self.end(gone)

    def end(self, served: Served) -> None:
        with self.lock:
            choice = self.choices.pop(served.number, None)
        if choice is not None:
            choice.ended(served)
