"""How a command that cannot be carried out ends: the reason in one line on standard error, and the exit code."""

import traceback
from collections.abc import Iterable
from difflib import get_close_matches

import typer
from rich.console import Console
from rich.text import Text

from .errors import RunBroken

FAILED, REFUSED, BROKEN, INTERRUPTED = 1, 2, 3, 130
"""Exit codes: something tested failed, stayed unknown or became worse; the command could not be carried out; the suite itself
failed; it was interrupted."""

ALSO = {"fp16": "float16", "fp32": "float32", "fp64": "float64", "bf16": "bfloat16"}
"""Short names of data types, and the names that PyTorch gives them."""


def nearest(given: str, choices: Iterable[str]) -> str:
    """A question with the nearest choice, such as (did you mean 'cuda'?); "" if none is near."""
    folded = {choice.lower(): choice for choice in choices if choice != given}
    found = get_close_matches(ALSO.get(given.lower(), given.lower()), folded, 1, 0.6)
    return f" (did you mean {folded[found[0]]!r}?)" if found else ""


def refused(error: Exception) -> typer.Exit:
    """Print an error with its name and text, without markup, and return the exit to raise."""
    Console(stderr=True).print(Text.assemble((type(error).__name__, "red"), f": {error}"), soft_wrap=True)
    return typer.Exit(BROKEN if isinstance(error, RunBroken) else REFUSED)


def broke(error: Exception) -> typer.Exit:
    """Print an unexpected error and return the exit to raise. It is a bug of ours, not a verdict on an implementation."""
    traceback.print_exception(error)
    told = f"ssmspec itself broke ({type(error).__name__}); this is not a verdict, and the report is unfinished"
    Console(stderr=True).print(Text(told, style="red"), soft_wrap=True)
    return typer.Exit(BROKEN)
