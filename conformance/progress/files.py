"""Atomic file writes: a reader sees the whole file or the old one, also after a crash."""

import os
import tempfile
from pathlib import Path

from .lines import sync_folder


def write(path: Path, text: str) -> None:
    """Write a file atomically, replacing an older one. It is on disk when this returns. Raises: OSError."""
    handle, unfinished = tempfile.mkstemp(dir=path.parent, prefix=".unfinished-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(unfinished, path)
    except BaseException:
        Path(unfinished).unlink(missing_ok=True)
        raise
    sync_folder(path.parent)
