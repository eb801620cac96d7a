"""The `ssmspec` command. Its subcommands are found through entry points, so that no part imports another."""

import re
import sys
from importlib.metadata import entry_points
from importlib.metadata import version as installed
from typing import Annotated, Any

import typer

from .refusal import INTERRUPTED, REFUSED, broke, nearest

GROUP = "ssmspec.commands"


def _told(asked: bool) -> None:
    if asked:
        typer.echo(f"ssmspec {installed('ssmspec')}")
        raise typer.Exit


def build() -> typer.Typer:
    """The command with every installed subcommand; in a bare checkout, with the suite's own."""
    app = typer.Typer(
        pretty_exceptions_enable=False,
        no_args_is_help=True,
        add_completion=False,
        help="Test and run state-space-model decoding.",
    )
    app.callback()(_version)
    found = {entry.name: entry for entry in entry_points(group=GROUP)}
    for name, entry in sorted(found.items()):
        app.add_typer(entry.load(), name=name)
    if "conform" not in found:
        from .cli import app as conform

        app.add_typer(conform, name="conform")
    return app


def _version(
    version: Annotated[bool, typer.Option("--version", callback=_told, is_eager=True, help="Print the version.")] = False,
) -> None:
    return


def main() -> None:
    """Run the command. Exits with 3 on an unexpected error; 1 means that something was tested and failed. A usage error is
    reported in one line, and exits with 2."""
    try:
        sys.exit(build()(standalone_mode=False))
    except Exception as error:
        if hasattr(error, "format_message") and not type(error).__name__.startswith("NoArgs"):
            print(one_line(error), file=sys.stderr)
        elif hasattr(error, "format_message"):
            error.show()  # type: ignore[attr-defined]  # the help, where no command is given
        elif type(error).__name__ == "Abort":
            sys.exit(INTERRUPTED)
        else:
            sys.exit(broke(error).exit_code)
        sys.exit(REFUSED)


def one_line(error: Any) -> str:
    """A usage error in one line: what is wrong, the nearest correct word, and how to get help."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "ssmspec"
    said = " ".join(error.format_message().split()).removesuffix(".")
    near = ""
    wrong = re.search(r"No such (command|option):? '?([^'\s]+)'?", said)
    if wrong and context and "Did you mean" not in said and "Possible options" not in said:
        if wrong[1] == "command":
            choices = context.command.list_commands(context)
        else:
            choices = [word for parameter in context.command.params for word in parameter.opts]
        near = nearest(wrong[2].strip("."), choices)
    return f"{said}{near} ({command} --help)"
