"""The seconds that processes work: on a processor or asleep, but not those in which they wait for a processor.

A machine that is busy with something else makes a call last longer, and leaves these seconds as they are. So a search that is
limited by them finds the same on a busy machine.
"""

import contextlib
import os
import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from .warden import HERE, below

TICK = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
"""Parts of a second in which the system counts the processor time of another process."""


@dataclass(frozen=True)
class Used:
    """Of processes: their seconds on a processor, and those in which they waited for one, None if the system does not say."""

    processor: float
    waiting: float | None = None


def used_here() -> Used:
    """What this process and everything that it started have used."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = list(below(os.getpid())) if HERE and _has_children() else []
    own = time.process_time() + ended.ru_utime + ended.ru_stime
    return Used(own + sum(map(_processor, started)), _waiting([os.getpid(), *started]))


def used_by(process: int) -> Used:
    """What another process and everything that it started have used; nothing on a system that does not say."""
    every = [process, *below(process)] if HERE else []
    return Used(sum(map(_processor, every)), _waiting(every))


def worked(before: Used, after: Used, wall: float) -> float:
    """The seconds of work between two readings, `wall` seconds apart: those on a processor, or if they are more, those that
    passed without waiting for one."""
    processor = max(0.0, after.processor - before.processor)
    if before.waiting is None or after.waiting is None:
        return processor
    return max(processor, wall - max(0.0, after.waiting - before.waiting))


class Account:
    """The seconds of work of this process, and of the processes and servers that it calls: these are added by their calls."""

    def __init__(self) -> None:
        self.called = 0.0

    @property
    def seconds(self) -> float:
        return time.process_time() + self.called

    def add(self, seconds: float) -> None:
        self.called += seconds

    @contextlib.contextmanager
    def exchange(self, process: int | None) -> Iterator[None]:
        """Add the work of a process during the block; None is a server elsewhere, of which only the time to its answer is
        known."""
        began, before = time.monotonic(), None if process is None else used_by(process)
        try:
            yield
        finally:
            wall = time.monotonic() - began
            self.add(wall if before is None or process is None else worked(before, used_by(process), wall))


SPENT = Account()


def _has_children() -> bool:
    """Whether this process has a child, alive or not yet waited for."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _processor(process: int) -> float:
    """Seconds of a process on a processor, with those of its children that have ended: proc_pid_stat(5)."""
    with contextlib.suppress(OSError), open(f"/proc/{process}/stat", "rb") as told:
        return sum(map(int, told.read().rpartition(b")")[2].split()[11:15])) / TICK
    return 0.0


def _waiting(processes: list[int]) -> float | None:
    """Seconds in which the threads of processes waited for a processor; None if the system does not count them."""
    if not _counted():
        return None
    total = 0
    for process in processes:
        with contextlib.suppress(OSError):  # it has ended
            for thread in os.listdir(f"/proc/{process}/task"):
                total += _scheduled(f"/proc/{process}/task/{thread}/schedstat")[1]
    return total / 1e9


def _scheduled(path: str) -> tuple[int, int]:
    """Nanoseconds of a thread on a processor, and waiting for one (the kernel's sched-stats.rst); 0 if it ended."""
    try:
        with open(path, "rb") as told:
            processor, waiting, _ = told.read().split()
    except (OSError, ValueError):
        return 0, 0
    return int(processor), int(waiting)


@cache
def _counted() -> bool:
    """Whether the system counts how long a thread waits; one that does not says 0 of everything."""
    return _scheduled("/proc/self/schedstat")[0] > 0
