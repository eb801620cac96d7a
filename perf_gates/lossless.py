"""Is speculation plain decoding? One table over models, methods, drafters and modes.

    python -m perf_gates.lossless --checkpoints ssmspec_fast/checkpoints --out perf_gates/results/lossless.json --device cuda
    python -m perf_gates.lossless --table FILE        the table, as Markdown
    python -m perf_gates.lossless --check FILE        what is missing, failed, or made with other kernels or checkpoints

Every cell runs held-out prompts greedily and compares token by token with the engine's own plain decoding of the same mode:
bitwise it must be equal; fast, a first difference must be a near tie (`conformance.losslessness`), and near ties at most 1 in
10,000 tokens in fp32. A cell counts its windows by how much of them was accepted, and is starved, so that it shows nothing,
unless none, some and all each make 5 % of them. A drafter that a method cannot take makes the cell inapplicable, with the
reason. The float64 forward is the engine's, on plain operations: `tests/test_fast_transformers.py` holds it to transformers'.

The engine is reached by name (`--engine`): `run`, `exact` and `digest` as in `ssmspec_fast.traces`. The file is written after
every cell; cells that it holds already, of the same code, are not run again; `--seconds` starts no cell later than that.
"""

import argparse
import json
import os
import platform
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from conformance.losslessness import MOST, NearTie, first_difference, near_tie
from ssmspec_ref.errors import SpecError

from .machine import fingerprint, kernels_hash

ENGINE = "ssmspec_fast.traces"
MODELS = ("mamba2", "hybrid", "delta", "llama")
METHODS = ("snapshots", "joint", "activation-replay", "replay-buffer", "tree")
DRAFTERS = {
    "ngram": {"drafter": "ngram+bigram", "drafts": 2},
    "ngram rows": {"drafter": "ngram+bigram", "drafts": 2, "rows": 4},
    "ngram tree": {"drafter": "ngram+bigram", "drafts": 2, "tree": "4"},
    "lookup": {"drafter": "lookup", "drafts": 2},
    "mamba2": {"drafter": "mamba2-drafter", "drafts": 3},
    "mamba2 at 25 %": {"drafter": "mamba2-drafter-25", "drafts": 3},
    "mamba2 at 5 %": {"drafter": "mamba2-drafter-05", "drafts": 3},
    "mamba1": {"drafter": "mamba1-drafter", "drafts": 3},
    "bpe, by text": {"drafter": "bpe-drafter", "drafts": 3},
    "mamba2 tree A": {"drafter": "mamba2-drafter", "tree": "a"},
    "mamba2 tree 2,2,1": {"drafter": "mamba2-drafter", "tree": "2,2,1"},
    "mamba2 beams 2x3": {"drafter": "mamba2-drafter", "tree": "2x3"},
    "mamba2 bandit": {"drafter": "mamba2-drafter", "tree": "1,1/2,1/3,2,1"},
}
MODES = ("bitwise", "fast")
SHARE = 0.05
PASSED = ("identical", "near ties", "inapplicable")


@dataclass(frozen=True)
class Cell:
    """One row of the table. `windows` counts none, some and all accepted; `ties` the tokens that were excused."""

    model: str
    method: str
    drafter: str
    mode: str
    outcome: str
    reason: str = ""
    compared: int = 0
    ties: int = 0
    windows: tuple[int, int, int] = (0, 0, 0)
    tau: float = 0.0
    seconds: float = 0.0
    kernels: str = ""
    checkpoints: str = ""

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.model, self.method, self.drafter, self.mode


Key = tuple[str, str, str, str]


def compare(plain: Any, spoken: Any, exact: Any, fast: bool) -> tuple[str, str, int, int]:
    """Outcome, reason, tokens compared, tokens excused. `exact(n, output)` is the float64 forward of request n."""
    compared = ties = 0
    for n, (ours, theirs) in enumerate(zip(plain.tokens, spoken.tokens, strict=True)):
        at = first_difference(ours, theirs)
        compared += len(ours) if at is None else at + 1
        if at is None:
            continue
        if not fast:
            return "differs", f"prompt {n}, token {at}", compared, ties
        if at >= min(len(ours), len(theirs)):
            return "differs", f"prompt {n} ends at token {at}", compared, ties
        rows = (plain.logits[n][: at + 1], spoken.logits[n][: at + 1], exact(n, ours[: at + 1]))
        found: NearTie = near_tie(*rows, (ours[at], theirs[at]))
        if not found.excused:
            return "differs", f"prompt {n}, token {at}: margin {found.margin:.3g}, errors {found.errors}", compared, ties
        ties += 1
    return ("near ties" if ties else "identical"), "", compared, ties


