"""Fuzzing for as long as wanted: numbered batches of a fixed number of examples, each stored when it is done.

batch k of shard i/n: number i + k n, seed = campaign's seed and number; the same seed gives the same examples    (1)
a failure ends the campaign: its smallest example is saved as a program, named by its content, and in the database (2)
examples in the database are tried before anything is drawn, on every worker that shares it                       (3)
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import Phase
from hypothesis.database import ExampleDatabase

from conformance.errors import MalformedAdapter
from conformance.progress import lines
from conformance.progress.lines import StoreError
from conformance.progress.made import remove
from conformance.run.load import load
from ssmspec_ref.contract import Adapter, Decoding

from ..drawing.profiles import PROFILES, Profile
from ..sessions.hunt import hunt, reproducer
from ..sessions.machine import machine
from ..sessions.totals import Totals, merged
from ..store import failures, parts, state
from ..store.failures import Kept
from .database import EXAMPLES, open_database

TARGETED = 4
"""One in this many batches maximises the utilisation of the bound instead of drawing at random."""


@dataclass(frozen=True)
class Played:
    """The result of a batch: its record, and a program that fails in the same way, "" without a failure."""

    line: dict[str, Any]
    program: str = ""


@dataclass(frozen=True)
class Campaign:
    """One worker's share. `folder` belongs to the worker; `device` as in `ssmspec conform`."""

    named: str
    folder: Path
    profile: str = "campaign"
    device: str = "cpu"
    seed: int = 0
    shard: tuple[int, int] = (0, 1)
    examples: int = 20
    database: str | None = None
    """Where failing examples are shared; they are also kept in the folder."""
    clock: Callable[[], float] = field(default=time.monotonic)

    @property
    def profiled(self) -> Profile:
        return PROFILES[self.profile]

    @property
    def head(self) -> dict[str, Any]:
        """What batches must have in common to belong together."""
        given = {"adapter": self.named, "profile": self.profile, "device": self.device, "seed": self.seed}
        return {**given, "shard": list(self.shard), "of": self.examples}

    @property
    def key(self) -> bytes:
        """The database key of failing examples."""
        return f"{self.named} {self.profile} {self.device}".encode()

    def done(self) -> list[dict[str, Any]]:
        """The finished batches. Raises: StoreError if their file is damaged."""
        return [part for part in parts.read(self.folder) if part["head"] == self.head]

    def numbers(self) -> Iterator[int]:
        """The numbers of the remaining batches (1)."""
        begun = {part["number"] for part in self.done()}
        number = self.shard[0]
        while True:
            if number not in begun:
                yield number
            number += self.shard[1]

    def load(self) -> Adapter:
        """Loads the adapter, in this process. Raises: ConformanceError."""
        adapter = load(self.named, "cpu" if self.device == "interpreter" else self.device)
        if not adapter.decodings:
            raise MalformedAdapter(
                f"{adapter.name} declares no decodings, so there are no sequences to fuzz; use `ssmspec conform run`"
            )
        return adapter

    def run(self, minutes: float, most: int | None = None, shown: Callable[[int, Totals], None] | None = None) -> Kept | None:
        """Runs batches until the time is over, or until `most` are done; returns the first failure, as stored in the folder.

        Raises: ConformanceError; DatabaseUnavailable; StoreError for a folder that cannot be used; OSError if writing to the
        disk fails later.
        """
        adapter = self.load()
        return self.through(minutes, most, lambda number, database: self.play(adapter, number, database, shown))

    def through(self, minutes: float, most: int | None, play: Callable[[int, ExampleDatabase], Played]) -> Kept | None:
        """Runs the remaining batches, each stored when it is done."""
        with self.opened() as database:
            until = self.clock() + 60 * minutes
            for finished, number in enumerate(self.numbers()):
                if self.clock() >= until or finished == most:
                    return None
                failure = self.keep(play(number, database))
                if failure is not None:
                    return failure
        return None

    @contextmanager
    def opened(self) -> Iterator[ExampleDatabase]:
        """Locks the folder for this process, marks it as unfinished, and opens its database; at the end sends unsent
        failures. A folder that is made for a campaign that cannot begin is removed again.

        Raises: StoreError, DatabaseUnavailable.
        """
        with state.owned(self.folder) as made:
            try:
                database = open_database(self.database, self.folder)
                parts.read(self.folder)
                failures.kept(self.folder)
            except BaseException:  # also where it is interrupted, while a server does not answer
                if made:
                    remove([self.folder / state.LOCK], [self.folder / EXAMPLES, *made])
                raise
            state.begin(self.folder)
            try:
                yield database
            finally:
                database.settle()

    def play(
        self,
        adapter: Adapter,
        number: int,
        database: ExampleDatabase | None = None,
        shown: Callable[[int, Totals], None] | None = None,
    ) -> Played:
        """One batch, not stored yet."""
        profile, begun = self.profiled, self.clock()
        made = machine(adapter, self.named, profile.sizes, groups(adapter))
        made.device = self.device
        totals: Totals = made.totals
        totals.shown = (lambda: shown(number, totals)) if shown else totals.shown
        given: dict[str, Any] = {"max_examples": self.examples, "database": database}
        if number % TARGETED == TARGETED - 1:
            given["phases"] = (Phase.reuse, Phase.generate, Phase.target, Phase.shrink)
        how = profile.settings(**given, derandomize=False)
        failure = hunt(made, how, self.seed * 2**20 + number, self.key)
        line = {
            "schema": lines.SCHEMA,
            "head": self.head,
            "number": number,
            "seconds": self.clock() - begun,
            **totals.words(),
        }
        if failure is None:
            return Played({**line, "failure": None})
        said = {"message": failure.message, "at": failure.examples}
        return Played({**line, "failure": said}, reproducer(failure, self.device))

    def keep(self, played: Played) -> Kept | None:
        """Stores a batch: first the program of its failure (2), then its line, each synced to the disk before the next."""
        line, kept = played.line, None
        if played.program:
            kept = self.saved(played.program)
            line = {**line, "failure": {**line["failure"], "name": kept.name}}
        try:
            lines.append(self.folder / parts.FILE, line)
        except OSError:
            if kept is not None:
                print(f"deviates: {kept.message}\nagain: python {kept.path}", file=sys.stderr)
            raise
        return kept

    def saved(self, program: str) -> Kept:
        """Saves the program of a failure; prints it if the disk fails, so that it is not lost. Raises: OSError."""
        try:
            return failures.save(self.folder, program)
        except OSError:
            print(program, file=sys.stderr)
            raise


