"""Every case of an adapter with `graph=replayed`, without a process of its own for the adapter, as a table.

    python -m conformance.suite.graph --adapter ssmspec_fast.adapters.kernels:adapter --device cuda --jobs 14

Exits with 1 if a case fails or stays unknown, with 2 if nothing was tested.
"""

import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from itertools import chain
from multiprocessing import get_context
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from ssmspec_ref.contract import Verdict

from ...errors import ConformanceError
from ...main import run_command
from .alone import Row, shard

EVERY = "*"


def main(
    adapter: Annotated[str, typer.Option(help="The adapter, as for `ssmspec conform run`.")],
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, or interpreter (Triton's).")] = "cpu",
    subject: Annotated[str, typer.Option(help="Only subjects of this name; * matches any text.")] = EVERY,
    operation: Annotated[str, typer.Option(help="Only these operations; * matches any text.")] = EVERY,
    jobs: Annotated[int, typer.Option(min=1, help="Parallel processes, each with the adapter.")] = 1,
) -> None:
    """Capture the operations of an adapter and replay them with other inputs."""
    console, begin = Console(width=160), time.perf_counter()
    shards = [(adapter, device, subject, operation, part, jobs) for part in range(jobs)]
    try:
        if jobs == 1:
            found = shard(*shards[0])
        else:
            with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
                found = list(chain(*pool.map(shard, *zip(*shards, strict=True))))
    except ConformanceError as error:
        console.print(str(error), soft_wrap=True, highlight=False)
        raise typer.Exit(2) from error
    console.print(table(found))
    wrong = [row for row in found if row.verdict is not Verdict.PASS]
    for row in wrong:
        console.print(f"{row.cell[0]}: {row.case}: {row.said}", soft_wrap=True, highlight=False)
    took = time.perf_counter() - begin
    console.print(f"{len(found) - len(wrong)} of {len(found)} cases pass, in {took:.0f} s", highlight=False)
    if wrong or not found:
        raise typer.Exit(1 if wrong else 2)


def table(found: list[Row]) -> Table:
    """Counts by subject, operation and contract."""
    made = Table("subject", "operation", "contract", "pass", "fail", "unknown", "seconds", "where")
    for cell in dict.fromkeys(row.cell for row in found):
        own = [row for row in found if row.cell == cell]
        count = Counter(row.verdict for row in own)
        shown = (str(count[verdict]) for verdict in (Verdict.PASS, Verdict.FAIL, Verdict.UNKNOWN))
        where = ", ".join(dict.fromkeys(row.place for row in own if row.place))
        made.add_row(*cell, *shown, f"{sum(row.seconds for row in own):.2f}", where)
    return made


if __name__ == "__main__":
    sys.exit(run_command(main))
