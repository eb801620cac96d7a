"""Attacks on the folder of the report: what lies where the judge will write, or read, when the case has ended."""

import os
import socket
from pathlib import Path
from typing import Any

from tests.robust.hostile.corpus import attack, wrong
from tests.robust.hostile.lines import PLANTED

MADE = ("report.html", "junit.xml", "badge.svg")
"""The files that are made from a report."""
GUESSED = tuple(f"{name}{end}" for name in ("report.jsonl", *MADE) for end in (".new", ".tmp"))
"""Names that a file might have before it is in its place."""


def replaced(names: tuple[str, ...], make: Any) -> None:
    for name in names:
        path = Path(os.environ[PLANTED]).parent / "report" / name
        path.unlink(missing_ok=True)
        make(path)


@attack("bound", said="wrong by", quick=True)
def puts_fifos_into_the_report(*given: Any) -> Any:
    """FIFOs, which nobody reads or writes, in place of all that is made at the end."""
    replaced((*MADE, *GUESSED), os.mkfifo)
    return wrong(*given)


@attack("bound", said="wrong by", quick=True)
def puts_links_into_the_report(*given: Any) -> Any:
    """Links to a file elsewhere, which must not be made."""
    replaced((*MADE, *GUESSED), lambda path: path.symlink_to(os.environ[PLANTED]))
    return wrong(*given)


@attack("bound", said="wrong by")
def puts_sockets_into_the_report(*given: Any) -> Any:
    """Sockets in place of all that is made at the end."""

    def bound(path: Path) -> None:
        home = os.open(path.parent, os.O_RDONLY)  # the path of a socket must be short
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(f"/proc/self/fd/{home}/{path.name}")
        os.close(home)

    replaced(MADE, bound)
    return wrong(*given)
