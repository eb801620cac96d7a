"""Records as lines of JSON: each is appended whole and is on disk before the next; damage is detected when reading.

An interrupted write leaves a last line without its end. The next append removes it; a reader ignores it. A complete line that
is not a record means that the file was damaged, and reading it raises an error, because a lost line may have held a failure.
"""

import json
import os
from pathlib import Path
from typing import Any, BinaryIO

SCHEMA = 2
"""Version 1 of a campaign's lines had no version number, and named failures by a count."""


class StoreError(ValueError):
    """A store that is damaged, or was written by a newer version."""


def append(path: Path, record: dict[str, Any]) -> None:
    """Append a record as one whole line. It is on disk when this returns. Raises: OSError."""
    new = not path.exists()
    with path.open("ab+") as stream:
        cut_tail(stream)
        stream.write(text(record).encode())
        stream.flush()
        os.fsync(stream.fileno())
    if new:
        sync_folder(path.parent)


def text(record: dict[str, Any]) -> str:
    return json.dumps(record) + "\n"


def cut_tail(stream: BinaryIO) -> None:
    """Truncate a file after its last complete line."""
    size = end = stream.seek(0, os.SEEK_END)
    while end > 0:
        begin = max(0, end - 4096)
        stream.seek(begin)
        found = stream.read(end - begin).rfind(b"\n")
        if found >= 0:
            end = begin + found + 1
            break
        end = begin
    if end < size:
        stream.truncate(end)


def read(path: Path) -> list[dict[str, Any]]:
    """The complete lines of a file; empty if there is no file.

    Raises: StoreError for a complete line that is not a record, and for a record of a newer version; OSError.
    """
    if not path.exists():
        return []
    *whole, _ = path.read_bytes().split(b"\n")
    return [record(path, number, line) for number, line in enumerate(whole, 1)]


def record(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
        version = found.get("schema", 1)
    except (ValueError, AttributeError) as error:
        raise StoreError(
            f"{path}, line {number}, is damaged and may have held a failure; move the file away and run its batches again"
        ) from error
    if version not in range(1, SCHEMA + 1):
        raise StoreError(f"{path}, line {number}, has schema version {version}; this ssmspec reads 1 to {SCHEMA}: update it")
    return found


def sync_folder(folder: Path) -> None:
    """Write the names in a folder to disk, if the system supports it."""
    if os.name != "posix":
        return
    entry = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(entry)
    finally:
        os.close(entry)
