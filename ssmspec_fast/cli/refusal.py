"""How an engine command ends when it cannot run: the reason in one line, and the exit code."""

import sys
from collections.abc import Callable

import typer
from rich.console import Console
from rich.text import Text

from ssmspec_ref.options.extras import installing
from ssmspec_ref.options.typed import repeated
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


def run_command(function: Callable[..., None], words: list[str] | None = None) -> int | None:
    """Calls a function as `python -m MODULE WORDS`, or as the command line says, with the module's docstring as its help.
    Returns the exit code: 2 for a usage error, which it prints in one line.
    """
    module = sys.modules[function.__module__]
    app = typer.Typer(pretty_exceptions_enable=False, add_completion=False, rich_markup_mode=None)
    app.command(help=module.__doc__)(function)
    called = f"python -m {module.__spec__.name.removesuffix('.__main__')}" if module.__spec__ else sys.argv[0]
    command = typer.main.get_command(app)
    given = repeated(sys.argv[1:] if words is None else words, command)
    try:
        code: int | None = command(given, prog_name=called, standalone_mode=False)
        return code
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        print(shown(f"{' '.join(error.format_message().split()).removesuffix('.')} ({called} --help)"), file=sys.stderr)
        return REFUSED
