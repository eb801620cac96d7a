"""How an engine command ends when it cannot run: the reason in one line, and the exit code."""

from collections.abc import Iterable
from difflib import get_close_matches

import typer
from rich.console import Console
from rich.text import Text

REFUSED = 2
"""Exit code: the command could not run."""


def nearest(given: str, choices: Iterable[str]) -> str:
    """A question that names the choice nearest to the given one; an empty text if none is near."""
    found = get_close_matches(given, list(choices), 1, 0.5)
    return f" (did you mean {found[0]!r}?)" if found else ""


def shown(text: str) -> str:
    """Text that is safe to print on a terminal: invalid text and control characters are escaped."""
    plain = text.encode(errors="backslashreplace").decode()
    return "".join(x if x.isprintable() or x == "\n" else x.encode("unicode_escape").decode() for x in plain)


def refused(error: Exception, extra: str = "torch") -> typer.Exit:
    """Prints an error's type and message to standard error, without interpreting markup, and returns the exit to raise. For a
    missing module it names the extra of ssmspec that installs it.
    """
    name, why = type(error).__name__, f": {error}"
    if isinstance(error, ModuleNotFoundError):
        name, why = str(error.name), f" is not installed; pip install 'ssmspec[{extra}]' brings it"
    Console(stderr=True, highlight=False, soft_wrap=True).print(Text.assemble((name, "red"), shown(why)))
    return typer.Exit(REFUSED)
