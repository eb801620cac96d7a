"""Cells of the losslessness table, one after the other in one process: shared results are computed once.

Plain decoding of a model and mode runs once and is stored in a folder that all processes share. The engine is reached by
name: `running`, `together`, `Exact` and `digest` as in `ssmspec_fast.engine.traces`.
"""

import functools
from collections.abc import Sequence
from dataclasses import asdict
from importlib import import_module
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ssmspec_ref.errors import SpecError

from ..machine import kernels_hash
from .cells import DRAFTERS, FORETOLD, PLAIN, Cell, Key, compare, joined, judge
from .reference_logits import reference_logits
from .workers import Failed, failed

Group: TypeAlias = tuple[Key, ...]
"""Cells that one process interleaves."""
ON_HOST = ("bpe, by text",)


class Run(NamedTuple):
    """Plain decoding of all prompts: tokens (n, t) and the logits (n, t, i) that each was chosen from."""

    tokens: list[tuple[int, ...]]
    logits: np.ndarray


class Bench:
    """Runs cells, and before them the plain decoding of a model and mode, which it stores in `store`."""

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
        self.plain = functools.lru_cache(maxsize=2)(self.decoded)
        self.exact = functools.lru_cache(maxsize=256)(self.forward)
        self.wide = functools.lru_cache(maxsize=2)(lambda model: self.engine.Exact(checkpoints / model, device))

    def __call__(self, group: Group) -> list[Cell | Failed | None]:
        """A cell for each key, None for plain decoding, or why there is none."""
        if len(group) > 1:
            return self.cells(group)
        (key,) = group
        if not key[2]:
            self.decode(key[0], key[3])
            return [None]
        return [self.reference_logits(key)] if key[2] == FORETOLD else self.cells(group)

    def given(self, model: str, mode: str, **more: Any) -> Any:
        """A run that has not started."""
        named = {"mode": mode, "device": self.device, "dtype": self.dtype, "graphs": self.graphs, "slots": self.slots}
        return self.engine.running(self.checkpoints / model, self.prompts, self.tokens, **named | more)

    def file(self, model: str, mode: str) -> Path:
        return self.store / f"{model}-{mode}.npz"

    def decode(self, model: str, mode: str) -> None:
        """Plain decoding, written to its file."""
        (plain,), file = self.engine.together([self.given(model, mode)]), self.file(model, mode)
        if isinstance(plain, Exception):
            raise plain
        part = file.with_suffix(".part.npz")
        np.savez(part, tokens=np.array(plain.tokens), logits=np.stack(plain.logits))
        part.replace(file)

    def decoded(self, model: str, mode: str) -> Run:
        """What `decode` stored."""
        with np.load(self.file(model, mode)) as held:
            return Run([tuple(row) for row in held["tokens"].tolist()], held["logits"])

    def reference_logits(self, key: Key) -> Cell:
        """Plain decoding compared with transformers."""
        model, mode = key[0], key[3]
        plain = self.plain(model, mode)
        theirs = reference_logits(self.checkpoints / model, self.prompts, plain.tokens, self.device)
        found = compare(plain, theirs, functools.partial(self.exact, model, mode), fast=True)
        outcome = judge(*found, None, self.dtype == "float32")
        return self.stamped(Cell(*key, *outcome, compared=found[2], ties=found[3], beside=theirs.name))

    def cells(self, group: Group) -> list[Cell | Failed | None]:
        """Interleaved cells. What speculation refuses is inapplicable."""
        runs = []
        for model, method, drafter, mode in group:
            named = dict(DRAFTERS[drafter])
            if named["drafter"] in self.digests:
                named["drafter"] = self.checkpoints / str(named["drafter"])
            runs.append(self.given(model, mode, method=method, **named))
        found = zip(group, self.engine.together(runs), strict=True)
        return [self.answer(key, said) for key, said in found]

    def answer(self, key: Key, said: Any) -> Cell | Failed:
        """A cell from a run, from its refusal, or the reason for none."""
        if isinstance(said, SpecError) and type(said).__name__ == "Unsupported":
            return self.stamped(Cell(*key, "inapplicable", str(said)))
        return failed(said) if isinstance(said, Exception) else self.compared(key, said)

    def compared(self, key: Key, spoken: Any) -> Cell:
        """A run compared with plain decoding."""
        model, mode = key[0], key[3]
        found = compare(self.plain(model, mode), spoken, functools.partial(self.exact, model, mode), mode == "fast")
        statistics = spoken.statistics
        windows = statistics.none, statistics.some, statistics.all
        outcome = judge(*found, windows, self.dtype == "float32")
        counted = {"compared": found[2], "ties": found[3], "windows": windows, "tau": statistics.tau, "steps": spoken.steps}
        return self.stamped(Cell(*key, *outcome, **counted, seconds=round(statistics.seconds, 3)))

    def stamped(self, cell: Cell) -> Cell:
        """The cell with the code and weights it was made with."""
        return Cell(**asdict(cell) | {"kernels": kernels_hash(), "checkpoints": joined(self.digests, cell)})

    def forward(self, model: str, mode: str, n: int) -> np.ndarray:
        """The float64 logits of plain decoding of one prompt, also valid for the prefixes that another run shares with it."""
        return np.asarray(self.wide(model)(self.prompts[n], self.plain(model, mode).tokens[n]))


def needs(group: Group) -> Group | None:
    """The plain decoding that cells are compared with."""
    model, _, drafter, mode = group[0]
    return ((model, PLAIN, "", mode),) if drafter else None


def ordered(cells: Sequence[Key], together: int = 1) -> list[Group]:
    """The cells in groups of up to `together` with the same model and mode and no drafter on the host, each plain decoding
    before the first cell that needs it. Drafters on the host come first, because they take longest; the modes alternate, so
    that a run that ends early has some of each."""
    modes = list(dict.fromkeys(key[3] for key in cells))
    groups: dict[Any, list[Group]] = {}
    for key in cells:
        alone = key[1] == PLAIN or key[2] in ON_HOST
        mine = groups.setdefault((not alone, key[3]), [])
        fits = next((n for n, held in enumerate(mine) if held[0][0] == key[0] and len(held) < together), None)
        if alone or fits is None:
            mine.append((key,))
        else:
            mine[fits] += (key,)
    turns = [zip_longest(*(groups.get((late, mode), []) for mode in modes)) for late in (False, True)]
    found = [group for turn in chain(*turns) for group in turn if group is not None]
    return list(dict.fromkeys(task for group in found for task in (needs(group), group) if task is not None))
