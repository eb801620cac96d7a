"""Judge every kernel at the shapes of models: `python -m perf_gates.gpu.model_shapes --out FILE`.

Inputs are random, tiles are the launchers' own. Outputs and states of a few rows and heads are compared with the float64
reference within the bound of the declared contract; of all rows every output must be finite; padding rows, other slots,
inputs and everything beside a tensor must keep their bits. Exits with 1 if a check fails.

Under compute-sanitizer: PYTORCH_NO_CUDA_MEMORY_CACHING=1, `--jobs 1 --no-guards --batches 1 2`.
"""

import argparse
import json
import os
import re
import sys
import zlib
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from time import monotonic
from typing import Any

import torch

from perf_gates.gpu.judge.call import Call, Check, Plan

FAMILIES = ("ssd", "delta", "inputs", "attention", "tokens")


@dataclass(frozen=True)
class Verdict:
    """What came of one check. `utilisation` is the largest error over its bound; None where bits were compared."""

    kernel: str
    model: str
    variant: str
    batch: int
    passed: bool
    utilisation: float | None
    message: str = ""


def checks(plan: Plan, only: str = "") -> list[Check]:
    """All of them, or those whose name a pattern matches."""
    found = [c for family in FAMILIES for c in import_module(f"perf_gates.gpu.judge.{family}").checks(plan)]
    return [c for c in found if re.search(only, c.name)]


def judge(check: Check, device: str, guard: int) -> Verdict:
    """Run one check; a failure of any kind is a verdict."""
    named = (check.kernel, check.model, check.variant, check.batch)
    try:
        used = check.run(Call(device, zlib.crc32(check.name.encode()), guard))
    except Exception as error:
        return Verdict(*named, False, None, f"{type(error).__name__}: {error}"[:400])
    return Verdict(*named, True, used or None)


def _judge(index: int, plan: Plan, only: str, device: str, guard: int) -> tuple[int, Verdict]:
    torch.set_num_threads(1)
    return index, judge(checks(plan, only)[index], device, guard)


def verdicts(plan: Plan, only: str, device: str, guard: int, jobs: int, seconds: float) -> Iterator[Verdict]:
    """One after the other, or in processes; what `seconds` leave no time for is not run, and said."""
    todo, start = checks(plan, only), monotonic()
    if jobs == 1:
        for check in todo:
            if monotonic() - start < seconds:
                yield judge(check, device, guard)
            else:
                yield Verdict(check.kernel, check.model, check.variant, check.batch, False, None, "not run: no time left")
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        running = {pool.submit(_judge, i, plan, only, device, guard): i for i in range(len(todo))}
        done: set[int] = set()
        try:
            for future in as_completed(running, timeout=seconds):
                done.add(running[future])
                yield future.result()[1]
        except TimeoutError:
            for process in list(pool._processes.values()):
                process.kill()
            for i, c in enumerate(todo):
                if i not in done:
                    yield Verdict(c.kernel, c.model, c.variant, c.batch, False, None, "not run: no time left")


def table(found: list[Verdict]) -> str:
    """A row for each kernel and model: checks, the largest share of a bound, and what failed."""
    rows = ["| kernel | shape | checks | largest utilisation | verdict |", "|---|---|---|---|---|"]
    for kernel, model in dict.fromkeys((v.kernel, v.model) for v in found):
        own = [v for v in found if (v.kernel, v.model) == (kernel, model)]
        used = [v.utilisation for v in own if v.utilisation is not None]
        failed = sum(not v.passed for v in own)
        most = f"{max(used):.2f}" if used else "exact"
        rows.append(f"| {kernel} | {model} | {len(own)} | {most} | {'pass' if not failed else f'{failed} FAILED'} |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--batches", type=int, nargs="*", default=list(Plan.batches))
    parser.add_argument("--only", default="", help="a pattern over kernel/model/variant/bN")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--seconds", type=float, default=480.0)
    parser.add_argument("--no-guards", action="store_true", help="tensors end where their memory ends")
    a = parser.parse_args()
    from perf_gates.machine import fingerprint

    plan = replace(Plan(), batches=tuple(a.batches))
    found: list[Verdict] = []
    for verdict in verdicts(plan, a.only, "cuda", 0 if a.no_guards else 1024, a.jobs, a.seconds):
        found.append(verdict)
        if not verdict.passed:
            print(f"FAIL {verdict.kernel}/{verdict.model}/{verdict.variant}/b{verdict.batch}: {verdict.message}", flush=True)
    found.sort(key=lambda v: (v.kernel, v.model, v.batch, v.variant))
    report: dict[str, Any] = {"machine": fingerprint(), "verdicts": [asdict(v) for v in found]}
    a.out.write_text(json.dumps(report, indent=1) + "\n")
    print(table(found))
    failed = sum(not v.passed for v in found)
    print(f"{len(found)} checks, {failed} failed")
    sys.exit(1 if failed or not found else 0)


if __name__ == "__main__":
    main()
