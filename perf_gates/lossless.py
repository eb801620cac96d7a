"""Is speculation plain decoding? One table over models, methods, drafters and modes.

    python -m perf_gates.lossless --device cuda --jobs 12 --out perf_gates/results/lossless.json     `--gpus 0 2` for some
    python -m perf_gates.lossless --table FILE        the table, as Markdown
    python -m perf_gates.lossless --check FILE        what is missing, failed, or made with other kernels or checkpoints

Every cell runs held-out prompts greedily and compares token by token with the engine's own plain decoding of the same mode:
bitwise it must be equal; fast, a first difference must be a near tie (`ssmspec_ref.near_ties`), and near ties at
most 1 in 10,000 tokens in fp32. Plain decoding itself is compared with transformers by the same rule. The float64 forward is
the engine's, on plain operations: `tests/fast/test_transformers.py` and `tests/fast/test_shipped.py` compare it with
transformers'. `perf_gates.losslessness.cells` says when a table is valid.

Four fifths of the prompts start together and the others join as those leave; on a GPU steps are CUDA graphs. With `--jobs`
cells run in several processes (`perf_gates.losslessness.runs`), which take turns on the visible GPUs, each with one model as
long as there is work. The file is written completely after every cell; cells in it that passed with the same kernels and
checkpoints are not run again. After `--seconds` no cell is started, and running ones are ended.
"""

import functools
import json
import math
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from conformance.main import run_command
from ssmspec_ref.errors import OptionError
from ssmspec_ref.options.words import one_of

from . import files
from .digest import record
from .losslessness.cells import (
    DRAFTERS,
    METHODS,
    MODELS,
    MODES,
    PASSED,
    Cell,
    Key,
    keys,
    missing,
    problems,
    read,
    same_checkpoints,
    table,
)
from .losslessness.runs import Bench, Group, needs, ordered
from .losslessness.workers import VISIBLE, Failed, spread
from .machine import fingerprint, kernels_hash, need_gpu

ENGINE = "ssmspec_fast.engine.traces"
FEWER_SLOTS = 0.8
"""Slots per prompt: the last fifth of the prompts joins as others leave."""


def machine(device: str) -> dict[str, str]:
    if device.startswith("cuda"):
        return fingerprint()
    return {"gpu": "none", "cpu": platform.machine(), "python": platform.python_version(), "kernels": kernels_hash()}


def gpus(device: str, named: Sequence[str] = ()) -> list[str]:
    """The GPUs that may be used, by the names that processes receive."""
    if not device.startswith("cuda"):
        return []
    if named:
        return list(named)
    if VISIBLE in os.environ:
        return os.environ[VISIBLE].split(",")
    import torch

    return [str(n) for n in range(torch.cuda.device_count())]


def answers(make: Any, tasks: Sequence[Group], jobs: int, until: float, seen: Sequence[str]) -> Iterator[tuple[Group, Any]]:
    """Every task's answer: one after the other here, or from several processes as they finish."""
    if jobs > 1:
        yield from spread(tasks, make, jobs, needs, until, seen, kin=lambda group: group[0][0])
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
    together: int = 1,
    seen: Sequence[str] = (),
) -> dict[str, Any]:
    """Runs the cells that the file lacks, and writes it after every cell, in the expected order. `make()` returns a Bench;
    `seen` are the GPUs that processes share."""
    results: dict[str, Any] = {"machine": machine(settings["device"]), "settings": settings, "cells": []}
    held = files.read(file)
    if held.get("settings") == settings:
        results["cells"] = [cell for cell in held["cells"] if stands(read(cell), digests)]
    places = {key: place for place, key in enumerate(expected)}
    tasks = ordered(missing([read(cell) for cell in results["cells"]], expected), together)
    progress = Progress(sum(map(len, tasks)))
    for group, answer in answers(make, tasks, jobs, until, seen):
        for key, cell in zip(group, answer if isinstance(answer, list) else [answer] * len(group), strict=True):
            if isinstance(cell, Failed):
                cell = Cell(*key, "error", cell.reason, kernels=kernels_hash())
            progress(key, cell)
            if key[2]:
                results["cells"].append(asdict(cell))
        results["cells"].sort(key=lambda held: places.get(read(held).key, len(places)))
        files.write(file, results)
    return results


