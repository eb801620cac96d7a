"""The end of a command of the engine that cannot be carried out: the reason in one line, and the exit code."""

import typer
from rich.console import Console
from rich.text import Text

REFUSED = 2
"""Exit code: the command could not be carried out."""


def refused(error: Exception, extra: str = "torch") -> typer.Exit:
    """The exit to raise, once the error stands on the standard error by its name and its text, brackets in it no markup; a
    module that is missing with the extra of ssmspec that brings it.
    """
    name, why = type(error).__name__, f": {error}"
    if isinstance(error, ModuleNotFoundError):
        name, why = str(error.name), f" is not installed; pip install 'ssmspec[{extra}]' brings it"
    Console(stderr=True, highlight=False, soft_wrap=True).print(Text.assemble((name, "red"), why))
    return typer.Exit(REFUSED)
