"""Records as lines of JSON: each is appended whole and is on disk before the next; damage is detected when reading.

An interrupted write leaves a last line without its end. The next append removes it; a reader ignores it. A complete line that
is not a record means that the file was damaged, and reading it raises an error, because a lost line may have held a failure.
"""

import json
import os
from pathlib import Path
from typing import Any, BinaryIO

from pydantic import TypeAdapter

from . import files

SCHEMA = 2
"""Version 1 of a campaign's lines had no version number, and named failures by a count."""


class StoreError(ValueError):
    """A store that is damaged, or was written by a newer version."""


def append(path: Path, record: dict[str, Any]) -> None:
    """Append a record as one whole line. It is on disk when this returns. Raises: OSError."""
    new = not path.exists()
    with files.append(path) as stream:
        cut_tail(stream)
        stream.write(text(record).encode())
        stream.flush()
        os.fsync(stream.fileno())
    if new:
        files.sync_folder(path.parent)


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


def read(path: Path, kind: Any = dict[str, Any]) -> list[Any]:
    """The complete lines of a file, each of a `kind`; empty if there is no file.

    Raises: StoreError for a file that cannot be read, for a complete line that is not a record, and for a record of a newer
    version.
    """
    *whole, _ = content(path).split(b"\n")
    checked = TypeAdapter(kind)
    return [record(path, number, line, checked) for number, line in enumerate(whole, 1)]


def content(path: Path) -> bytes:
    """The content of a file; empty if there is no file. Raises: StoreError."""
    try:
        return files.read(path)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise StoreError(f"{path} cannot be read ({error.strerror}); move it away") from error


def record(path: Path, number: int, line: bytes, kind: TypeAdapter[Any]) -> Any:
    try:
        found = json.loads(line)
        version = found.get("schema", 1)
        if version in range(1, SCHEMA + 1):
            kind.validate_python(found)
            return found
    except (ValueError, AttributeError, RecursionError) as error:
        raise StoreError(
            f"{path}, line {number}, is damaged and may have held a failure; move the file away and run its batches again"
        ) from error
    raise StoreError(f"{path}, line {number}, has schema version {version}; this ssmspec reads 1 to {SCHEMA}: update it")
