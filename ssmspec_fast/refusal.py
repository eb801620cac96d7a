"""The end of a command of the engine that cannot be carried out: the reason in one line, and the exit code."""

import typer
from rich.console import Console

REFUSED = 2
"""Exit code: the command could not be carried out."""


def refused(why: str) -> typer.Exit:
    """The exit to raise, once the reason stands on the standard error: brackets in it are no markup."""
    Console(stderr=True, soft_wrap=True).print(why, markup=False)
    return typer.Exit(REFUSED)
