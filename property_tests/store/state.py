"""The state of a campaign's folder: which process uses it, and whether the last run finished."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from conformance.progress.files import write
from conformance.progress.lines import SCHEMA, StoreError, content
from conformance.progress.made import make, remove

REPORT, LOCK = "report.json", ".lock"
UNFINISHED, FINISHED = "unfinished", "finished"


@contextmanager
def owned(folder: Path) -> Iterator[list[Path]]:
    """Locks the folder for this process until the block ends; the system releases the lock if the process dies. Gives the
    folders that were made for it (`made.make`).

    Raises: StoreError if another process has it, and for a folder that cannot be used.
    """
    lock, made = FileLock(folder / LOCK), list[Path]()
    try:
        made = make(folder)
        lock.acquire(timeout=0)
    except Timeout as error:
        raise StoreError(f"another campaign runs in {folder}; wait for it, or name another --folder") from error
    except OSError as error:
        remove([], made)
        raise StoreError(f"{folder} cannot be used ({error.strerror}); name another --folder") from error
    try:
        yield made
    finally:
        lock.release()


def begin(folder: Path) -> None:
    """Marks the folder as unfinished: the report of an earlier run must not count for this one."""
    write(folder / REPORT, json.dumps({"schema": SCHEMA, "state": UNFINISHED}))


def finish(folder: Path, report: dict[str, Any]) -> None:
    write(folder / REPORT, json.dumps({"schema": SCHEMA, "state": FINISHED, **report}))


def finished(folder: Path) -> bool:
    """Whether the last run in the folder finished. A report of version 1 was written only at the end.

    Raises: StoreError for a report of a newer version, and for a file that is not a report.
    """
    path = folder / REPORT
    if not (text := content(path)):
        return False
    try:
        found = json.loads(text)
        version = found.get("schema", 1)
    except (ValueError, AttributeError, RecursionError) as error:
        raise StoreError(f"{path} is not the report of a campaign; move it away and run the campaign again") from error
    if version not in range(1, SCHEMA + 1):
        raise StoreError(f"{path} has schema version {version}; this ssmspec reads 1 to {SCHEMA}: update it")
    return version == 1 or found.get("state") == FINISHED
