"""Speculation on real text, measured end to end, in three tables.

    python -m perf_gates.real_text --part a --outputs FOLDER   a GPU: Mamba2-2.7B's shape, forced to recorded outputs
    python -m perf_gates.real_text --part b                    a GPU: trains a target and drafters, measures them at once
    python -m perf_gates.real_text --part c                    a CPU: the model that ships
    python -m perf_gates.real_text                             what this machine can: c, with a GPU b, with --outputs a
    python -m perf_gates.real_text --table                     measures nothing: prints the tables of the folder
    python -m perf_gates.real_text --table --write             and writes them, with the picture, into docs/real-text.md

A part takes --minutes and is saved after each block in FOLDER/real_text_PART.json; a block that finds no time is listed. The
folder of --outputs holds lines of JSON with `prompt` and `output` (*.jsonl), as for `ssmspec gates traces`. Exits with 1 if a
text differs from plain decoding other than by rounding.
"""

import argparse
import json
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from perf_gates.machine import fingerprint, made_with

from . import parts, report
from .runs import Table

ON_A_CPU = ("c",)
RESULTS = Path(__file__).parents[1] / "results"


def main(argv: Sequence[str] | None = None) -> int:
    a = arguments(argv)
    if not a.table:
        a.out.mkdir(parents=True, exist_ok=True)
        for part in parts_of(a):
            print(f"=== {part}", flush=True)
            measure(part, a)
    parts = report.read(a.out)
    shown = report.text(parts)
    print(shown)
    if a.write:
        report.PICTURE.write_text(report.picture(parts))
        report.PAGE.write_text(report.MADE.put(report.PAGE.read_text(), shown))
    return int(any(row.different for held in parts.values() for row in held["rows"]))


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m perf_gates.real_text", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", nargs="+", choices=[*report.TITLES], default=[], help="the tables to measure")
    parser.add_argument("--outputs", type=Path, help="folder of recorded outputs, for part a")
    parser.add_argument("--minutes", type=float, default=8.0, help="most minutes of each part")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    parser.add_argument("--table", action="store_true", help="measure nothing")
    parser.add_argument("--write", action="store_true", help="write the tables and the picture into the page")
    a = parser.parse_args(argv)
    if not a.minutes > 0:
        parser.error(f"--minutes is {a.minutes}; it must be more than 0")
    if a.outputs is not None and not a.outputs.is_dir():
        parser.error(f"--outputs {a.outputs} is not a folder; give a folder of recorded outputs")
    if "a" in a.part and a.outputs is None:
        parser.error("part a needs recorded outputs: give their folder as --outputs")
    if {"a", "b"} & set(a.part) and not gpu() and not a.table:
        parser.error("parts a and b need a GPU, and torch sees none; part c needs none")
    if a.write and not report.PAGE.exists():
        parser.error(f"--write writes {report.PAGE}, which is not here; run in the root of the checkout")
    return a


def gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def parts_of(a: argparse.Namespace) -> list[str]:
    """The parts to measure; what this machine cannot measure is said."""
    if a.part:
        return list(a.part)
    here = {"a": gpu() and a.outputs is not None, "b": gpu(), "c": True}
    why = {"a": "needs a GPU and --outputs", "b": "needs a GPU"}
    for part, measured in here.items():
        if not measured:
            print(f"part {part} is not measured: it {why[part]}", flush=True)
    return [part for part, measured in here.items() if measured]


def part_a(a: argparse.Namespace, held: Table) -> None:
    parts.part_a(a.outputs, a.minutes, "cuda", held)


def part_b(a: argparse.Namespace, held: Table) -> None:
    parts.part_b(a.minutes, "cuda", held)


def part_c(a: argparse.Namespace, held: Table) -> None:
    parts.part_c(a.minutes, held)


MEASURE = {"a": part_a, "b": part_b, "c": part_c}


def measure(part: str, a: argparse.Namespace) -> None:
    """Measures one part, and saves it after each block."""
    file, machine = report.file_of(a.out, part), (host if part in ON_A_CPU else device)()

    def save(held: Table) -> None:
        file.write_text(json.dumps(held.as_json() | {"machine": machine}, indent=1) + "\n")

    held = Table(part, save=save)
    MEASURE[part](a, held)
    save(held)


def host() -> dict[str, Any]:
    """What a part on a CPU was made with."""
    import torch

    name = f"{os.cpu_count()} cores, {processor()}"
    return {"name": name, "torch": torch.__version__, "python": platform.python_version()} | made_with()


def device() -> dict[str, Any]:
    """What a part on a GPU was made with."""
    found = fingerprint()
    return {"name": found["gpu"]} | found


def processor() -> str:
    """The name of the processor, if the system says it."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


if __name__ == "__main__":
    sys.exit(main())
