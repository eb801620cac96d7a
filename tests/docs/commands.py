"""The commands as Markdown, from the help that they print: the site puts it into docs/reference/cli.md."""

from collections.abc import Iterator
from enum import Enum
from typing import Any

import typer

from conformance.main import build

HIDDEN = ("help", "version")


def commands() -> str:
    """Every command with its help, its arguments and its options."""
    return "\n".join(_command("ssmspec", typer.main.get_command(build())))


def _command(name: str, command: Any) -> Iterator[str]:
    """A section for a command, then for those below it."""
    if " " in name:
        yield from (f"{'#' * min(3, len(name.split()))} `{name}`", "", str(command.help or "").strip(), "")
    rows = [_row(p) for p in command.params if p.name not in HIDDEN]
    if rows:
        yield from ("| option | what it does |", "|---|---|", *rows, "")
    for below, sub in sorted(getattr(command, "commands", {}).items()):
        yield from _command(f"{name} {below}", sub)


def _row(parameter: Any) -> str:
    argument = parameter.param_type_name == "argument"
    names = ", ".join(
        f"`{n}`" for n in ([parameter.name.upper()] if argument else [*parameter.opts, *parameter.secondary_opts])
    )
    said, default, kind = str(parameter.help or "").strip(), parameter.default, parameter.type_descriptor.annotation
    if isinstance(kind, type) and issubclass(kind, Enum):
        said += f" One of {', '.join(f'`{choice.value}`' for choice in kind)}."
    default = default.value if isinstance(default, Enum) else default
    if isinstance(default, str | int | float) and not isinstance(default, bool) and default != "":
        said += f" Default: `{default}`."
    return f"| {names} | {said} |".replace("\n", " ")
