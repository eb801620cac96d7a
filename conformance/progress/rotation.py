"""Of a list that takes too long for every run a fifth is chosen, another one each day.

    python -m conformance.meta --draw today             a fifth of the planted faults; prints the draw
    python -m conformance.meta --draw 2026-11-30:1f0c2a repeats that run

Date and tree choose: the tree of git's HEAD, so that two commits of one day run different fifths. Five days run all.
"""

import hashlib
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path

PARTS = 5
"""Of the members of a group one in so many is chosen."""
ALL, TODAY = "all", "today"
DRAW = re.compile(r"(\d{4}-\d\d-\d\d):([0-9a-f]+)")


@dataclass(frozen=True)
class Draw:
    """Which fifth is chosen: `day` and `tree` say it."""

    day: date
    tree: str

    def __str__(self) -> str:
        return f"{self.day}:{self.tree}"

    def part(self, group: str) -> int:
        """Which part of a group is chosen, 0 to PARTS - 1: the next one each day."""
        start = int(hashlib.sha256(f"{self.tree} {group}".encode()).hexdigest(), 16)
        return (start + self.day.toordinal()) % PARTS

    def chosen(self, group: str, members: Sequence[str]) -> set[str]:
        """Every fifth member of a group in alphabetical order, and at least one."""
        first = self.part(group) % min(PARTS, len(members)) if members else 0
        return set(sorted(members)[first::PARTS])


def read_draw(text: str, root: Path | None = None) -> Draw | None:
    """The draw that an option names; None for `all`. `today` takes the tree of the repository at `root`, or 0.

    Raises: ValueError: a text that names no draw.
    """
    if text == ALL:
        return None
    if text == TODAY:
        return Draw(datetime.now(UTC).date(), git(root or Path.cwd(), "rev-parse", "--short=12", "HEAD^{tree}") or "0")
    found = DRAW.fullmatch(text)
    try:
        if found:
            return Draw(date.fromisoformat(found[1]), found[2])
    except ValueError:
        pass
    raise ValueError(f"--draw got {text!r}; need {ALL}, {TODAY}, or the DATE:TREE that a run printed")


def git(root: Path, *words: str) -> str | None:
    """What git answers in a folder; None where it cannot."""
    try:
        done = subprocess.run(("git", *words), cwd=root, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
