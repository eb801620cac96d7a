"""The end of a command that cannot be carried out: the reason in one line on the standard error, and the exit code."""

import typer
from rich.console import Console
from rich.text import Text

FAILED, REFUSED, INTERRUPTED = 1, 2, 130
"""Exit codes: what was judged failed, stayed unknown or became worse; the command could not be carried out, or was ended."""


def refused(error: Exception) -> typer.Exit:
    """The exit to raise, once the error is told by its name and its text: brackets in it are no markup."""
    Console(stderr=True).print(Text.assemble((type(error).__name__, "red"), f": {error}"), soft_wrap=True)
    return typer.Exit(REFUSED)
