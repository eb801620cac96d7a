"""The `ssmspec` command. Its subcommands are found through entry points, so that no part imports another."""

import re
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from importlib.metadata import version as installed
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from ssmspec_ref.errors import OptionError
from ssmspec_ref.options.typed import repeated
from ssmspec_ref.options.words import nearest, shown

from .refusal import INTERRUPTED, REFUSED, broke, refused

GROUP = "ssmspec.commands"
TEXTS = ("--prompt", "--stop")
"""Options whose values are texts, of which each command says whether they may be empty."""


def _told(asked: bool) -> None:
    if asked:
        typer.echo(f"ssmspec {installed('ssmspec')}")
        raise typer.Exit


def build() -> typer.Typer:
    """The command with every installed subcommand; in a bare checkout, with the suite's own."""
    app = typer.Typer(
        pretty_exceptions_enable=False,
        no_args_is_help=True,
        context_settings={"help_option_names": ["--help", "-h"]},
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


def main(make: Callable[[], typer.Typer] = build, called: str = "ssmspec") -> None:
    """Run the command, which is `called` so. Exits with 3 on an unexpected error; 1 means that something was tested and
    failed. A usage error is reported in one line, and exits with 2."""
    try:
        sys.exit(ended(make(), sys.argv[1:], called))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as error:
        sys.exit(broke(error).exit_code)


def ended(app: typer.Typer, words: list[str], called: str) -> int | None:
    """The exit code of a command after a usage error is reported in one line. Raises: the command's unexpected errors."""
    try:
        command = typer.main.get_command(app)
        named(command)
        if told := swallowed(command, words, called) or blank(words):
            print(shown(told), file=sys.stderr)
            return REFUSED
        code: int | None = command(repeated(words, command), prog_name=called, standalone_mode=False)
        return code
    except OptionError as error:
        return refused(error).exit_code
    except Exception as error:
        if type(error).__name__ == "Abort":
            return INTERRUPTED
        if not hasattr(error, "format_message"):
            raise
        if type(error).__name__.startswith("NoArgs"):
            error.show()  # type: ignore[attr-defined]  # the help, where no command is given
        else:
            print(shown(one_line(error)), file=sys.stderr)
        return REFUSED


def module_command(function: Callable[..., Any]) -> typer.Typer:
    """A function as the command of its module, whose docstring is the help."""
    app = typer.Typer(pretty_exceptions_enable=False, add_completion=False, rich_markup_mode=None)
    helps = "\n\n".join(f"\b\n{part}" for part in (sys.modules[function.__module__].__doc__ or "").split("\n\n"))
    app.command(help=helps, context_settings={"help_option_names": ["--help", "-h"]})(function)
    return app


def run_command(function: Callable[..., Any], words: list[str] | None = None) -> int | None:
    """Call a function as `python -m MODULE WORDS`, or as the command line says, and return its exit code: what it returns, or
    2 for a usage error or an OptionError, in one line."""
    found = sys.modules["__main__" if words is None else function.__module__].__spec__
    called = f"python -m {found.name.removesuffix('.__main__')}" if found else sys.argv[0]
    return ended(module_command(function), sys.argv[1:] if words is None else words, called)


VALUES = {Path: "PATH", int: "N", float: "NUMBER", str: "TEXT", bool: ""}
"""What the help shows in place of an option's value."""


def named(command: Any, above: Any = None) -> None:
    """Name the value of every option by its kind, and every argument in capitals, without the types of Python that the help
    of typer shows. `above` is the context of the group that the command is in."""
    context = command.context_class(command, parent=above, **command.context_settings)
    if helps := command.get_help_option(context):
        helps.metavar = " "
    for option in (one for one in command.params if one.opts[0].startswith("-") and not one.metavar):
        annotation = getattr(option.type_descriptor, "annotation", str)
        kind = (get_args(annotation) or (annotation,))[0]
        option.metavar = VALUES.get(kind, "TEXT") or " "
    for argument in (one for one in command.params if not one.opts[0].startswith("-") and not one.metavar):
        argument.metavar, argument.display_type_rich = argument.name.upper(), lambda ctx: None
    for below in getattr(command, "commands", {}).values():
        named(below, context)


def swallowed(command: Any, words: list[str], path: str = "ssmspec") -> str:
    """What is wrong if an option that needs a value is followed by another option, which would be its value; else ""."""
    takes, every = set[str](), {"--help"}
    end = words.index("--") if "--" in words else len(words)
    for word, after in pairwise(["", *words[:end], ""]):
        below = getattr(command, "commands", {}).get(word)
        if below or not word:
            command, path = (below, f"{path} {word}") if below else (command, path)
            options = [one for one in command.params if one.opts[0].startswith("-")]
            every |= {name for one in options for name in (*one.opts, *one.secondary_opts)}
            takes |= {name for one in options if not one.is_flag for name in one.opts}
        elif word in takes and after in every:
            return f"{word} needs a value, but the option {after} follows it ({path} --help)"
    return ""


def blank(words: list[str]) -> str:
    """What is wrong if a value is empty, as that of a shell's variable which is not set; else "". A prompt may be."""
    for before, word in pairwise(["ssmspec", *words]):
        option, sign, value = word.partition("=")
        if not word.strip() and before not in TEXTS:
            return f"{f'{before} is empty' if before.startswith('-') else f'the word after {before} is empty'}; give a value"
        if word.startswith("--") and sign and not value.strip() and option not in TEXTS:
            return f"{option} is empty; give a value"
    return ""


def one_line(error: Any) -> str:
    """A usage error in one line: what was given, what is needed, the nearest correct word, and how to get help."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "ssmspec"
    said = wrong_value(error) or missing(error) or " ".join(error.format_message().split()).removesuffix(".")
    near = ""
    wrong = re.search(r"No such (command|option):? '?([^'\s]+)'?", said)
    extra = re.search(r"^Got unexpected extra arguments?(?:\(s\))? \((.*)\)$", said)
    if extra:
        named = any(parameter.name == "adapter" for parameter in context.command.params) if context else False
        said = f"{extra[1]!r} is not expected" + (f"; give --adapter {extra[1].split()[0]}" if named else "")
    elif wrong and context and wrong[1] == "command" and not context.command.list_commands(context):
        said = f"{wrong[2]!r} is not expected; {command} takes options only"
    elif wrong and context and wrong[1] == "command" and "Did you mean" not in said:
        near = nearest(wrong[2].strip("."), context.command.list_commands(context))
    elif wrong and context and wrong[1] == "option":
        said = f"No such option: {wrong[2]}"
        near = nearest(wrong[2], [word for parameter in context.command.params for word in parameter.opts])
    return f"{said}{near} ({command} --help)"


def missing(error: Any) -> str:
    """An option that is missing, with its help, which says what may be given; "" for other errors."""
    helps = getattr(getattr(error, "param", None), "help", None)
    if type(error).__name__ != "MissingParameter" or not helps:
        return ""
    return f"{max(error.param.opts, key=len)} is missing: {helps.removesuffix('.')}"


KINDS = {"int": "a whole number", "float": "a number", "bool": "true or false"}


def wrong_value(error: Any) -> str:
    """What was given and what is needed, of a value that typer's checks refuse; "" for other errors."""
    try:
        first = error.__cause__.errors()[0]
        name, given = max(error.param.opts, key=len), first["input"]
    except (AttributeError, IndexError, KeyError, ValueError):
        return ""
    limits, kind = first.get("ctx", {}), first["type"].partition("_")[0]
    choices = re.findall(r"'([^']*)'", first["msg"].partition(" is not one of ")[2])
    if choices:
        return f"{name} is {given!r}{nearest(str(given), choices)}; it must be one of {', '.join(choices)}"
    unit = (error.param.help or "").partition(". ")[0].removesuffix(".")
    if "ge" in limits or "le" in limits:
        limit = f"{limits['ge']:g} or more" if "ge" in limits else f"at most {limits['le']:.12g}"
        return f"{name} is {given}; it must be {limit}. {unit}"
    least, most = (getattr(error.param, end, None) for end in ("min", "max"))
    ends = f", {least:g} or more" if least is not None else f", at most {most:.12g}" if most is not None else ""
    return f"{name} is {given!r}; it must be {KINDS[kind]}{ends}. {unit}".rstrip(" .") if kind in KINDS else ""
