"""The one command. Its subcommands are found through entry points, so that no part imports another."""

from importlib.metadata import entry_points
from importlib.metadata import version as installed
from typing import Annotated

import typer

GROUP = "ssmspec.commands"


def _told(asked: bool) -> None:
    if asked:
        typer.echo(f"ssmspec {installed('ssmspec')}")
        raise typer.Exit


def build() -> typer.Typer:
    """The command with every subcommand that is installed; from a bare checkout, with the suite's own."""
    app = typer.Typer(
        pretty_exceptions_enable=False,
        no_args_is_help=True,
        add_completion=False,
        help="State-space-model decoding, judged and done.",
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
    build()()
