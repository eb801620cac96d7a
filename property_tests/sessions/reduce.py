"""Fewer actions that still deviate: reduces what Hypothesis found, on the session's own lines.

Lines are removed one or two at a time, while the rest still fails with a deviation; the roots of windows are set to the
tokens that the sequences then end with. This takes tens of replays, where shrinking every draw takes hundreds of examples.
"""

from collections.abc import Iterator
from itertools import combinations
from typing import Any

from ssmspec_ref.contract import Adapter

from .ledger import Impossible
from .session import Deviation, Session

Line = tuple[str, tuple[Any, ...], dict[str, Any]]


def reduced(session: Session, adapter: Adapter) -> tuple[Session, str]:
    """The session with the fewest lines, and its message; the session itself if its replay does not deviate.

    Raises: nothing; an action that became impossible, or another error, is not a deviation.
    """
    best = attempt(session, adapter, session.lines)
    if best is None:
        return session, ""
    while (shorter := next(found(best[0], adapter), None)) is not None:
        best = shorter
    return best


def found(session: Session, adapter: Adapter) -> Iterator[tuple[Session, str]]:
    """Sessions with one or two lines less that still deviate."""
    lines, places = session.lines, range(len(session.lines) - 1, -1, -1)
    for left_out in (*combinations(places, 2), *combinations(places, 1)):
        tried = attempt(session, adapter, [line for i, line in enumerate(lines) if i not in left_out])
        if tried is not None:
            yield tried


def attempt(session: Session, adapter: Adapter, lines: list[Line]) -> tuple[Session, str] | None:
    """A session of these lines, up to the one that deviates."""
    words = {name: value for name, value in session.words().items() if name not in ("adapter", "lines")}
    again = Session(adapter, **words)
    again.name = session.name
    try:
        for name, given, more in lines:
            getattr(again, name)(*given, **rooted(again, name, more))
    except Deviation as error:
        return again, f"{type(error).__name__}: {error}"
    except (Exception, SystemExit):  # only deviations count
        return None
    return None


def rooted(session: Session, name: str, more: dict[str, Any]) -> dict[str, Any]:
    """A window whose rows begin with the roots of their sequences."""
    if name != "verify":
        return more
    room = session.rooms[more["d"]]
    if any(slot >= 0 and slot not in room for slot in more["slots"]):
        raise Impossible("a sequence of the window is not there")
    rows = zip(more["tokens"], more["slots"], strict=True)
    return {**more, "tokens": [[room[slot][-1] if slot >= 0 else row[0], *row[1:]] for row, slot in rows]}
