"""training.jsonl: a line for each finished run; the last line of a name counts."""

import json
from pathlib import Path
from typing import Any

FILE = "training.jsonl"
Run = dict[str, Any]


def add(folder: Path, run: Run) -> None:
    with (folder / FILE).open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(run) + "\n")


def read(folder: Path) -> dict[str, Run]:
    """The runs by name, in the order of the names' first lines. Raises: FileNotFoundError."""
    file = folder / FILE
    if not file.is_file():
        raise FileNotFoundError(f"{file} is missing; train first: python -m ssmspec_fast.training --out {folder}")
    runs = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return {run["name"]: run for run in runs}