class Progress:
    """Prints a line for every answer, with an estimate of the time left."""

    def __init__(self, tasks: int) -> None:
        self.tasks, self.done, self.began = tasks, 0, time.monotonic()

    def __call__(self, key: Key, cell: Cell | None) -> None:
        self.done += 1
        passed = time.monotonic() - self.began
        left = passed / self.done * (self.tasks - self.done)
        print(f"{passed:6.1f} s  {self.done} of {self.tasks}, about {left:.0f} s left  {self.said(key, cell)}", flush=True)

    @staticmethod
    def said(key: Key, cell: Cell | None) -> str:
        if cell is None:
            return f"{key[0]} / plain / {key[3]}"
        pace = f"{cell.steps} steps of {1000 * cell.seconds / cell.steps:.1f} ms" if cell.steps else ""
        return f"{' / '.join(filter(None, key))}: {cell.outcome} {cell.reason} {pace}".rstrip()


def stands(cell: Cell, digests: dict[str, str]) -> bool:
    """Whether a cell passed with these kernels and checkpoints."""
    return cell.outcome in PASSED and not record.revision_fault(cell.kernels) and same_checkpoints(cell, digests)


def main(
    checkpoints: Annotated[Path, typer.Option(help="Folder of the checkpoints.")] = Path("ssmspec_fast/checkpoints"),
    out: Annotated[Path | None, typer.Option(help="The file of the results.")] = None,
    models: Annotated[list[str] | None, typer.Option(metavar="NAME ..", help="Some models.")] = None,
    methods: Annotated[list[str] | None, typer.Option(metavar="NAME ..", help="Some methods.")] = None,
    drafters: Annotated[list[str] | None, typer.Option(metavar="NAME ..", help="Some drafters.")] = None,
    mode: Annotated[list[str] | None, typer.Option(metavar="NAME ..", help="Some modes.")] = None,
    prompts: Annotated[int, typer.Option(help="Prompts of a cell.")] = 200,
    tokens: Annotated[int, typer.Option(help="New tokens of a prompt.")] = 256,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    dtype: Annotated[str, typer.Option(help="Of the weights.")] = "float32",
    jobs: Annotated[int, typer.Option(help="Processes.")] = 1,
    visible: Annotated[
        list[str] | None, typer.Option("--gpus", metavar="N ..", help="By number, for --jobs; without it all that are seen.")
    ] = None,
    together: Annotated[int, typer.Option(help="Cells side by side in each process.")] = 1,
    seconds: Annotated[float, typer.Option(help="After which no cell is started.")] = math.inf,
    engine: Annotated[str, typer.Option(help="The module of the engine.")] = ENGINE,
    shown: Annotated[Path | None, typer.Option("--table", exists=True, help="Print the table of this file.")] = None,
    check: Annotated[Path | None, typer.Option(exists=True, help="Say what is wrong with this file.")] = None,
) -> int:
    until = time.monotonic() + seconds
    chosen = [one_of("--drafters", drafter, DRAFTERS) for drafter in drafters or DRAFTERS]
    expected = list(keys(models or MODELS, methods or METHODS, chosen, mode or MODES))
    if shown:
        print(table(files.read(shown)))
        return 0
    file = check or out
    if file is None:
        raise OptionError("--out is missing: the file of the results")
    if not check and device.startswith("cuda"):
        need_gpu()
    lines = (checkpoints / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    texts = [json.loads(line)["prompt"] for line in lines[:prompts]]
    slots, graphs = math.ceil(FEWER_SLOTS * len(texts)), device.startswith("cuda")
    with tempfile.TemporaryDirectory() as store:
        arguments = engine, checkpoints, texts, tokens, slots, device, dtype, Path(store), graphs
        make, digests = functools.partial(Bench, *arguments), Bench(*arguments).digests
        if check:
            results = files.read(file)
        else:
            settings = {"prompts": prompts, "tokens": tokens, "device": device, "dtype": dtype}
            settings |= {"slots": slots, "graphs": graphs}
            seen = gpus(device, visible or ())
            results = fill(make, digests, expected, file, settings, until, jobs, together, seen)
    found = problems(results, expected, kernels_hash(), digests)
    print("\n".join(found) or f"{len(expected)} cells are up to date")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(run_command(main))
