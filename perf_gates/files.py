"""Files of results, and the tables of them in Markdown."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def read(file: Path) -> dict[str, Any]:
    """The results in a file; nothing if there is none."""
    held: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return held


def write(file: Path, held: dict[str, Any]) -> None:
    """Replaces a file when all is written, so that one that is interrupted stays as it was."""
    part = file.with_suffix(f".{os.getpid()}")
    part.write_text(json.dumps(held, indent=1) + "\n", encoding="utf-8")
    part.replace(file)


def head(columns: str) -> Iterator[str]:
    """The first lines of a table with these columns, such as `kernel | shape | batch`."""
    yield f"| {columns} |"
    yield f"|{'---|' * len(columns.split(' | '))}"
