"""The commands for a new adapter: `init` writes one to start from, `check` looks at it before the suite is run."""

import re
import shlex
import sys
from enum import StrEnum
from importlib.machinery import PathFinder
from importlib.resources import files as resources
from keyword import iskeyword
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from ssmspec_ref.errors import OptionError
from ssmspec_ref.options import files

from .checked import checked
from .errors import ConformanceError
from .refusal import FAILED, refused
from .run.again import command
from .run.load import PROGRAM
from .run.open_adapters import Opening
from .run.process import TIMEOUT

ADAPTER = "An adapter that ships with ssmspec, or package.module:factory."
PROGRAMS = "The command of a program that speaks JSON lines."
DAY = 86_400.0
"""The longest time limit, in seconds."""
DEVICE = "Device of the implementation: cpu, cuda, cuda:1, or interpreter (Triton's)."


class Level(StrEnum):
    """What an adapter provides."""

    operations = "operations"
    pool = "pool"
    tree = "tree"
    layer = "layer"
    triton = "triton"
    decoder = "decoder"
    generator = "generator"


LEVELS = (
    "What to test: functions (operations), one over a pool of states, one over trees, a whole layer, a Triton kernel, "
    "a decoder that keeps a state, or a whole engine (generator)."
)


class Recurrence(StrEnum):
    """The recurrence that a starter computes: Mamba-2, or Gated DeltaNet."""

    ssd = "ssd"
    delta = "delta"


def find_here() -> None:
    """Add the working folder to the module search path, after everything installed."""
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)


def names(adapter: list[str] | None, program: list[str] | None) -> tuple[str, ...]:
    """The adapters to open; modules in the working folder are found too. Raises: OptionError if nothing is
    named, or one twice."""
    if not (adapter or program):
        raise OptionError(
            "nothing to test: give --adapter MODULE, --program COMMAND, or --adapter reference for what ssmspec ships"
        )
    for option, given in (("--adapter", adapter or []), ("--program", program or [])):
        if twice := [name for name in given if given.count(name) > 1]:
            raise OptionError(f"{option} {twice[0]} is given twice; give each once")
    find_here()
    return (*(adapter or ()), *(f"{PROGRAM}{command}" for command in program or ()))


def init(
    path: Annotated[Path, typer.Argument(help="The file to write, such as my_adapter.py.")],
    level: Annotated[Level, typer.Option(help=LEVELS)] = Level.operations,
    recurrence: Annotated[
        Recurrence | None, typer.Option(help="For functions and decoders: Mamba-2 (ssd) or Gated DeltaNet (delta).")
    ] = None,
) -> None:
    """Write a commented adapter to start from. It runs, and passes, as it is."""
    if level is Level.generator and recurrence:
        raise OptionError(f"--recurrence is {recurrence.value}, but a generator returns tokens; omit it")
    if recurrence is Recurrence.delta and level not in (Level.operations, Level.decoder):
        raise OptionError(
            f"--recurrence is delta, but --level {level} has a starter for ssd only; omit it, and put your code in its place"
        )
    unused(path)
    starter = level.value if level is Level.generator else f"{recurrence or Recurrence.ssd}_{level}"
    source = resources("conformance.starters").joinpath(f"{starter}.py").read_text(encoding="utf-8")
    put(path, source.replace("MODULE", path.stem))
    found = path.parent.resolve() in [Path(entry).resolve() for entry in (*sys.path, "")]
    folder = "" if found else f"PYTHONPATH={path.parent} "
    told = f"{path} is written; next: {folder}{command()} check --adapter {path.stem}:adapter"
    told += " --device interpreter" if level is Level.triton else ""
    Console(soft_wrap=True, highlight=False).print(told)


def put(path: Path, text: str) -> None:
    """Write a new file. Raises: OptionError if it does not fit; then there is none."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        path.unlink(missing_ok=True)
        raise OptionError(f"{path} cannot be written ({error.strerror}); give a file on a disk with space") from error


def unused(path: Path) -> None:
    """Raises: OptionError for a file that exists, that cannot be written, or whose name is not that of a new module."""
    if path.exists():
        raise OptionError(f"{path} exists; name another file")
    if path.suffix != ".py" or not path.stem.isidentifier() or iskeyword(path.stem):
        fitting = re.sub(r"\W", "_", path.stem) or "my_adapter"
        fitting = f"my_{fitting}.py" if iskeyword(fitting) or not fitting.isidentifier() else f"{fitting}.py"
        raise OptionError(f"{path} is not the name of a Python module; give one such as {fitting}")
    if _installed(path.stem):
        raise OptionError(f"{path.name} would hide the module {path.stem} that is installed; give one such as my_{path.name}")
    files.writable("the file", path)


def _installed(module: str) -> bool:
    """Whether a module of this name is found outside the working folder."""
    here = {str(Path.cwd()), ""}
    elsewhere = [entry for entry in sys.path if entry not in here]
    return module in sys.builtin_module_names or PathFinder.find_spec(module, elsewhere) is not None


def check(
    adapter: Annotated[list[str] | None, typer.Option(help=ADAPTER)] = None,
    program: Annotated[list[str] | None, typer.Option(help=PROGRAMS)] = None,
    device: Annotated[str, typer.Option(help=DEVICE)] = "cpu",
    timeout: Annotated[
        float, typer.Option(min=0.1, max=DAY, help="Time limit of one call of the implementation, in seconds.")
    ] = TIMEOUT,
) -> None:
    """Check an adapter before it is tested: how it is called, what it returns. Exits with 1 if something is wrong."""
    console, wrong, tried = Console(soft_wrap=True, highlight=False), 0, 0
    try:
        with Opening(names(adapter, program), device, True, timeout).open() as adapters:
            for finding in checked(adapters):
                wrong, tried = wrong + (not finding.right), tried + 1
                mark = "[green]ok[/green]    " if finding.right else "[red]wrong[/red] "
                console.print(f"{mark}{escape(f'{finding.subject}: {finding.operation}: {finding.says}')}")
    except ConformanceError as error:
        raise refused(error) from error
    if not tried:
        console.print("[red]wrong[/red] no subject declares an operation; give each a Capability")
    if wrong or not tried:
        raise typer.Exit(FAILED)


def smoke(context: typer.Context) -> None:
    """The old name of `check`; it is refused with the new form."""
    words = shlex.join(["check", *context.args])
    raise OptionError(f"`conform smoke` is now `conform check`, since smoke is a tier; give: {command()} {words}")


def register(app: typer.Typer) -> None:
    """Add these commands to the suite's command line."""
    app.command()(init)
    app.command()(check)
    passed_on = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
    app.command(name="smoke", hidden=True, context_settings=passed_on)(smoke)
