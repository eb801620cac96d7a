"""How a campaign ended, as an exit code: 0 no failure, 1 a failure, 2 it could not begin, 3 an internal error
or a full disk, 130 interrupted."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer
from rich.console import Console

from conformance.errors import ConformanceError, RunBroken
from conformance.progress.lines import StoreError
from conformance.refusal import FULL, INTERRUPTED, broke, refused

from .campaigns.database import DatabaseUnavailable


@contextmanager
def ending(folder: Path) -> Iterator[None]:
    """Turns the reason for the end of a campaign into its exit code. Raises: typer.Exit."""
    try:
        yield
    except (ConformanceError, DatabaseUnavailable, StoreError) as error:
        raise refused(error) from error
    except typer.BadParameter:
        raise
    except KeyboardInterrupt as error:
        told = f"interrupted; the results so far are in {folder}; the same command continues"
        Console(stderr=True).print(told, soft_wrap=True, highlight=False, markup=False)
        raise typer.Exit(INTERRUPTED) from error
    except SystemExit as error:  # an adapter that ends the process must not set the exit code
        raise broke(RuntimeError(f"the adapter ended the process by SystemExit({error.code!r})")) from error
    except OSError as error:
        if error.errno not in FULL:
            raise broke(error) from error
        told = f"{error.filename or folder} cannot be written ({error.strerror})"
        raise refused(RunBroken(f"{told}; free some space, and run the same command again")) from error
    except Exception as error:
        raise broke(error) from error
