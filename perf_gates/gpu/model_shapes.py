"""Tests every kernel at the shapes of models: `python -m perf_gates.gpu.model_shapes --out FILE`.

Inputs are random, tiles are the launchers' own. Outputs and states of a few rows and heads are compared with the float64
reference within the bound of the declared contract; every output of all rows must be finite; padding rows, other slots,
inputs and memory next to a tensor must keep their bits. Exits with 1 if a check fails.
"""

import os
import re
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from time import monotonic
from typing import Annotated, Any

import torch
import typer

from conformance.main import run_command
from perf_gates import files
from perf_gates.digest import record
from perf_gates.gpu.judge import further
from perf_gates.gpu.judge.call import Call, Check, Plan
from perf_gates.losslessness.workers import Failed, spread
from perf_gates.machine import fingerprint, kernels_hash, need_gpu
from perf_gates.report.kernel_table import NOT_RUN, conformance

FAMILIES = ("recurrences", "attention", "tokens", "projections")
GUARD = 1024
"""Elements of NaN on both sides of every tensor."""


@dataclass(frozen=True)
class Verdict:
    """The result of one check, of the kernels whose `kernels_hash` is `code`. `utilisation` is the largest error over its
    bound; None if bits were compared."""

    kernel: str
    model: str
    variant: str
    batch: int
    passed: bool
    utilisation: float | None
    message: str = ""
    code: str = ""


def checks(plan: Plan, only: str = "") -> list[Check]:
    """All of them, or those whose name a pattern matches."""
    found = [c for family in FAMILIES for c in import_module(f"perf_gates.gpu.judge.{family}").checks(plan)]
    if plan.further:
        found += [c for c in checks(further.PLAN) if c.name in further.NAMES]
    return [c for c in found if re.search(only, c.name)]


def judge(check: Check, device: str, guard: int) -> Verdict:
    """Runs one check; a failure of any kind is a verdict."""
    named = (check.kernel, check.model, check.variant, check.batch)
    try:
        used = check.run(Call(device, zlib.crc32(check.name.encode()), guard))
    except Exception as error:
        return Verdict(*named, False, None, f"{type(error).__name__}: {error}".split("\n")[0][:400])
    return Verdict(*named, True, used or None)


def verdicts(plan: Plan, only: str, device: str, guard: int, jobs: int, seconds: float) -> Iterator[Verdict]:
    """One after the other, or in processes, which are replaced if a kernel breaks their GPU context; checks that do not fit
    into `seconds` are not run, and reported."""
    todo, until = checks(plan, only), monotonic() + seconds
    if jobs > 1:
        left = dict(enumerate(todo))
        working = partial(worker, plan, only, device, guard)
        for index, answer in spread(list(left), working, min(jobs, len(todo)), lambda _: None, until):
            check = left.pop(index)
            yield lost(check, answer.reason) if isinstance(answer, Failed) else answer
        yield from (lost(check, NOT_RUN) for check in left.values())
        return
    for check in todo:
        yield judge(check, device, guard) if monotonic() < until else lost(check, NOT_RUN)


def lost(check: Check, why: str) -> Verdict:
    return Verdict(check.kernel, check.model, check.variant, check.batch, False, None, why)


def worker(plan: Plan, only: str, device: str, guard: int) -> Callable[[int], Verdict | Failed]:
    """Runs a check by its number, in its own process."""
    torch.set_num_threads(1)
    os.environ["CUDA_LAUNCH_BLOCKING"] = "1"
    todo = checks(plan, only)

    def judged(index: int) -> Verdict | Failed:
        verdict = judge(todo[index], device, guard)
        return Failed(verdict.message, broken=True) if "CUDA error" in verdict.message else verdict

    return judged


def merged(parts: list[Path]) -> dict[str, Any]:
    """Runs of one kind of machine merged: the last verdict of each check on its kernel's present code; a check that was not
    run counts only if no part ran it.

    Raises: ValueError for parts of another GPU or of other versions.
    """
    reports = [files.read(part) for part in parts]
    kinds = {tuple(report["machine"][name] for name in ("gpu", "torch", "triton")) for report in reports}
    if len(kinds) > 1:
        raise ValueError(f"the parts were made on {sorted(kinds)}; run them again on one kind of machine")
    found = {}
    for v in (v for report in reports for v in report["verdicts"]):
        name = v["kernel"], v["model"], v["batch"], v["variant"]
        if not record.revision_fault(v["code"], v["kernel"]) and not (name in found and v["message"].startswith("not run")):
            found[name] = v
    return {"machine": reports[-1]["machine"], "verdicts": [found[name] for name in sorted(found)]}


def finish(report: dict[str, Any], out: Path) -> int:
    """Writes the report, and prints its table. 1 if a check failed or none was run."""
    files.write(out, report)
    found = report["verdicts"]
    failed = sum(not v["passed"] for v in found)
    print("\n".join(conformance(found)))
    print(f"{len(found)} checks, {failed} failed")
    return 1 if failed or not found else 0


def main(
    out: Annotated[Path, typer.Option(help="The file of the results.")],
    batches: Annotated[list[int] | None, typer.Option(metavar="N ..", help="Batches of the checks.")] = None,
    windows: Annotated[list[int] | None, typer.Option(metavar="N ..", help="Tokens of their windows.")] = None,
    nodes: Annotated[list[int] | None, typer.Option(metavar="N ..", help="Nodes of their trees.")] = None,
    only: Annotated[str, typer.Option(help="A pattern over kernel/model/variant/bN.")] = "",
    jobs: Annotated[int, typer.Option(help="Processes at once.")] = os.cpu_count() or 1,
    seconds: Annotated[float, typer.Option(help="After which no check begins.")] = 480.0,
    merge: Annotated[
        list[Path] | None, typer.Option(metavar="FILE ..", exists=True, help="Parts of one run, to write as one.")
    ] = None,
) -> int:
    if merge:
        return finish(merged(merge), out)
    need_gpu()
    plan = Plan(
        batches=tuple(batches or Plan.batches),
        windows=tuple(windows or Plan.windows),
        nodes=tuple(nodes or Plan.nodes),
        further=True,
    )
    found: list[Verdict] = []
    for verdict in verdicts(plan, only, "cuda", GUARD, jobs, seconds):
        found.append(verdict)
        if not verdict.passed:
            print(f"FAIL {verdict.kernel}/{verdict.model}/{verdict.variant}/b{verdict.batch}: {verdict.message}", flush=True)
    found.sort(key=lambda v: (v.kernel, v.model, v.batch, v.variant))
    coded = [asdict(v) | {"code": kernels_hash()} for v in found]
    return finish({"machine": fingerprint(), "verdicts": coded}, out)


if __name__ == "__main__":
    sys.exit(run_command(main))
