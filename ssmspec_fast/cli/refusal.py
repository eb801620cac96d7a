"""How an engine command ends when it cannot run: the reason in one line, and the exit code."""

import typer
from rich.console import Console
from rich.text import Text

from ssmspec_ref.options.extras import installing
from ssmspec_ref.options.words import shown

REFUSED = 2
"""Exit code: the command could not run."""


def refused(error: Exception, extra: str = "torch") -> typer.Exit:
    """Prints an error's type and message to standard error, without interpreting markup, and returns the exit to raise. For a
    missing module it names the extra of ssmspec that installs it.
    """
    name, why = type(error).__name__, f": {error}"
    if isinstance(error, ModuleNotFoundError):
        name, why = str(error.name), f" is not installed here; {installing(extra)}"
    Console(stderr=True, highlight=False, soft_wrap=True).print(Text.assemble((name, "red"), shown(why)))
    return typer.Exit(REFUSED)
