"""Processes that are found again by a variable of their environment, whatever became of their parents."""

from pathlib import Path

from conformance.isolation.warden import living

MARK = "SSMSPEC_HOSTILE"


def marked(mark: str) -> list[int]:
    """The living processes that carry a mark."""
    wanted, found = f"{MARK}={mark}".encode(), []
    for process, _ in living():
        try:
            if wanted in Path(f"/proc/{process}/environ").read_bytes().split(b"\0"):
                found.append(process)
        except OSError:
            continue
    return found
