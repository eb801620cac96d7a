"""The commands for a new adapter: `init` writes one to start from, `smoke` checks it before it is judged."""

import sys
from enum import StrEnum
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from .errors import ConformanceError
from .load import PROGRAM
from .opening import Opening
from .process import TIMEOUT
from .refusal import FAILED, REFUSED, refused
from .report import python_command
from .smoke import smoke as findings

ADAPTER = "An adapter that ships, or package.module:factory."
PROGRAMS = "The command of a program that speaks JSON lines."
DEVICE = "Where the implementation computes: cpu, cuda, interpreter (Triton's)."


class Level(StrEnum):
    """What an adapter hands over."""

    operations = "operations"
    decoder = "decoder"
    generator = "generator"


class Recurrence(StrEnum):
    """What the operations of a starter compute: Mamba-2, or Gated DeltaNet."""

    ssd = "ssd"
    delta = "delta"


def find_here() -> None:
    """Find the modules of the working folder too, behind all that is installed."""
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)


def names(adapter: list[str] | None, program: list[str] | None) -> tuple[str, ...]:
    """What is to be opened; modules of the working folder are found."""
    find_here()
    return (*(adapter or ()), *(f"{PROGRAM}{command}" for command in program or ()))


def init(
    path: Annotated[Path, typer.Argument(help="The file to write, such as my_adapter.py.")],
    level: Annotated[Level, typer.Option(help="Functions; what keeps a state; a whole engine.")] = Level.operations,
    recurrence: Annotated[
        Recurrence | None, typer.Option(help="Of functions and states: Mamba-2's; Gated DeltaNet's.")
    ] = None,
) -> None:
    """Write a commented adapter to start from. It runs, and passes, as it is."""
    if level is Level.generator and recurrence:
        why = f"--recurrence came as {recurrence.value}, but a generator hands over tokens; leave it out"
        Console(stderr=True).print(Text(why, style="red"), soft_wrap=True)
        raise typer.Exit(REFUSED)
    if path.exists() or path.suffix != ".py" or not path.stem.isidentifier():
        why = "exists; name another file" if path.exists() else "names no module; give one such as my_adapter.py"
        Console(stderr=True).print(Text(f"{path} {why}", style="red"), soft_wrap=True)
        raise typer.Exit(REFUSED)
    if not path.parent.is_dir():
        Console(stderr=True).print(Text(f"{path.parent} is no folder; make it first", style="red"), soft_wrap=True)
        raise typer.Exit(REFUSED)
    starter = level.value if level is Level.generator else f"{recurrence or Recurrence.ssd}_{level}"
    source = files("conformance.starters").joinpath(f"{starter}.py").read_text(encoding="utf-8")
    path.write_text(source.replace("MODULE", path.stem), encoding="utf-8")
    folder = "" if path.parent == Path() else f"PYTHONPATH={path.parent} "
    told = f"{path} is written; next: {folder}{python_command()} smoke --adapter {path.stem}:adapter"
    Console(soft_wrap=True, highlight=False).print(told)


def smoke(
    adapter: Annotated[list[str] | None, typer.Option(help=ADAPTER)] = None,
    program: Annotated[list[str] | None, typer.Option(help=PROGRAMS)] = None,
    device: Annotated[str, typer.Option(help=DEVICE)] = "cpu",
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds for one call of the implementation.")] = TIMEOUT,
) -> None:
    """Check an adapter before it is judged: how it is called, what it returns. Exits with 1 if something is wrong."""
    console, wrong = Console(soft_wrap=True, highlight=False), 0
    try:
        with Opening(names(adapter, program), device, True, timeout).open() as adapters:
            for finding in findings(adapters):
                wrong += not finding.right
                mark = "[green]ok[/green]    " if finding.right else "[red]wrong[/red] "
                console.print(f"{mark}{escape(f'{finding.subject}: {finding.operation}: {finding.says}')}")
    except ConformanceError as error:
        raise refused(error) from error
    if wrong:
        raise typer.Exit(FAILED)


def register(app: typer.Typer) -> None:
    """Add the commands to the one of the suite."""
    app.command()(init)
    app.command()(smoke)
