"""Sanitise text from an implementation once, where it is received: to print, to store and to paste into a shell.

Lone surrogates, control characters and characters that reorder text are replaced by their escapes. Nothing is lost, a
terminal interprets none of it, and a message is one line.
"""

import re

LONGEST, NAME = 2000, 200
"""Longest message, and longest name, in characters."""
UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ud800-\udfff\ufeff\ufff9-\uffff]")
"""C0 and C1 controls, bidirectional and invisible marks, line separators, surrogates, noncharacters."""


def clean(text: object, longest: int = LONGEST) -> str:
    """Text with every unsafe character escaped, cut to a length. An object that is not text is replaced by its type."""
    if type(text) is not str:
        return f"<{type(text).__name__}>"
    safe = escaped(text[: longest + 1])
    return safe if len(safe) <= longest else safe[: longest - 1] + "…"


def escaped(text: str) -> str:
    """Text with every unsafe character escaped."""
    return UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def name(text: object) -> str:
    """A name: as `clean`, but shorter."""
    return clean(text, NAME)


def told(error: BaseException) -> str:
    """The message of an exception. If that raises too, the type of the new exception."""
    try:
        said = str(error)
    except BaseException as other:  # an implementation wrote `__str__`
        return f"<its text raised {clean(type(other).__name__, NAME)}>"
    return clean(said)
