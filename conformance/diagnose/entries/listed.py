"""One row of integers or of a mask in words: all of it, or what lies around the wrong place, with the totals."""

from typing import Any

import numpy as np

LONGEST = 24
"""Numbers of one row to list."""
SHORT = 8
"""Entries of a mask that are counted at sight."""
AFTER = 4
"""Entries to list after the wrong place."""


def listed(name: str, value: Any, at: int | None = None, sep: str = "=") -> str:
    """live=110111, or live[20..43]=1101.. (25 of 80 are 1). Of a longer row the entries around `at`, or the last ones."""
    flat = np.asarray(value).ravel()
    begin = 0
    if len(flat) > LONGEST:
        end = len(flat) if at is None else min(len(flat), at + 1 + AFTER)
        begin = max(0, min(end - LONGEST, len(flat) - LONGEST))
    part = flat[begin : begin + LONGEST]
    mask = flat.dtype.kind == "b"
    said = "".join("1" if one else "0" for one in part) if mask else " ".join(str(int(one)) for one in part)
    where = f"[{begin}..{begin + len(part) - 1}]" if len(part) < len(flat) else ""
    if mask and len(flat) > SHORT:
        total = f" ({int(flat.sum())} of {len(flat)} are 1)"
    else:
        total = f" (of {len(flat)})" if where else ""
    return f"{name}{where}{sep}{said}{total}"
