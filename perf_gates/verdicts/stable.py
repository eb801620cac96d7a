"""Whether repeated runs of the core set agree: `python -m perf_gates.verdicts.stable FILE .. --out FOLDER`.

A row is a pair: the smallest and the largest ratio of all runs, their verdicts by the current best in `gates.toml`, and
the verdicts with a planted delay, by the ratio of the same run, which must all be FAIL.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from conformance.main import run_command

from ..files import head, read, write
from ..gpu.paired_timing import Pair, TimeGate
from ..report.page_section import PageSection
from .gates import Core, Limits, load

FILE = "core.json"
MADE = PageSection("core")


def gathered(files: Sequence[Path]) -> dict[str, Any]:
    """What pytest-benchmark recorded in every run, by pair; and the machine of the first."""
    pairs: dict[str, list[dict[str, Any]]] = {}
    machine: dict[str, Any] = {}
    for file in files:
        for benchmark in read(file)["benchmarks"]:
            told = benchmark["extra_info"]
            if "ratio" not in told:
                continue  # the other side of a pair
            machine = machine or told["machine"]
            pairs.setdefault(told["name"], []).append(
                {name: told[name] for name in ("ratio", "error", "best", "verdict")}
                | {"delayed": told["delayed"]["ratio"], "delayed_verdict": told["delayed"]["verdict"]}
            )
    return {"machine": machine, "runs": len(files), "pairs": pairs}


def with_current_best(held: dict[str, Any], limits: Limits, core: Sequence[Core]) -> dict[str, Any]:
    """The same with the verdicts by the current best ratios."""
    best = {pair.name: pair.best for pair in core}

    def again(run: dict[str, Any], name: str) -> dict[str, Any]:
        own = run["best"] if best[name] is None else best[name]
        return run | {"best": own, "verdict": "unknown" if own is None else verdict(run, own, limits)}

    pairs = {name: [again(run, name) for run in runs] for name, runs in held["pairs"].items()}
    return held | {"pairs": pairs}


def verdict(run: dict[str, Any], best: float, limits: Limits) -> str:
    pair = Pair("", "", run["ratio"], run["error"], (), ())
    return TimeGate("", best, limits.regression, limits.noise).verdict(pair)


def faults(held: dict[str, Any], least: int = 10) -> Iterator[str]:
    """Pairs with too few runs, with different verdicts, and with missed delays."""
    for name, runs in held["pairs"].items():
        if len(runs) < least:
            yield f"{name}: {len(runs)} runs, fewer than {least}"
        verdicts = sorted({run["verdict"] for run in runs})
        if verdicts != ["pass"]:
            yield f"{name}: {', '.join(verdicts)}"
        if missed := sum(run["delayed_verdict"] != "FAIL" for run in runs):
            yield f"{name}: a delay was missed in {missed} of {len(runs)} runs"


def table(held: dict[str, Any]) -> Iterator[str]:
    yield f"{held['runs']} runs of the core set, one after the other, on one {held['machine']['gpu']}:"
    yield ""
    yield from head("pair | best | ratios | largest error | verdicts | with 8 % more | verdicts")
    for name, runs in held["pairs"].items():
        ratios, delayed = ([run[key] for run in runs] for key in ("ratio", "delayed"))
        said, caught = (", ".join(sorted({run[key] for run in runs})) for key in ("verdict", "delayed_verdict"))
        error = max(run["error"] for run in runs)
        spans = [f"{min(x):.3f} to {max(x):.3f}" for x in (ratios, delayed)]
        yield f"| {name} | {runs[0]['best'] or 'none'} | {spans[0]} | {error:.2%} | {said} | {spans[1]} | {caught} |"


def main(
    files: Annotated[list[Path], typer.Argument(exists=True, help="What pytest-benchmark wrote, a file for each run.")],
    out: Annotated[Path, typer.Option(help="The folder of the results.")],
    page: Annotated[Path, typer.Option(help="The page to write.")] = Path("docs/performance.md"),
) -> int:
    gates = load()
    held = with_current_best(gathered(files), gates.limits, gates.core)
    write(out / FILE, held)
    MADE.write(page, "\n".join(table(held)))
    found = list(faults(held))
    print("\n".join(found) or f"{held['runs']} runs agree")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(run_command(main))
