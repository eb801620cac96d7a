"""How a command that cannot be carried out ends: the reason in one line on standard error, and the exit code."""

import errno
import traceback
from typing import Any

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperGroup

from ssmspec_ref.errors import OptionError
from ssmspec_ref.options.words import shown

from .errors import RunBroken

FAILED, REFUSED, BROKEN, INTERRUPTED = 1, 2, 3, 130
"""Exit codes: something tested failed, stayed unknown or became worse; the command could not be carried out; the suite itself
failed; it was interrupted."""

FULL = (errno.ENOSPC, errno.EDQUOT)
"""The errors of a full disk, and of a used-up quota."""


class Refusing(TyperGroup):
    """Commands that end with one line and exit code 2 if an option is refused."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was typed."""
        try:
            return super().invoke(ctx)
        except OptionError as error:
            raise refused(error) from error


def refused(error: Exception) -> typer.Exit:
    """Print an error with its name and text, without markup, and return the exit to raise."""
    Console(stderr=True).print(Text.assemble((type(error).__name__, "red"), shown(f": {error}")), soft_wrap=True)
    return typer.Exit(BROKEN if isinstance(error, RunBroken) else REFUSED)


def broke(error: Exception) -> typer.Exit:
    """Print an unexpected error and return the exit to raise. It is a bug of ours, not a verdict on an implementation.

    A full disk is not: it is one line.
    """
    if isinstance(error, OSError) and error.errno in FULL:
        where = error.filename or "a file"
        return refused(
            OptionError(f"{where} cannot be written ({error.strerror}); free some space, or name a folder on another disk")
        )
    traceback.print_exception(error)
    told = f"ssmspec itself broke ({type(error).__name__}); this is not a verdict, and the report is unfinished"
    Console(stderr=True).print(Text(told, style="red"), soft_wrap=True)
    return typer.Exit(BROKEN)
