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

import os
import platform
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from conformance.main import run_command
from perf_gates import files
from perf_gates.machine import fingerprint, made_with
from ssmspec_ref.errors import OptionError
from ssmspec_ref.options.words import one_of

from . import parts, report
from .runs import Table

ON_A_CPU = ("c",)
RESULTS = Path(__file__).parents[1] / "results"


def main(
    part: Annotated[list[str] | None, typer.Option(metavar="PART ..", help="The tables to measure: a, b, c.")] = None,
    outputs: Annotated[Path | None, typer.Option(help="Folder of recorded outputs, for part a.")] = None,
    minutes: Annotated[float, typer.Option(help="Most minutes of each part.")] = 8.0,
    out: Annotated[Path, typer.Option(help="Folder of the results.")] = RESULTS,
    table: Annotated[bool, typer.Option("--table", help="Measure nothing.")] = False,
    write: Annotated[bool, typer.Option("--write", help="Write the tables and the picture into the page.")] = False,
) -> int:
    wanted = [one_of("--part", name, report.TITLES) for name in part or ()]
    if not minutes > 0:
        raise OptionError(f"--minutes is {minutes}; it must be more than 0")
    if outputs is not None and not outputs.is_dir():
        raise OptionError(f"--outputs {outputs} is not a folder; give a folder of recorded outputs")
    if "a" in wanted and outputs is None:
        raise OptionError("part a needs recorded outputs: give their folder as --outputs")
    if {"a", "b"} & {*wanted} and not gpu() and not table:
        raise OptionError("parts a and b need a GPU, and torch sees none; part c needs none")
    if write and not report.PAGE.exists():
        raise OptionError(f"--write writes {report.PAGE}, which is not here; run in the root of the checkout")
    if not table:
        out.mkdir(parents=True, exist_ok=True)
        for name in wanted or parts_here(outputs):
            print(f"=== {name}", flush=True)
            measure(name, out, minutes, outputs)
    found = report.read(out)
    shown = report.text(found)
    print(shown)
    if write:
        report.PICTURE.write_text(report.picture(found))
        report.MADE.write(report.PAGE, shown)
    return int(any(row.different for held in found.values() for row in held["rows"]))


def gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def parts_here(outputs: Path | None) -> list[str]:
    """The parts to measure; what this machine cannot measure is said."""
    here = {"a": gpu() and outputs is not None, "b": gpu(), "c": True}
    why = {"a": "needs a GPU and --outputs", "b": "needs a GPU"}
    for part, measured in here.items():
        if not measured:
            print(f"part {part} is not measured: it {why[part]}", flush=True)
    return [part for part, measured in here.items() if measured]


def measure(part: str, out: Path, minutes: float, outputs: Path | None) -> None:
    """Measures one part, and saves it after each block."""
    file, machine = report.file_of(out, part), (host if part in ON_A_CPU else device)()

    def save(held: Table) -> None:
        files.write(file, held.as_json() | {"machine": machine})

    held = Table(part, save=save)
    given = {"a": (outputs, minutes, "cuda"), "b": (minutes, "cuda"), "c": (minutes,)}
    getattr(parts, f"part_{part}")(*given[part], held)
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
    sys.exit(run_command(main))
