"""Cells of the losslessness table, one after the other in one process: what is shared between them is made once.

Plain decoding of a model and mode runs once and lies in a folder that all processes share. The engine is reached by name:
`run`, `exact` and `digest` as in `ssmspec_fast.traces`.
"""

import functools
from collections.abc import Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ssmspec_ref.errors import SpecError

from .cells import DRAFTERS, FORETOLD, PLAIN, Cell, Key, compare, joined, judge
from .foretold import foretold
from .machine import kernels_hash


class Run(NamedTuple):
    """Plain decoding of all prompts: tokens (n, t) and the logits (n, t, i) that each was chosen from."""

    tokens: list[tuple[int, ...]]
    logits: np.ndarray


class Bench:
    """Runs cells, and before them the plain decoding of a model and mode, which it leaves in `store`."""

    def __init__(
        self,
        engine: str,
        checkpoints: Path,
        prompts: list[str],
        tokens: int,
        slots: int,
        device: str,
        dtype: str,
        store: Path,
        graphs: bool = False,
    ) -> None:
        self.engine, self.checkpoints, self.prompts, self.tokens = import_module(engine), checkpoints, prompts, tokens
        self.slots, self.device, self.dtype, self.store, self.graphs = slots, device, dtype, store, graphs
        folders = {file.parent for file in checkpoints.glob("*/config.json")}
        self.digests = {folder.name: self.engine.digest(folder) for folder in sorted(folders)}
        self.held: tuple[Path, Run] | None = None
        self.exact = functools.lru_cache(maxsize=256)(self.forward)

    def __call__(self, key: Key) -> Cell | None:
        """A cell, or nothing for plain decoding."""
        if not key[2]:
            self.decode(key[0], key[3])
            return None
        return self.foretold(key) if key[2] == FORETOLD else self.cell(key)

    def run(self, model: str, mode: str, **given: Any) -> Any:
        named = {"mode": mode, "device": self.device, "dtype": self.dtype, "graphs": self.graphs, "slots": self.slots}
        return self.engine.run(self.checkpoints / model, self.prompts, self.tokens, **named | given)

    def file(self, model: str, mode: str) -> Path:
        return self.store / f"{model}-{mode}.npz"

    def decode(self, model: str, mode: str) -> None:
        """Plain decoding, into its file."""
        plain, file = self.run(model, mode), self.file(model, mode)
        part = file.with_suffix(".part.npz")
        np.savez(part, tokens=np.array(plain.tokens), logits=np.stack(plain.logits))
        part.replace(file)

    def plain(self, model: str, mode: str) -> Run:
        """What `decode` left."""
        file = self.file(model, mode)
        if self.held is None or self.held[0] != file:
            with np.load(file) as held:
                self.held = file, Run([tuple(row) for row in held["tokens"].tolist()], held["logits"])
        return self.held[1]

    def foretold(self, key: Key) -> Cell:
        """Plain decoding beside transformers."""
        model, plain = key[0], self.plain(key[0], key[3])
        theirs = foretold(self.checkpoints / model, self.prompts, plain.tokens, self.device)
        found = compare(plain, theirs, lambda n, output: self.exact(model, n, output), fast=True)
        return self.stamped(Cell(*key, *judge(*found, None, self.dtype == "float32"), compared=found[2], ties=found[3]))

    def cell(self, key: Key) -> Cell:
        """Raises: what speculation raises, but that what it refuses is inapplicable."""
        model, method, drafter, mode = key
        given = dict(DRAFTERS[drafter])
        if given["drafter"] in self.digests:
            given["drafter"] = self.checkpoints / str(given["drafter"])
        try:
            spoken = self.run(model, mode, method=method, **given)
        except SpecError as error:
            if type(error).__name__ != "Unsupported":
                raise
            return self.stamped(Cell(*key, "inapplicable", str(error)))
        found = compare(self.plain(model, mode), spoken, lambda n, output: self.exact(model, n, output), mode == "fast")
        statistics = spoken.statistics
        windows = statistics.none, statistics.some, statistics.all
        outcome = judge(*found, windows, self.dtype == "float32")
        counted = {"compared": found[2], "ties": found[3], "windows": windows, "tau": statistics.tau, "steps": spoken.steps}
        return self.stamped(Cell(*key, *outcome, **counted, seconds=round(statistics.seconds, 3)))

    def stamped(self, cell: Cell) -> Cell:
        """With what it was made."""
        return Cell(**asdict(cell) | {"kernels": kernels_hash(), "checkpoints": joined(self.digests, cell)})

    def forward(self, model: str, n: int, output: tuple[int, ...]) -> np.ndarray:
        return self.engine.exact(self.checkpoints / model, self.prompts[n], output, self.device)


def needs(key: Key) -> Key | None:
    """The plain decoding that a cell is compared with."""
    return (key[0], PLAIN, "", key[3]) if key[2] else None


def ordered(cells: Sequence[Key]) -> list[Key]:
    """The cells, each plain decoding before the first that needs it."""
    return list(dict.fromkeys(key for cell in cells for key in (needs(cell), cell) if key is not None))
