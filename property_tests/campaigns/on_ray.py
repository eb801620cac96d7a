"""`ssmspec fuzz` on a Ray cluster: batches are tasks, and only the driver has the folder and the database.

A batch's number and the campaign's seed determine its examples, so that nodes find what one process finds. Batches are stored
in the order of their numbers, in whichever order they end; the campaign ends at the first failing number. If a later batch
that has already begun fails too, its failure is also saved as a program.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from hypothesis.database import ExampleDatabase, InMemoryExampleDatabase

from conformance.errors import RunBroken
from conformance.interpreter.device import placed
from conformance.on_ray.crew import Broke, Crew, Lost

from ..store.failures import Kept
from .campaign import Campaign, Played
from .database import Failures

Examples = list[tuple[bytes, bytes]]
"""The contents of a database: keys with values."""


def play(campaign: Campaign, number: int, known: Examples) -> tuple[Played, Examples]:
    """One batch, on a node, and the contents of its database afterwards."""
    database = InMemoryExampleDatabase()
    for key, value in known:
        database.save(key, value)
    with placed(campaign.device):
        played = campaign.play(campaign.load(), number, Failures(database))
    return played, [(key, value) for key, values in database.data.items() for value in sorted(values)]


def run(campaign: Campaign, crew: Crew, minutes: float, most: int | None) -> Kept | None:
    """Runs the campaign, with as many batches at a time as the cluster has room for; returns the failure of its first failing
    batch.

    Raises: ConformanceError; RunBroken if the cluster went away or a batch lost its workers; DatabaseUnavailable;
    StoreError.
    """
    with campaign.opened() as database:
        crew.ready()
        crew.note(campaign.folder, going_on=True)
        return Running(campaign, crew, database, minutes, most).through()


class Running:
    """A running campaign. `begun` are batches on nodes, `held` those that ended before one with a smaller number."""

    def __init__(self, campaign: Campaign, crew: Crew, database: ExampleDatabase, minutes: float, most: int | None) -> None:
        self.campaign, self.crew, self.database, self.most = campaign, crew, database, most
        self.numbers: Iterator[int] = campaign.numbers()
        self.clock: Callable[[], float] = campaign.clock
        self.start = self.clock()
        self.until = self.start + 60 * minutes
        self.begun: dict[int, Examples] = {}
        self.order: list[int] = []
        self.held: dict[int, Played] = {}
        self.done = 0

    def through(self) -> Kept | None:
        self.begin()
        while self.begun:
            number, said = self.crew.answer()
            if isinstance(said, Lost | Broke):
                raise RunBroken(f"no worker finished batch {number}: {said.why}")
            played, found = said
            try:
                self.learn(self.begun.pop(number), found)
            finally:
                if played.program:
                    self.campaign.saved(played.program)  # its turn may never come
            self.held[number] = played
            while self.order and self.order[0] in self.held:
                kept = self.campaign.keep(self.held.pop(self.order.pop(0)))
                self.done += 1
                if kept is not None:
                    return kept
            self.tell(number)
            self.begin()
        return None

    def begin(self) -> None:
        """Starts batches while there is room; one alone if the database has examples, because it deletes those that pass
        now."""
        known = self.examples()
        room = 1 if known else max(1, self.crew.slots)
        while len(self.begun) < room and self.clock() < self.until:
            if self.most is not None and self.done + len(self.order) >= self.most:
                return
            number = next(self.numbers)
            self.crew.submit(number, "property_tests.campaigns.on_ray:play", plain(self.campaign), number, known)
            self.begun[number] = known
            self.order.append(number)

    def examples(self) -> Examples:
        keys = (self.campaign.key, self.campaign.key + b".secondary")
        return [(key, value) for key in keys for value in self.database.fetch(key)]

    def learn(self, before: Examples, after: Examples) -> None:
        """Records the failures that a batch has found, and the examples that pass now."""
        for key, value in after:
            if (key, value) not in before:
                self.database.save(key, value)
        for key, value in before:
            if (key, value) not in after:
                self.database.delete(key, value)

    def tell(self, number: int) -> None:
        passed, left = self.clock() - self.start, max(0.0, self.until - self.clock())
        if self.most is not None and self.done:
            left = min(left, passed / self.done * (self.most - self.done))
        self.crew.tell(f"batch {number} ended; {self.done} done, {len(self.begun)} running, about {left:.0f} s left")


def plain(campaign: Campaign) -> Campaign:
    """The campaign as a node needs it: no database, no folder, no clock of this process."""
    return replace(campaign, folder=Path(), database=None, clock=time.monotonic)
