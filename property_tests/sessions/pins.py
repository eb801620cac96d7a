"""Pinned sessions, those closest to their bounds: `python -m property_tests.sessions.pins FOLDER …` adds more.

A pinned session records the widest bound of every kind of value that it tests. Bounds do not depend on the implementation, so
they are the same on any machine; a bound that grew would hide what the session was pinned for.
"""

import hashlib
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from conformance.main import run_command

from ..campaigns.campaign import read
from .session import Session, replay

FOLDER = Path(__file__).parent.parent / "worst"
SLACK = 1e-6
"""Relative tolerance: the functions of another library version may round differently, by 2^-52 each."""


def pinned(session: Session) -> dict[str, Any]:
    """The stored form; `utilisation` is that of the machine that found it."""
    return {"utilisation": session.utilisation, "widest": session.widest, "session": session.words()}


def grown(kept: dict[str, Any], session: Session) -> dict[str, tuple[float, float]]:
    """The bounds that are wider than when the session was pinned, or are new: before and now."""
    before = kept["widest"]
    return {
        label: (before.get(label, 0.0), now)
        for label, now in session.widest.items()
        if not now <= before.get(label, 0.0) * (1 + SLACK)
    }


def write(words: dict[str, Any], device: str = "cpu", folder: Path = FOLDER) -> Path:
    """Pins a session. Raises: Deviation, if it does not agree."""
    session = replay(words, device)
    named = hashlib.sha256(json.dumps(session.words(), sort_keys=True).encode()).hexdigest()[:10]
    path = folder / f"{'-'.join(session.spec.kinds)}-{named}.json"
    path.write_text(json.dumps(pinned(session), indent=1) + "\n", encoding="utf-8")
    return path


def main(folders: Annotated[list[Path], typer.Argument(help="Folders of campaigns.")]) -> None:
    for folder in folders:
        worst = read([folder])["worst"]
        print(f"{folder}: nothing was tested" if worst is None else write(worst["session"]))


if __name__ == "__main__":
    sys.exit(run_command(main))
