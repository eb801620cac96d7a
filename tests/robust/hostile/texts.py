"""Attacks by text: what an implementation says reaches a terminal, a report, a shell and a CI."""

import os
import sys
import time
from typing import Any

from tests.robust.hostile.corpus import attack, wrong


@attack("error", said=r"a \\ud800 surrogate", quick=True)
def raises_a_surrogate(*given: Any) -> None:
    """Raises a text that no UTF-8 has."""
    raise RuntimeError("a \ud800 surrogate")


@attack("error", said=r"\\x1b\[2J\\x1b\[32m31 pass", quick=True)
def raises_escapes(*given: Any) -> None:
    """Raises a text that clears the terminal and draws a pass."""
    raise RuntimeError("\x1b[2J\x1b[32m31 pass\x1b]0;passed\x07\x9b1m")


@attack("error", said=r"\\n\\nNothing failed", quick=True)
def raises_lines(*given: Any) -> None:
    """Raises a text whose lines look like those of the suite."""
    raise RuntimeError("\n\nNothing failed.\n\r1 pass\u2028\x85")


@attack("error", said=r"\\x00\\x08\\x0c\\x7f")
def raises_controls(*given: Any) -> None:
    """Raises what XML has no character for."""
    raise RuntimeError("\x00\x08\x0c\x7f ]]> <!-- \ufffe\uffff")


@attack("error", said=r"\\u202e\\u2066")
def raises_a_text_in_another_order(*given: Any) -> None:
    """Raises marks that reorder what is read, and characters that nobody sees."""
    raise RuntimeError("\u202e\u2066\u200b\ufeffssap")


@attack("error", said=r"\[/red\]\[link=")
def raises_markup(*given: Any) -> None:
    """Raises the markup of a terminal and of a page."""
    raise RuntimeError("[/red][link=file:///]x[/link][/] <script>alert(1)</script> {{ 7 * 7 }} {% raw %}")


@attack("error", said="RuntimeError: x+")
def raises_fifty_megabytes(*given: Any) -> None:
    """Raises a text that fills a report."""
    raise RuntimeError("x" * 50_000_000)


class Unspeakable(Exception):
    """An exception whose text is another exception."""

    def __str__(self) -> str:
        raise ValueError("\x1b[31m")


@attack("error", said="its text raised ValueError")
def raises_what_has_no_text(*given: Any) -> None:
    """Raises what raises again when it is asked what it says."""
    raise Unspeakable


class Endless(Exception):
    """An exception that never says what it is."""

    def __str__(self) -> str:
        time.sleep(600)
        return ""


@attack("timeout", said="no answer within")
def raises_what_never_speaks(*given: Any) -> None:
    """Raises what hangs when it is asked what it says."""
    raise Endless


@attack("error", said=r"\\x1b\[2J: named")
def raises_a_type_of_escapes(*given: Any) -> None:
    """Raises an exception whose type has an escape for a name."""
    raise type("\x1b[2J", (Exception,), {})("named")


@attack("printed", said=r"\\x1b\[32m", quick=True)
def prints_escapes(*given: Any) -> Any:
    """Prints a pass in green."""
    print("\x1b[32m31 pass\ud800".encode("utf-8", "replace").decode())
    sys.stdout.flush()
    return wrong(*given)


@attack("printed", said="xxx")
def prints_a_hundred_megabytes(*given: Any) -> Any:
    """Prints what fills a memory."""
    for _ in range(100):
        os.write(1, b"x" * 1_000_000)
    return wrong(*given)


@attack("crash", said=r"exit code 1 \| .*\\x1b\[32m")
def ends_with_escapes(*given: Any) -> None:
    """Ends with escapes as its last words, after a hundred megabytes of others."""
    for _ in range(100):
        os.write(2, b"\x1b[0m\n" * 200_000)
    os.write(2, b"\x1b[32mNothing failed.\xff\x00\n")
    os._exit(1)
