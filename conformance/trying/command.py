"""The command `ssmspec conform try`."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from ssmspec_ref.errors import OptionError
from ssmspec_ref.options.words import ALSO, one_of

from .. import starting
from ..run.again import command
from . import answer, search
from .layouts import Guess, guesses, operations, read_pins
from .reading import Function, function, matchings
from .search import Tried
from .source import Outputs, source
from .spellings import FAMILIES

OPERATIONS = tuple(name for family in FAMILIES for name in operations(family))
DTYPES = ("fp32", "fp64", "bf16", "fp16")
SHOWN = 4
"""Guesses among which to choose, at most."""


def attempt(
    context: typer.Context,
    target: Annotated[str, typer.Argument(metavar="MODULE:FUNCTION", help="The function; or FILE.py:FUNCTION.")],
    out: Annotated[Path | None, typer.Option(help="The adapter to write. Default: try_FUNCTION.py.")] = None,
    operation: Annotated[
        str | None, typer.Option(help="The operation that it computes, such as ssd.scan or delta.step.")
    ] = None,
    layout: Annotated[
        list[str] | None, typer.Option(help="The axes of an argument, NAME=AXES, such as x=b,d,t. May be repeated.")
    ] = None,
    dtype: Annotated[str, typer.Option(help=f"The type of its inputs: {', '.join(DTYPES)}.")] = "fp32",
    yes: Annotated[bool, typer.Option("--yes", help="Take the first answer to each question; never wait.")] = False,
    no_run: Annotated[bool, typer.Option("--no-run", help="Write the adapter only.")] = False,
) -> None:
    """Test a function without an adapter: read its signature, find its layouts by drawn cases, write an adapter and run it.

    Layouts that names leave open are tried, and compared with the float64 reference. Exit codes are those of `run`.
    """
    console = Console(soft_wrap=True, highlight=False, markup=False)
    one_of("--dtype", dtype, DTYPES)
    if operation is not None:
        one_of("--operation", operation, OPERATIONS)
    starting.find_here()
    of = function(target)
    path = out or Path(f"try_{of.name.replace('.', '_')}.py")
    starting.unused(path)
    results = _results(of, operation, read_pins(of, layout or []), dtype)
    chosen = _chosen(console, of, results, dtype, yes)
    text = source(of, chosen.guess, dtype, chosen.outputs or _as_the_reference(chosen.guess), path)
    starting.put(path, text)
    words = ["run", "--adapter", f"{path.stem}:adapter", "--tier", "smoke"]
    folder = "" if path.parent.resolve() == Path.cwd() else f"PYTHONPATH={path.parent} "
    console.print(f"{path} is written; {'next' if no_run else 'it runs'}: {folder}{command()} {' '.join(words)}")
    if not no_run:
        sys.path.insert(0, str(path.parent.resolve()))
        raise typer.Exit(_run(context, words))


def _run(context: Any, words: list[str]) -> int:
    """Run the suite's command line, and return its exit code."""
    return int(context.parent.command.main(args=words, prog_name="ssmspec conform", standalone_mode=False) or 0)


def _results(of: Function, operation: str | None, pins: dict[str, str], dtype: str) -> list[Tried]:
    """Every guess that was tried. Raises: OptionError if the signature is that of no recurrence."""
    found: list[Tried] = []
    for framework in of.frameworks:
        if framework == "numpy" and not hasattr(np, ALSO[dtype]):
            raise OptionError(
                f"--dtype is bf16, which NumPy does not have, and {of.name} takes NumPy arrays; give fp32 or fp16"
            )
        found += search.tried(of, _guesses(of, operation, pins, framework), dtype)
        if any(one.right for one in found):
            break
    if not found:
        among = f"the inputs of {operation}" if operation else f"the inputs of {', '.join(FAMILIES)}"
        raise OptionError(
            f"{of.listed} does not have {among}; rename its arguments as in docs/how-to/try.md, or write an adapter: "
            f"{command()} init my_adapter.py"
        )
    return found


def _guesses(of: Function, operation: str | None, pins: dict[str, str], framework: str) -> Iterator[Guess]:
    for name in OPERATIONS:
        if operation in (None, name):
            for matching in matchings(of, name.partition(".")[0]):
                yield from guesses(of, matching, name, pins, framework)


def _chosen(console: Console, of: Function, results: list[Tried], dtype: str, yes: bool) -> Tried:
    """The guess to write: the one that fits, one that is chosen among several, or the nearest if that is wanted.

    Raises: OptionError if a question has no answer, because there is no terminal.
    """
    fits = search.best(results)
    one = fits[0] if fits else search.nearest(results)
    for line in answer.read(of, one, dtype):
        console.print(line)
    if not fits and one.reached == search.NO_STATE:
        raise OptionError(f"{of.listed}: {one.said}")
    if not fits:
        console.print(f"None of {len(results)} ways to call it fits. This guess is the nearest: it {answer.verdict(one)}")
        _wanted(yes)
        return one
    if len(fits) > 1:
        one = fits[_number(console, fits, yes)]
    console.print(answer.verdict(one))
    if (other := search.doubtful(one, results)) is not None:
        console.print(answer.doubt(one, other))
    for line in answer.unknown(of, one.guess, dtype):
        console.print(line)
    return one


def terminal() -> bool:
    """Whether there is somebody to ask."""
    return sys.stdin.isatty()


def _wanted(yes: bool) -> None:
    """Ask whether to write the adapter of a guess that does not fit."""
    if yes:
        return
    if not terminal():
        raise OptionError(
            "no guess fits, and there is no terminal to ask; give --yes to write the adapter of the nearest and see where it "
            "fails, or --layout NAME=AXES if an axis is read wrongly"
        )
    if not typer.confirm("Write the adapter of this guess, to see where it fails?", default=True):
        raise OptionError("no guess fits; give --layout NAME=AXES for what is read wrongly, or --operation")


def _number(console: Console, fits: list[Tried], yes: bool) -> int:
    """Which of several guesses is meant."""
    shown = fits[:SHOWN]
    console.print(f"{len(fits)} ways to call it fit in all drawn cases:")
    for number, said in enumerate(answer.differing(shown), start=1):
        console.print(f"  {number}  {said}")
    if yes:
        return 0
    if not terminal():
        given = "; ".join(f"{answer.flags(one, shown)} for {n}" for n, one in enumerate(shown, start=1))
        raise OptionError(f"several guesses fit, and there is no terminal to ask; give {given}; or --yes for the first")
    number = int(typer.prompt("Which one is meant?", type=int))
    if not 1 <= number <= len(shown):
        raise OptionError(f"{number} is not one of 1 to {len(shown)}; run the command again")
    return number - 1


def _as_the_reference(guess: Guess) -> Outputs:
    """The outputs of a guess that could not be called: as the reference returns them."""
    return Outputs("returned[0]", guess.output_axes, "returned[1]", guess.source_axes(guess.matching.of.state))


def register(app: typer.Typer) -> None:
    """Add this command to the suite's command line."""
    app.command(name="try")(attempt)
