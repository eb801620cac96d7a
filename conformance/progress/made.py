"""Folders that a run or a campaign makes, and removes again if it cannot begin."""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


def make(folder: Path) -> list[Path]:
    """Make a folder, and those above it. Returns the folders that were made here, the innermost first. Raises: OSError."""
    made: list[Path] = []
    try:
        for one in (*reversed(folder.parents), folder):
            if one.is_dir():
                continue
            try:
                one.mkdir()
            except FileExistsError:  # another process has made it by now, or it is a file
                if not one.is_dir():
                    raise
            else:
                made.insert(0, one)
    except OSError:
        remove([], made)
        raise
    return made


def remove(files: Iterable[Path], folders: Iterable[Path]) -> None:
    """Remove files, then each folder that is empty: what somebody else put there stays."""
    for file in files:
        with suppress(OSError):
            file.unlink()
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()
