"""How many processes run the cases: as many as there are cores, memory and cases for."""

import os
from contextlib import suppress
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from ssmspec_ref.options.memory import GIB

from .memory import allowed

QUOTA, OLDER = Path("/sys/fs/cgroup/cpu.max"), Path("/sys/fs/cgroup/cpu")
LEAST = GIB
"""Bytes of memory without which no further worker is started: of PyTorch, and of what an adapter holds."""
CASES = 60
"""Cases for which a further process is worth its start, which takes as long as some 50 cases."""
ON_A_GPU = 4
"""Most processes with one GPU, whose memory they share: each has a context of half a gigabyte."""


@dataclass(frozen=True)
class Parallel:
    """The number of processes, the bytes of memory that each worker may take, and why there are fewer than cores ("")."""

    count: int
    memory: int
    why: str = ""


def cores() -> int:
    """The cores that this process may use: those of its affinity, and no more than the quota of its container."""
    try:
        found = len(os.sched_getaffinity(0))
    except AttributeError:  # a system without affinity
        found = os.cpu_count() or 1
    return max(1, ceil(min(found, quota())))


def quota() -> float:
    """The processor seconds a second that the container may take; inf without a limit."""
    with suppress(OSError, ValueError):
        most, period = QUOTA.read_text().split()
        return float("inf") if most == "max" else int(most) / int(period)
    with suppress(OSError, ValueError):
        most, period = ((OLDER / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return int(most) / int(period) if int(most) > 0 else float("inf")
    return float("inf")


def of_a_worker(memory: float | None, adapters: int, elsewhere: bool) -> int | None:
    """The bytes of a worker where one process has one for each adapter; None is a part of the memory of the machine where it
    starts. A worker on a node of a cluster, `elsewhere`, is the only one of its task."""
    if elsewhere:
        return None if memory is None else allowed(memory)
    return allowed(memory) // adapters


def parallel(asked: int | None, memory: float | None, cases: int, adapters: int, device: str) -> Parallel:
    """The processes of a run: `asked` of them, or as many as there are cores and cases for. Each has a worker for each
    adapter, and the workers share the memory of the run: `memory` GiB, or by default a part of the machine's."""
    whole = allowed(memory)
    if asked is not None:
        return Parallel(asked, whole // (asked * adapters))
    most = min(cores(), ON_A_GPU) if device.startswith("cuda") else cores()
    count = min(most, max(1, cases // CASES))
    if count > (fit := max(1, whole // (LEAST * adapters))):
        why = (
            f"--jobs {fit}, not {count}: the memory of the run is {whole / GIB:.3g} GiB, and each process may need "
            f"{LEAST * adapters / GIB:.3g}; raise --memory or give --jobs"
        )
        return Parallel(fit, whole // (fit * adapters), why)
    return Parallel(count, whole // (count * adapters))
