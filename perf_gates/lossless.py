"""Is speculation plain decoding? One table over models, methods, drafters and modes.

    python -m perf_gates.lossless --checkpoints ssmspec_fast/checkpoints --out perf_gates/results/lossless.json --device cuda
    python -m perf_gates.lossless --table FILE        the table, as Markdown
    python -m perf_gates.lossless --check FILE        what is missing, failed, or made with other kernels or checkpoints

Every cell runs held-out prompts greedily and compares token by token with the engine's own plain decoding of the same mode:
bitwise it must be equal; fast, a first difference must be a near tie (`conformance.losslessness`), and near ties at most 1 in
10,000 tokens in fp32. The float64 forward is the engine's, on plain operations: `tests/test_fast_transformers.py` and
`tests/test_fast_shipped.py` hold it to transformers'. `perf_gates.cells` says when a table stands.

The engine is reached by name (`--engine`): `run`, `exact` and `digest` as in `ssmspec_fast.traces`. With `--jobs` cells run
in so many processes, in turn on the GPUs that are seen. Plain decoding runs once for each model and mode, and lies in a
temporary folder. The file is written whole after every cell; cells that it holds already and that passed with the same
kernels and checkpoints are not run again; `--seconds` starts no cell later than that, and ends those that run.
"""

import argparse
import functools
import json
import os
import platform
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ssmspec_ref.errors import SpecError

from .cells import (
    DRAFTERS,
    METHODS,
    MODELS,
    MODES,
    PASSED,
    Cell,
    Key,
    compare,
    joined,
    judge,
    keys,
    missing,
    problems,
    read,
    table,
)
from .machine import fingerprint, kernels_hash
from .workers import VISIBLE, Failed, spread

ENGINE = "ssmspec_fast.traces"
PLAIN = "plain"


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
        device: str,
        dtype: str,
        store: Path,
        graphs: bool = False,
    ) -> None:
        self.engine, self.checkpoints, self.prompts, self.tokens = import_module(engine), checkpoints, prompts, tokens
        self.device, self.dtype, self.store, self.graphs = device, dtype, store, graphs
        folders = {file.parent for file in checkpoints.glob("*/config.json")}
        self.digests = {folder.name: self.engine.digest(folder) for folder in sorted(folders)}
        self.held: tuple[Path, Run] | None = None
        self.exact = functools.lru_cache(maxsize=256)(self.forward)

    def __call__(self, key: Key) -> Cell | None:
        """A cell, or nothing for plain decoding."""
        if key[1] == PLAIN:
            self.decode(key[0], key[3])
            return None
        return self.cell(key)

    def run(self, model: str, mode: str, **given: Any) -> Any:
        named = {"mode": mode, "device": self.device, "dtype": self.dtype, "graphs": self.graphs}
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
    return None if key[1] == PLAIN else (key[0], PLAIN, "", key[3])


def ordered(cells: Sequence[Key]) -> list[Key]:
    """The cells, each plain decoding before the first that needs it."""
    return list(dict.fromkeys(key for cell in cells for key in (needs(cell), cell) if key is not None))


def machine(device: str) -> dict[str, str]:
    if device.startswith("cuda"):
        return fingerprint()
    return {"gpu": "none", "cpu": platform.machine(), "python": platform.python_version(), "kernels": kernels_hash()}


def write(file: Path, results: dict[str, Any]) -> None:
    part = file.with_suffix(f".{os.getpid()}")
    part.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    part.replace(file)


def gpus(device: str) -> list[str]:
    """Those that may be used, by the names that processes are given."""
    if not device.startswith("cuda"):
        return []
    if VISIBLE in os.environ:
        return os.environ[VISIBLE].split(",")
    import torch

    return [str(n) for n in range(torch.cuda.device_count())]


def answers(make: Any, tasks: Sequence[Key], jobs: int, until: float, device: str) -> Iterator[tuple[Key, Any]]:
    """Every task's answer, here one after the other, or in several processes as they come."""
    if jobs > 1:
        yield from spread(tasks, make, jobs, needs, until, gpus(device))
        return
    bench = make()
    for task in tasks:
        if time.monotonic() > until:
            return
        yield task, bench(task)


def fill(
    make: Any,
    digests: dict[str, str],
    expected: Sequence[Key],
    file: Path,
    settings: dict[str, Any],
    until: float,
    jobs: int = 1,
) -> dict[str, Any]:
    """Run what the file lacks, and write it after every cell. `make()` is a Bench."""
    results: dict[str, Any] = {"machine": machine(settings["device"]), "settings": settings, "cells": []}
    if file.exists():
        held = json.loads(file.read_text(encoding="utf-8"))
        if held["settings"] == settings:
            results["cells"] = [cell for cell in held["cells"] if stands(read(cell), digests)]
    began = time.monotonic()
    tasks = ordered(missing([read(cell) for cell in results["cells"]], expected))
    for key, answer in answers(make, tasks, jobs, until, settings["device"]):
        if key[1] == PLAIN:
            print(f"{time.monotonic() - began:6.1f} s  {key[0]} / plain / {key[3]} {answer or ''}", flush=True)
            continue
        cell = answer
        if isinstance(answer, Failed):
            cell = Cell(*key, "error", answer.reason, kernels=kernels_hash())
        results["cells"].append(asdict(cell))
        write(file, results)
        pace = f"{cell.steps} steps of {1000 * cell.seconds / cell.steps:.1f} ms" if cell.steps else ""
        print(f"{time.monotonic() - began:6.1f} s  {' / '.join(key)}: {cell.outcome} {cell.reason} {pace}", flush=True)
    return results


def stands(cell: Cell, digests: dict[str, str]) -> bool:
    """Whether a cell passed with these kernels and checkpoints."""
    return cell.outcome in PASSED and cell.kernels == kernels_hash() and cell.checkpoints == joined(digests, cell)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoints", type=Path, default=Path("ssmspec_fast/checkpoints"))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--models", nargs="*", default=MODELS)
    parser.add_argument("--methods", nargs="*", default=METHODS)
    parser.add_argument("--drafters", nargs="*", default=tuple(DRAFTERS), choices=tuple(DRAFTERS))
    parser.add_argument("--mode", nargs="*", default=MODES)
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--graphs", action="store_true", help="steps as CUDA graphs")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--engine", default=ENGINE)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--check", type=Path)
    given = parser.parse_args()
    until = time.monotonic() + given.seconds
    expected = list(keys(given.models, given.methods, given.drafters, given.mode))
    if given.table:
        print(table(json.loads(given.table.read_text(encoding="utf-8"))))
        return
    lines = (given.checkpoints / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    prompts = [json.loads(line)["prompt"] for line in lines[: given.prompts]]
    with tempfile.TemporaryDirectory() as store:
        arguments = (
            given.engine,
            given.checkpoints,
            prompts,
            given.tokens,
            given.device,
            given.dtype,
            Path(store),
            given.graphs,
        )
        make, digests = functools.partial(Bench, *arguments), Bench(*arguments).digests
        if given.check:
            results = json.loads(given.check.read_text(encoding="utf-8"))
        else:
            settings = {name: getattr(given, name) for name in ("prompts", "tokens", "device", "dtype", "graphs")}
            results = fill(make, digests, expected, given.out, settings, until, given.jobs)
    found = problems(results, expected, kernels_hash(), digests)
    print("\n".join(found) or f"{len(expected)} cells stand")
    raise SystemExit(1 if found else 0)


if __name__ == "__main__":
    main()
