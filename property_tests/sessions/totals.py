"""What the examples of a machine covered, and the worst of them."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

from .session import Session


class Totals:
    """`last` is the session of the last example: after a failure, the smallest one. `digest` identifies all examples, in
    order."""

    def __init__(self) -> None:
        self.examples = 0
        self.reached: Counter[str] = Counter()
        self.decodings: Counter[str] = Counter()
        self.used: dict[str, float] = {}
        self.worst: Session | None = None
        self.last: Session | None = None
        self.shown: Callable[[], None] = lambda: None
        self._hash = hashlib.sha256()

    def begin(self, session: Session) -> None:
        self.last = session
        self.examples += 1
        self.decodings.update(d.name for d in session.decodings)

    def end(self, session: Session) -> None:
        self._hash.update(json.dumps(session.words(), sort_keys=True).encode())
        self.reached.update(session.reached)
        for label, used in session.used.items():
            self.used[label] = max(self.used.get(label, 0.0), used)
        if session.used and (self.worst is None or session.utilisation > self.worst.utilisation):
            self.worst = session
        self.shown()

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()[:16]

    @property
    def actions(self) -> int:
        return sum(count for name, count in self.reached.items() if name.startswith("rule "))

    def words(self) -> dict[str, Any]:
        """The totals as a batch of a campaign stores them."""
        worst = None if self.worst is None else {"utilisation": self.worst.utilisation, "session": self.worst.words()}
        return {
            "examples": self.examples,
            "digest": self.digest,
            "reached": dict(self.reached),
            "decodings": dict(self.decodings),
            "used": self.used,
            "worst": worst,
        }


def merged(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Several batches as one."""
    total: dict[str, Any] = {"examples": 0, "parts": len(parts), "seconds": 0.0, "worst": None, "used": {}}
    reached, decodings = Counter[str](), Counter[str]()
    for part in parts:
        total["examples"] += part["examples"]
        total["seconds"] += part.get("seconds", 0.0)
        reached.update(part["reached"])
        decodings.update(part["decodings"])
        for label, used in part["used"].items():
            total["used"][label] = max(total["used"].get(label, 0.0), used)
        worst = part["worst"]
        if worst is not None and (total["worst"] is None or worst["utilisation"] > total["worst"]["utilisation"]):
            total["worst"] = worst
    return {**total, "reached": dict(reached), "decodings": dict(decodings)}
