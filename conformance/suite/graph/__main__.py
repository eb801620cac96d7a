"""Every case of an adapter with `graph=replayed`, in this process, as a table.

    python -m conformance.suite.graph --adapter ssmspec_fast.adapters.kernels:adapter --device cuda

Exits with 1 if a case fails or stays unknown, with 2 if nothing was tested.
"""

import time
from collections import Counter
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from ssmspec_ref.contract import Verdict

from ...errors import ConformanceError
from ...interpreter.device import placed
from ...judge.verdict import Judgement, judge
from ...run.load import load
from ...run.plan import Job, Selection, plan
from .replayed import replayed


def main(
    adapter: Annotated[str, typer.Option(help="The adapter, as for `ssmspec conform run`.")],
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, or interpreter (Triton's).")] = "cpu",
    subject: Annotated[str, typer.Option(help="Only subjects of this name; * matches any text.")] = "*",
    operation: Annotated[str, typer.Option(help="Only these operations; * matches any text.")] = "*",
) -> None:
    """Capture the operations of an adapter and replay them with other inputs."""
    console = Console(width=160)
    try:
        with placed(device) as place:
            jobs, _ = plan({adapter: load(adapter, place)}, Selection("standard", subject, operation))
            found = [timed(job) for job in jobs if replayed(job.case)]
    except ConformanceError as error:
        console.print(str(error), soft_wrap=True, highlight=False)
        raise typer.Exit(2) from error
    table = Table("subject", "operation", "contract", "pass", "fail", "unknown", "seconds", "where")
    for cell in dict.fromkeys(job.group for job, *_ in found):
        own = [(judgement, seconds) for job, judgement, seconds in found if job.group == cell]
        count, (_, name, contract, of) = Counter(judgement.verdict for judgement, _ in own), cell
        shown = (str(count[verdict]) for verdict in (Verdict.PASS, Verdict.FAIL, Verdict.UNKNOWN))
        where = ", ".join(dict.fromkeys(judgement.place for judgement, _ in own if judgement.place))
        table.add_row(name, of, contract, *shown, f"{sum(seconds for _, seconds in own):.2f}", where)
    console.print(table)
    wrong = [(job, judgement) for job, judgement, _ in found if judgement.verdict is not Verdict.PASS]
    for job, judgement in wrong:
        console.print(
            f"{job.subject.name}: {job.identity}: {judgement.kind}: {judgement.message}", soft_wrap=True, highlight=False
        )
    console.print(f"{len(found) - len(wrong)} of {len(found)} cases pass, in {sum(s for *_, s in found):.1f} s")
    if wrong or not found:
        raise typer.Exit(1 if wrong else 2)


def timed(job: Job) -> tuple[Job, Judgement, float]:
    """A case, its judgement, and its seconds."""
    begin = time.perf_counter()
    return job, judge(job.specification, job.capability, job.case), time.perf_counter() - begin


if __name__ == "__main__":
    typer.run(main)
