"""Drafts from a text by comparison of all places at once, ranked by one number."""

from typing import Any

import numpy as np

from ssmspec_ref.contract import FLOAT64, Capability, Subject
from ssmspec_ref.shapes import Array


def lookup(history: Array, tokens: int, longest: int, choice: str) -> Array:
    """The place with the longest agreement before it, at most `longest` tokens; of equals the last or the first."""
    found = np.full((len(history), tokens), -1)
    for b, row in enumerate(history):
        text = row[row >= 0]
        places = np.arange(1, len(text))
        agree = np.zeros(len(places), dtype=np.int64)
        for back in range(min(longest, len(text) - 1)):
            same = (places > back) & (text[places - 1 - back] == text[len(text) - 1 - back])
            agree += same & (agree == back)
        if agree.any():
            rank = agree * (len(text) + 1) + (places if choice == "last" else len(text) - places)
            after = text[places[rank.argmax()] :][:tokens]
            found[b, : len(after)] = after
    return found


def png(history: Array, drafts: int, tokens: int, table: Array) -> Array:
    """Windows by (count, place), then the table's rows; of equal windows the first of that order is kept."""
    found = np.full((len(history), drafts, tokens), -1)
    for b, row in enumerate(history):
        text = row[row >= 0]
        starts = np.flatnonzero(text[: max(len(text) - tokens, 0)] == text[-1])
        windows = text[starts[:, None] + 1 + np.arange(tokens)]
        count = (windows[:, None] == windows).all(axis=2).sum(axis=1)
        order = np.argsort(-(count * (len(text) + 1) + starts))
        every = np.concatenate([windows[order], table[text[-1]]])
        first = [n for n, one in enumerate(every) if not (every[:n] == one).all(axis=1).any()][:drafts]
        found[b, : len(first)] = every[first]
    return found


def subject() -> Subject:
    runs: dict[str, Any] = {"draft.lookup": lookup, "draft.png": png}
    return Subject(
        "drafts",
        {name: Capability(run, FLOAT64) for name, run in runs.items()},
        absent={"": "another part of the reference"},
    )