def judge(outcome: str, reason: str, compared: int, ties: int, windows: Sequence[int], fp32: bool) -> tuple[str, str]:
    """The outcome after the demands on the number of near ties and on the windows."""
    if outcome == "differs":
        return outcome, reason
    if fp32 and not ties <= MOST * compared:
        return "differs", f"{ties} near ties among {compared} tokens, more than 1 in {1 / MOST:,.0f}"
    if not (sum(windows) > 0 and min(windows) >= SHARE * sum(windows)):
        return "starved", f"{windows[0]}, {windows[1]}, {windows[2]} windows with none, some, all accepted"
    return outcome, reason


def missing(cells: Sequence[Cell], expected: Sequence[Key]) -> list[Key]:
    held = {cell.key for cell in cells}
    return [key for key in expected if key not in held]


def problems(results: dict[str, Any], expected: Sequence[Key], kernels: str, digests: dict[str, str]) -> list[str]:
    """Why a table does not stand for this code: empty when it does."""
    cells = [read(cell) for cell in results["cells"]]
    found = [f"{' / '.join(key)}: missing" for key in missing(cells, expected)]
    for cell in cells:
        name = " / ".join(cell.key)
        if cell.outcome not in PASSED:
            found.append(f"{name}: {cell.outcome}, {cell.reason}")
        if cell.kernels != kernels:
            found.append(f"{name}: made with kernels {cell.kernels}, these are {kernels}")
        if cell.checkpoints != joined(digests, cell):
            found.append(f"{name}: made with other checkpoints")
    applicable = {(c.model, c.drafter) for c in cells if c.outcome != "inapplicable"}
    found += [
        f"{model} / {drafter}: no method takes it" for model, drafter in sorted({(k[0], k[2]) for k in expected} - applicable)
    ]
    return found


def joined(digests: dict[str, str], cell: Cell) -> str:
    """Which weights a cell was made with."""
    drafter = DRAFTERS.get(cell.drafter, {}).get("drafter", "")
    return " ".join(digests[name] for name in (cell.model, str(drafter)) if name in digests)


def read(cell: dict[str, Any]) -> Cell:
    return Cell(**cell | {"windows": tuple(cell["windows"])})


def table(results: dict[str, Any]) -> str:
    """Markdown: a row for each model, method and drafter, the modes side by side."""
    cells = {cell.key: cell for cell in map(read, results["cells"])}
    modes = sorted({key[3] for key in cells})
    lines = [
        f"| model | method | drafter | {' | '.join(modes)} | none, some, all accepted | tokens a call |",
        f"|---|---|---|{'---|' * len(modes)}---|---|",
    ]
    for row in dict.fromkeys(key[:3] for key in cells):
        of = [cells.get((*row, mode)) for mode in modes]
        shown = next((cell for cell in of if cell and sum(cell.windows)), None)
        if shown is None:
            continue
        shares = ", ".join(f"{100 * n / sum(shown.windows):.0f} %" for n in shown.windows)
        lines.append(f"| {' | '.join(row)} | {' | '.join(map(_said, of))} | {shares} | {shown.tau:.2f} |")
    left_out: dict[str, list[str]] = {}
    for cell in cells.values():
        if cell.outcome == "inapplicable":
            left_out.setdefault(cell.reason, []).append(f"{cell.method} with {cell.drafter}")
    lines += ["", "Inapplicable:", ""]
    lines += [f"- {', '.join(dict.fromkeys(names))}: {reason}" for reason, names in left_out.items()]
    return "\n".join(lines)


def _said(cell: Cell | None) -> str:
    if cell is None:
        return ""
    if cell.outcome == "near ties":
        return f"{cell.ties} near ties in {cell.compared:,}"
    return cell.outcome if cell.outcome in PASSED else f"**{cell.outcome}**: {cell.reason}"


