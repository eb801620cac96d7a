"""An exception of an implementation: the kinds of failure that it is, and the line that raised it."""

import re
from collections.abc import Callable, Mapping

REFUSED = "refused"
"""The kind of a case that the implementation refuses (`ssmspec_ref.errors.Unsupported`), though its limits claim it."""
RAISED = ("error", REFUSED)
SECOND = re.compile(r"^with the inputs of seed \d+: ")
PLACE = re.compile(r"\| (\S+):(\d+) ")


def places(message: str) -> list[tuple[str, str]]:
    """The files and lines that an exception passed through, the innermost last, from its message (`calls.tail`)."""
    return PLACE.findall(message)


def origin(kind: str, message: str) -> str:
    """The type and the innermost position of an exception, or the signal or exit code of a process; otherwise ""."""
    return ORIGINS[kind](message) if kind in ORIGINS else ""


def _raised(message: str) -> str:
    told = SECOND.sub("", message)
    return " ".join([told.partition(":")[0], *map(":".join, places(told)[-1:])])


def _ended(message: str) -> str:
    return message.partition(" | ")[0]


ORIGINS: Mapping[str, Callable[[str], str]] = dict.fromkeys(RAISED, _raised) | {"crash": _ended}
"""How the place where a failure of each kind arose is read from its message."""
