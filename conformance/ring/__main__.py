"""Compare the kernels of an adapter with the reference over integers mod 2^64, in Triton's interpreter.

    python -m conformance.ring --adapter ssmspec_fast.adapters.kernels:adapter --operation 'ssd.*'

Exits with 1 if an output differs, with 2 if nothing was tested.
"""

import sys
from collections import Counter
from fnmatch import fnmatchcase
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from ssmspec_ref.contract import Verdict

from ..interpreter.device import INTERPRETER, placed
from ..main import run_command
from ..run.load import load
from ..suite import of_operation
from .judge import Compared, cases, judged, oracles


def main(
    adapter: Annotated[str, typer.Option(help="The adapter, as for `ssmspec conform run`.")],
    subject: Annotated[str, typer.Option(help="Only subjects of this name; * matches any text.")] = "*",
    operation: Annotated[str, typer.Option(help="Only these operations; * matches any text.")] = "*",
    tier: Annotated[str, typer.Option(help="smoke, standard or deep.")] = "smoke",
) -> None:
    """Test an adapter's kernels in the ring."""
    table, wrong, total = Table("subject", "operation", "equal", "differ", "not judged", "why"), [], Counter[Verdict]()
    with placed(INTERPRETER) as device:
        for one in load(adapter, device).subjects:
            for name, capability in one.capabilities.items():
                if not (fnmatchcase(one.name, subject) and fnmatchcase(name, operation) and name in oracles()):
                    continue
                specification = of_operation(name)[0]
                found: dict[str, Compared] = {
                    specification.identify(case): judged(specification, capability, case, kernels=True)
                    for case in cases(specification, capability.limits, tier)
                }
                count = Counter(result.verdict for result in found.values())
                why = ", ".join(dict.fromkeys(r.said for r in found.values() if r.verdict is Verdict.UNKNOWN))
                shown = (str(count[verdict]) for verdict in (Verdict.PASS, Verdict.FAIL, Verdict.UNKNOWN))
                table.add_row(one.name, name, *shown, why)
                wrong += [f"{one.name}: {case}: {r.said}" for case, r in found.items() if r.verdict is Verdict.FAIL]
                total += count
    console = Console(width=160)
    console.print(table)
    for said in wrong:
        console.print(said, soft_wrap=True, highlight=False)
    if wrong or not total[Verdict.PASS]:
        raise typer.Exit(1 if wrong else 2)


if __name__ == "__main__":
    sys.exit(run_command(main))
