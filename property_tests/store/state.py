"""The state of a campaign's folder: which process uses it, and whether the last run finished."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from conformance.progress.files import write
from conformance.progress.lines import SCHEMA, StoreError

REPORT, LOCK = "report.json", ".lock"
UNFINISHED, FINISHED = "unfinished", "finished"


@contextmanager
def owned(folder: Path) -> Iterator[None]:
    """Locks the folder for this process until the block ends; the system releases the lock if the process dies.

    Raises: StoreError if another process has it, and for a folder that cannot be used.
    """
    lock = FileLock(folder / LOCK)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout as error:
        raise StoreError(f"another campaign runs in {folder}; wait for it, or name another --folder") from error
    except OSError as error:
        raise StoreError(f"{folder} cannot be used ({error.strerror}); name another --folder") from error
    try:
        yield
    finally:
        lock.release()


def begin(folder: Path) -> None:
    """Marks the folder as unfinished: the report of an earlier run must not count for this one."""
    write(folder / REPORT, json.dumps({"schema": SCHEMA, "state": UNFINISHED}))


def finish(folder: Path, report: dict[str, Any]) -> None:
    write(folder / REPORT, json.dumps({"schema": SCHEMA, "state": FINISHED, **report}))


def finished(folder: Path) -> bool:
    """Whether the last run in the folder finished. A report of version 1 was written only at the end.

    Raises: StoreError for a report of a newer version, and for a file that is not a report; OSError.
    """
    path = folder / REPORT
    if not path.exists():
        return False
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        version = found.get("schema", 1)
    except (ValueError, AttributeError) as error:
        raise StoreError(f"{path} is not the report of a campaign; move it away and run the campaign again") from error
    if version not in range(1, SCHEMA + 1):
        raise StoreError(f"{path} has schema version {version}; this ssmspec reads 1 to {SCHEMA}: update it")
    return bool(version == 1 or found["state"] == FINISHED)
