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


class Worker:
    """At most `queue` completions wait; one more is refused. Every submitted completion is told when it ends.

    Raises: SlotError for an engine that is in use.
    """

    def __init__(self, engine: Engine, queue: int) -> None:
        self.scheduler = Scheduler(engine, Settings(0), most_tokens=queue * engine.cache)
        self.queue, self.choices = queue, dict[int, Choice]()
        self.lock, self.work, self.leaving = threading.Lock(), threading.Event(), deque[int]()
        self.deadline: float | None = None
        self.closed, self.broken = False, ""
        self.thread = threading.Thread(target=self.run, name="ssmspec engine", daemon=True)

    def start(self) -> None:
        self.thread.start()

    def refuse(self, count: int = 1) -> None:
        """Raises: Refused if `count` more completions cannot be accepted now."""
        if self.broken:
            raise Refused(500, f"the engine has stopped: {self.broken}; start the server again", code="engine_stopped")
        if self.closed or self.deadline is not None:
            raise Refused(503, "the server is shutting down; ask again", code="shutting_down")
        waiting = len(self.scheduler.waiting)
        if waiting + count > self.queue:
            said = f"{waiting} completions are waiting, {count} more do not fit into the queue of {self.queue}"
            raise Refused(429, f"{said}; ask again later, or start with a longer --queue", code="queue_full")

    def submit(self, choices: Sequence[Choice]) -> list[int]:
        """The numbers of these completions: either all are accepted or none.

        The random numbers of each depend on the seed of its settings and its place among those of one prompt.
        Raises: Refused; EmptyWindow, ParameterError, LengthError for what cannot be served.
        """
        numbers = list[int]()
        with self.lock:
            self.refuse(len(choices))
            try:
                for choice in choices:
                    number = self.scheduler.submit(choice.prompt, choice.settings, key=choice.key, show=self.shown(choice))
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
        """Accepts no more completions; those accepted may finish, and after `seconds` the rest is refused.

        Takes no lock, so that a signal handler may call it.
        """
        self.deadline = time.monotonic() + seconds

    def close(self) -> None:
        """Ends the thread after the current step; unfinished completions are refused."""
        self.closed = True
        self.work.set()
        self.thread.join()

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
        with self.lock:
            self.closed, left = True, list(self.choices)
        for number in left:
            self.end(Served(number, 0.0, 0.0, 0.0, (), "failed" if self.broken else "cancelled", self.broken))
        if not self.broken:
            self.scheduler.close()

    def turn(self) -> None:
        """Cancels, steps, and notifies completions that have ended."""
        if self.deadline is not None and time.monotonic() > self.deadline:
            self.leaving.extend(list(self.choices))
        while self.leaving:
            gone = self.scheduler.cancel(self.leaving.popleft())
            if gone is not None:
                self.end(gone)
        for served in self.scheduler.turn():
            self.end(served)

    def end(self, served: Served) -> None:
        with self.lock:
            choice = self.choices.pop(served.number, None)
        if choice is not None:
            choice.ended(served)