class Bench:
    """Runs cells; plain decoding once for each model and mode."""

    def __init__(self, engine: str, checkpoints: Path, prompts: list[str], tokens: int, device: str, dtype: str) -> None:
        self.engine, self.checkpoints, self.prompts, self.tokens = import_module(engine), checkpoints, prompts, tokens
        self.device, self.dtype = device, dtype
        self.plain: tuple[tuple[str, str], Any] | None = None
        folders = {file.parent for file in checkpoints.glob("*/config.json")}
        self.digests = {folder.name: self.engine.digest(folder) for folder in sorted(folders)}

    def run(self, model: str, mode: str, **given: Any) -> Any:
        named = {"mode": mode, "device": self.device, "dtype": self.dtype}
        return self.engine.run(self.checkpoints / model, self.prompts, self.tokens, **named | given)

    def cell(self, key: Key) -> Cell:
        """Raises: what plain decoding raises; what speculation refuses is inapplicable."""
        model, method, drafter, mode = key
        if self.plain is None or self.plain[0] != (model, mode):
            self.plain = (model, mode), self.run(model, mode)
        given = dict(DRAFTERS[drafter])
        if given["drafter"] in self.digests or (self.checkpoints / str(given["drafter"])).exists():
            given["drafter"] = self.checkpoints / str(given["drafter"])
        held = {"kernels": kernels_hash()}
        try:
            spoken = self.run(model, mode, method=method, **given)
        except SpecError as error:
            if type(error).__name__ != "Unsupported":
                raise
            cell = Cell(*key, "inapplicable", str(error), **held)
            return Cell(**asdict(cell) | {"checkpoints": joined(self.digests, cell)})
        found = compare(self.plain[1], spoken, lambda n, output: self.exact(model, n, output), mode == "fast")
        statistics = spoken.statistics
        windows = statistics.none, statistics.some, statistics.all
        outcome = judge(*found, windows, self.dtype == "float32")
        counted = {"compared": found[2], "ties": found[3], "windows": windows, "tau": statistics.tau}
        cell = Cell(*key, *outcome, **counted, seconds=round(statistics.seconds, 3), **held)
        return Cell(**asdict(cell) | {"checkpoints": joined(self.digests, cell)})

    def exact(self, model: str, n: int, output: Sequence[int]) -> np.ndarray:
        return self.engine.exact(self.checkpoints / model, self.prompts[n], output, self.device)


def keys(models: Sequence[str], methods: Sequence[str], drafters: Sequence[str], modes: Sequence[str]) -> Iterator[Key]:
    """Every cell, those that share their plain decoding together."""
    for model in models:
        for mode in modes:
            for method in methods:
                for drafter in drafters:
                    yield model, method, drafter, mode


def machine(device: str) -> dict[str, str]:
    if device.startswith("cuda"):
        return fingerprint()
    return {"gpu": "none", "cpu": platform.machine(), "python": platform.python_version(), "kernels": kernels_hash()}


def write(file: Path, results: dict[str, Any]) -> None:
    part = file.with_suffix(f".{os.getpid()}")
    part.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    part.replace(file)


def fill(bench: Bench, expected: Sequence[Key], file: Path, settings: dict[str, Any], until: float) -> dict[str, Any]:
    """Run what the file lacks, and write it after every cell."""
    results: dict[str, Any] = {"machine": machine(bench.device), "settings": settings, "cells": []}
    if file.exists():
        held = json.loads(file.read_text(encoding="utf-8"))
        if held["settings"] == settings:
            kept = [
                c
                for c in held["cells"]
                if c["kernels"] == kernels_hash() and c["checkpoints"] == joined(bench.digests, read(c))
            ]
            results["cells"] = kept
    for key in missing([read(cell) for cell in results["cells"]], expected):
        if time.monotonic() > until:
            break
        cell = bench.cell(key)
        results["cells"].append(asdict(cell))
        write(file, results)
        print(f"{' / '.join(key)}: {cell.outcome} {cell.reason}", flush=True)
    return results


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
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--engine", default=ENGINE)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--check", type=Path)
    given = parser.parse_args()
    expected = list(keys(given.models, given.methods, given.drafters, given.mode))
    if given.table:
        print(table(json.loads(given.table.read_text(encoding="utf-8"))))
        return
    lines = (given.checkpoints / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    prompts = [json.loads(line)["prompt"] for line in lines[: given.prompts]]
    bench = Bench(given.engine, given.checkpoints, prompts, given.tokens, given.device, given.dtype)
    if given.check:
        results = json.loads(given.check.read_text(encoding="utf-8"))
    else:
        settings = {"prompts": given.prompts, "tokens": given.tokens, "device": given.device, "dtype": given.dtype}
        results = fill(bench, expected, given.out, settings, time.monotonic() + given.seconds)
    found = problems(results, expected, kernels_hash(), bench.digests)
    print("\n".join(found) or f"{len(expected)} cells stand")
    raise SystemExit(1 if found else 0)


if __name__ == "__main__":
    main()
