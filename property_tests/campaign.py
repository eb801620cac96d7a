"""Fuzzing for as long as wanted: parts of so many examples, each named by its number, written down when it is done.

part k of shard i/n: number i + k n, seed = campaign's seed and number; the same seed gives the same examples   (1)
a failure ends the campaign: its smallest example is saved as a program, and kept in the database                (2)
what the database holds is tried before anything is drawn, on every worker that shares it                        (3)
"""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import Phase
from hypothesis.database import ExampleDatabase

from conformance.errors import MalformedAdapter
from conformance.load import load
from ssmspec_ref.contract import Adapter, Decoding

from .hunt import Failure, hunt, reproducer
from .machine import machine
from .profiles import PROFILES, Profile
from .totals import Totals, merged

PARTS, FAILURES = "parts.jsonl", "failures"
TARGETED = 4
"""Every so manieth part climbs towards the worst utilisation of the bound instead of drawing afresh."""


@dataclass(frozen=True)
class Campaign:
    """One worker's share. `folder` is the worker's own; `device` as `ssmspec conform`'s."""

    named: str
    folder: Path
    profile: str = "campaign"
    device: str = "cpu"
    seed: int = 0
    shard: tuple[int, int] = (0, 1)
    examples: int = 20
    database: ExampleDatabase | None = None
    clock: Callable[[], float] = field(default=time.monotonic)

    @property
    def profiled(self) -> Profile:
        return PROFILES[self.profile]

    @property
    def head(self) -> dict[str, Any]:
        """What parts must agree on to belong together."""
        given = {"adapter": self.named, "profile": self.profile, "device": self.device, "seed": self.seed}
        return {**given, "shard": list(self.shard), "of": self.examples}

    def done(self) -> list[dict[str, Any]]:
        """The parts that were finished; a last line that was cut off is not one."""
        path = self.folder / PARTS
        lines = path.read_text().splitlines() if path.exists() else []
        parts = [part for line in lines if (part := parsed(line)) is not None]
        return [part for part in parts if part["head"] == self.head]

    def numbers(self) -> Iterator[int]:
        """The parts still to do (1)."""
        begun = {part["number"] for part in self.done()}
        number = self.shard[0]
        while True:
            if number not in begun:
                yield number
            number += self.shard[1]

    def run(
        self, minutes: float, most: int | None = None, shown: Callable[[int, Totals], None] | None = None
    ) -> Failure | None:
        """Part after part until the time is over, or until `most` parts are done.

        Raises: ConformanceError; OSError for a folder that cannot be.
        """
        adapter = load(self.named, "cpu" if self.device == "interpreter" else self.device)
        if not adapter.decodings:
            raise MalformedAdapter(
                f"{adapter.name} has no decodings, so no sequence to draw; `ssmspec conform run` judges it"
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        until = self.clock() + 60 * minutes
        for finished, number in enumerate(self.numbers()):
            if self.clock() >= until or finished == most:
                return None
            failure = self.part(adapter, number, shown)
            if failure is not None:
                self.save(failure)
                return failure
        return None

    def part(self, adapter: Adapter, number: int, shown: Callable[[int, Totals], None] | None) -> Failure | None:
        profile, begun = self.profiled, self.clock()
        made = machine(adapter, self.named, profile.sizes, groups(adapter))
        made.device = self.device
        totals: Totals = made.totals
        totals.shown = (lambda: shown(number, totals)) if shown else totals.shown
        given: dict[str, Any] = {"max_examples": self.examples, "database": self.database}
        if number % TARGETED == TARGETED - 1:
            given["phases"] = (Phase.reuse, Phase.generate, Phase.target, Phase.shrink)
        how = profile.settings(**given, derandomize=False)
        failure = hunt(made, how, self.seed * 2**20 + number, f"{self.named} {self.profile} {self.device}".encode())
        line = {"head": self.head, "number": number, "seconds": self.clock() - begun, **totals.words()}
        line["failure"] = None if failure is None else {"message": failure.message, "at": failure.examples}
        with (self.folder / PARTS).open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")
        return failure

    def save(self, failure: Failure) -> Path:
        """The program that fails in the same way (2)."""
        folder = self.folder / FAILURES
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{len(list(folder.iterdir())):03}.py"
        path.write_text(reproducer(failure, self.device), encoding="utf-8")
        return path


def parsed(line: str) -> dict[str, Any] | None:
    try:
        return json.loads(line)
    except json.JSONDecodeError:
        return None


def groups(adapter: Adapter) -> list[tuple[Decoding, ...]]:
    """Decodings between which sequences are handed over: those of one contract and one promise of bits."""
    kinds: dict[tuple[str, str], list[Decoding]] = {}
    for decoding in adapter.decodings:
        kinds.setdefault((decoding.bits, str(decoding.contract)), []).append(decoding)
    return [tuple(kind) for kind in kinds.values()]


def read(folders: list[Path]) -> dict[str, Any]:
    """The parts of several workers as one report. Raises: ValueError for a folder without parts."""
    parts: list[dict[str, Any]] = []
    for folder in folders:
        path = folder / PARTS
        found = [part for line in path.read_text().splitlines() if (part := parsed(line))] if path.exists() else []
        if not found:
            raise ValueError(f"{folder} holds no finished part of a campaign; run `ssmspec fuzz --folder {folder}` first")
        parts += found
    names = [json.dumps([part["head"], part["number"]]) for part in parts]
    if len(set(names)) != len(names):
        raise ValueError("a part came twice; name each worker's folder once")
    return {**merged(parts), "failures": [part["failure"] for part in parts if part["failure"]]}
