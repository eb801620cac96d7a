"""Everything that a run launches, compiled first, by as many processes as there are cores.

Processes are spawned, and import what they run by its module: they cannot import a package's `__main__`.
"""

import importlib
import importlib.util
import os
import re
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stdout
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from perf_gates.gpu.clock import compiling
from perf_gates.gpu.kernels import peers
from perf_gates.gpu.today import loading
from perf_gates.verdicts.measured import TODAY


def module(part: str) -> Any:
    """The module of a part: of a family of kernels, or of whole steps of the engine."""
    folder = next(f for f in ("kernels", "engine") if importlib.util.find_spec(f"perf_gates.gpu.{f}.{part}"))
    return importlib.import_module(f"perf_gates.gpu.{folder}.{part}")


def tasks(parts: list[str], shares: int, like: str = "") -> list[tuple[str, tuple[Any, ...]]]:
    """The cases of the parts; of one with autotuned peers, each share of their configurations."""
    found: list[tuple[str, tuple[Any, ...]]] = []
    for part in parts:
        for case in (case for case in module(part).cases() if re.search(like, str(case))):
            apart = hasattr(module(part), "compile_case")
            found += [(part, (*case, i, shares)) for i in range(shares)] if apart else [(part, case)]
    return found


def compile_task(task: tuple[str, tuple[Any, ...]]) -> str:
    """Launches one case without timing it; its errors are reported when it is measured."""
    part, case = task
    try:
        with compiling(), open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
            getattr(module(part), "compile_case", module(part).timings)(*case)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    except Exception as error:
        return f"{part} {case}: {type(error).__name__}: {error}".split("\n")[0][:200]
    return ""


def compile_all(parts: list[str], folder: Path | None, jobs: int, like: str = "") -> None:
    work = tasks(parts, max(1, jobs - 2), like)
    work.sort(key=lambda task: task[0] != "prefill")
    load = loading.load if parts == [TODAY] else peers.load
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=load, initargs=(folder,)) as pool:
        for said in pool.map(compile_task, work):
            if said:
                print(f"not compiled: {said}", flush=True)
