"""The commands that show cases: `list`, by operation or by adapter, and `explain`."""

from fnmatch import fnmatchcase
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from ssmspec_ref.contract import OPERATIONS, Limits
from ssmspec_ref.options.words import nearest, one_of

from .. import starting
from ..errors import ConformanceError, UnknownCase
from ..refusal import refused
from ..run.open_adapters import Opening
from ..run.plan import Selection, plan
from ..starting import ADAPTER, DEVICE, PROGRAMS
from ..suite import SPECIFICATIONS
from ..suite.specification import TIERS
from .explain import explain


def tier(value: str) -> str:
    """The name of a tier. Raises: OptionError."""
    return one_of("--tier", value, TIERS)


def list_cases(
    size: Annotated[str, typer.Option("--tier", callback=tier, help="smoke, standard or deep.")] = "standard",
    operation: Annotated[str, typer.Option(help="Only these operations; a pattern.")] = "*",
    adapter: Annotated[list[str] | None, typer.Option(help=f"Only what would run of an adapter. {ADAPTER}")] = None,
    program: Annotated[list[str] | None, typer.Option(help=f"The same of a program. {PROGRAMS}")] = None,
    device: Annotated[str, typer.Option(help=DEVICE)] = "cpu",
) -> None:
    """List the cases of a tier, and what each one tests.

    Of an adapter those that would run are listed, but for those that are drawn when a run starts.
    """
    console = Console(soft_wrap=True, highlight=False)
    try:
        found = _of_adapters(Opening(starting.names(adapter, program), device), size, operation) if adapter or program else []
    except ConformanceError as error:
        raise refused(error) from error
    if not (adapter or program):
        chosen = [specification for specification in SPECIFICATIONS if fnmatchcase(specification.operation, operation)]
        if not chosen:
            near = nearest(operation, OPERATIONS)
            told = f"{operation!r} is not an operation{near}; the operations are {', '.join(OPERATIONS)}"
            raise refused(UnknownCase(told))
        found = [("", one.identify(case), one.source(case)) for one in chosen for case in one.cases(size, Limits())]
    for who, identity, source in found:
        console.print(Text(f"{who}{identity}  ").append(source, style="dim"))
    count = f"{len(found)} case{'' if len(found) == 1 else 's'}"
    Console(stderr=True).print(Text(f"{count} of the tier {size}", style="dim"), soft_wrap=True)


def _of_adapters(opening: Opening, tier: str, operation: str) -> list[tuple[str, str, str]]:
    """What would run of some adapters: the subject of each case, its id and its source."""
    with opening.open() as adapters:
        jobs, _ = plan(adapters, Selection(tier, operation=operation))
        return [(f"{job.subject.name}  ", job.identity, job.specification.source(job.case)) for job in jobs if not job.drawn]


def explain_case(case: Annotated[str, typer.Argument(help="The id of a case, or an operation such as ssd.step.")]) -> None:
    """Say what a case id means and what your function receives in it, or how an operation is called."""
    try:
        parts = explain(case)
    except ConformanceError as error:
        raise refused(error) from error
    wide = max(len(part) for part, _ in parts)
    for part, said in parts:
        Console(soft_wrap=True, highlight=False).print(Text(f"{part:<{wide}}  ", style="bold").append(said, style="not bold"))


def register(app: typer.Typer) -> None:
    """Add these commands to the suite's command line."""
    app.command(name="list")(list_cases)
    app.command(name="explain")(explain_case)
