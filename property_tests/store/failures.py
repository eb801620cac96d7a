"""Failures: programs that fail in the same way, each named by its content, never overwritten.

The first line of a program holds the version of the store; the comment lines after it hold the error. Files without
that line have version 1.
"""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from conformance.progress.files import write
from conformance.progress.lines import SCHEMA, StoreError, content
from ssmspec_ref.options.words import shown

FOLDER = "failures"
HEAD = "# ssmspec failure, schema "


@dataclass(frozen=True)
class Kept:
    """A failure in the store."""

    path: Path
    message: str

    @property
    def name(self) -> str:
        return self.path.stem


def save(folder: Path, program: str) -> Kept:
    """Saves a program in `folder`/failures. The same program again changes nothing. Raises: OSError."""
    text = f"{HEAD}{SCHEMA}\n{program}"
    path = folder / FOLDER / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink() or not path.is_file():
        write(path, text)
    return Kept(path, message(text))


def kept(folder: Path) -> list[Kept]:
    """The failures of a folder, by name. Raises: StoreError for one that a newer version wrote, or that cannot be read."""
    return [read(path) for path in sorted((folder / FOLDER).glob("*.py"))]


def read(path: Path) -> Kept:
    text = content(path).decode(errors="backslashreplace")
    head = re.match(re.escape(HEAD) + r"(\d+)\n", text)
    version = int(head[1]) if head else 1
    if version not in range(1, SCHEMA + 1):
        raise StoreError(f"{path} has schema version {version}; this ssmspec reads 1 to {SCHEMA}: update it")
    return Kept(path, message(text))


def message(text: str) -> str:
    """The error, from the comment lines at the top; what a terminal would obey is escaped."""
    lines = text.removeprefix(text.split("\n", 1)[0] + "\n" if text.startswith(HEAD) else "").splitlines()
    said = []
    for line in lines:
        if not line.startswith("#"):
            break
        said.append(shown(line.removeprefix("#").removeprefix(" ")))
    return "\n".join(said)
