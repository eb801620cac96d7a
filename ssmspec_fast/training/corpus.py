"""The corpus: sources of Python's standard library, as bytes, with some files held out.

The sources are on every machine that runs Python. A file is held out when the first byte of the SHA-256 of its path is below
`HELD_OUT` (1): the choice does not depend on other files. Files are joined by a NUL, which no source contains and which ends
a text.

Licence of the sources: PSF.
"""

import hashlib
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

END = 0
HELD_OUT = 8  # of 256
LEFT_OUT = ("site-packages", "dist-packages", "__pycache__", "lib2to3", "pydoc_data", "encodings", "idlelib")


@dataclass(frozen=True)
class Corpus:
    """Bytes to train on, and whole files that are never trained on."""

    train: np.ndarray
    held_out: dict[str, bytes]
    sha256: str

    @property
    def held_out_bytes(self) -> np.ndarray:
        return _joined(self.held_out.values())


def is_held_out(path: str) -> bool:
    """(1)"""
    return hashlib.sha256(path.encode()).digest()[0] < HELD_OUT


def read(root: Path | None = None) -> Corpus:
    """The sources below `root`; by default the standard library of this Python.

    Raises: FileNotFoundError if there are none.
    """
    root = root or Path(sysconfig.get_path("stdlib"))
    files = dict(_sources(root))
    if not files:
        raise FileNotFoundError(f"no Python sources in {root}; give the folder of a standard library")
    train = _joined(text for path, text in files.items() if not is_held_out(path))
    held_out = {path: text for path, text in files.items() if is_held_out(path)}
    return Corpus(train, held_out, hashlib.sha256(train.tobytes()).hexdigest())


def _sources(root: Path) -> Iterator[tuple[str, bytes]]:
    """Path and bytes of each source, sorted by path; files that are not UTF-8 or contain a NUL are left out."""
    for file in sorted(root.rglob("*.py")):
        path = file.relative_to(root).as_posix()
        if any(part in LEFT_OUT for part in file.relative_to(root).parts):
            continue
        text = file.read_bytes()
        try:
            text.decode()
        except UnicodeDecodeError:
            continue
        if text and END not in text:
            yield path, text


def _joined(texts: Iterable[bytes]) -> np.ndarray:
    return np.frombuffer(b"".join(text + bytes([END]) for text in texts), np.uint8)