def groups(adapter: Adapter) -> list[tuple[Decoding, ...]]:
    """Decodings between which sequences may be handed over: those with the same contract and promise of bits."""
    kinds: dict[tuple[str, str], list[Decoding]] = {}
    for decoding in adapter.decodings:
        kinds.setdefault((decoding.bits, str(decoding.contract)), []).append(decoding)
    return [tuple(kind) for kind in kinds.values()]


def read(folders: list[Path]) -> dict[str, Any]:
    """The batches of several workers as one report, with the failures of batches that did not finish. `unfinished` are the
    folders whose last run did not finish; `unread` says which files cannot be read.

    Raises: StoreError if no folder can be read, if none has a batch or a failure, and for a batch in two folders.
    """
    done: list[dict[str, Any]] = []
    found: list[dict[str, Any]] = []
    unfinished: list[str] = []
    wrong: list[StoreError] = []
    for folder in folders:
        here, kept = list[dict[str, Any]](), list[Kept]()
        try:
            kept, ended = failures.kept(folder), state.finished(folder)
            here = parts.read(folder)
            unfinished += [] if ended and here else [str(folder)]
        except StoreError as error:
            wrong.append(error)
        done += here
        told = [part["failure"] for part in here if part["failure"]]
        known = {said.get("name", said["message"]) for said in told}
        more = [one for one in kept if one.name not in known and one.message not in known]
        found += [*told, *({"message": one.message, "at": None, "name": one.name} for one in more)]
    if len(wrong) == len(folders):
        raise wrong[0]
    if not done and not found:
        raise StoreError(f"{folders[0]} has no finished batch of a campaign; run `ssmspec fuzz --folder {folders[0]}` first")
    names = [json.dumps([part["head"], part["number"]]) for part in done]
    if len(set(names)) != len(names):
        raise StoreError("the same batch is in two folders; name each worker's folder once")
    return {**merged(done), "failures": found, "unfinished": unfinished, "unread": [str(error) for error in wrong]}
