"""The supervisor of a worker: it enforces the limits of the worker and all processes started by it, and ends all of them.

    judge --watch--> warden --fork--> worker --> any process it starts, in any session

On Linux the warden is the subreaper of all these processes: one that leaves its parent, its group and its session becomes a
child of the warden. The warden ends all of them when the judge is gone (the watch socket is closed), when the worker has
ended, or when they exceed the memory limit together. The worker dies with the warden. The warden then ends with the worker's
status. On other systems the worker runs without a warden, in a separate process group.

This module imports only the standard library, because the worker is forked before anything else is loaded.
"""

import contextlib
import ctypes
import os
import select
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

SUBREAPER, DEATH_SIGNAL = 36, 1
"""PR_SET_CHILD_SUBREAPER and PR_SET_PDEATHSIG: linux/prctl.h."""
MARK = "SSMSPEC_WORKER"
"""The environment variable that marks the descendants of one worker."""
FILE = 1 << 30
"""Largest file that a worker may write, in bytes."""
MOST = 512
"""Most processes of one worker, including itself."""
LOOK, SCAN = 0.05, 0.5
"""Seconds between checks of the memory of the worker, and of all its processes."""
ENDING = 5.0
"""Seconds within which killed processes must have ended."""
EMPTY = 3
"""Number of consecutive checks without a process after which none is left."""
MEMORY, PROCESSES, ENDED = b"m", b"p", b"."
"""Messages to the judge: too much memory, too many processes; everything has ended."""
HERE = sys.platform == "linux"


def main(watch: int, line: int, memory: int, work: Callable[[int], None]) -> None:
    """Run `work` in a child process, with the socket for answers. `watch` is a socket that the judge holds open; `memory` is
    in bytes."""
    if not HERE:
        work(line)
        return
    _control(SUBREAPER, 1)
    warden, worker = os.getpid(), os.fork()
    if worker == 0:
        os.close(watch)
        _limited(warden, memory)
        work(line)
        return
    os.close(line)
    status = _guarded(watch, worker, memory)
    end_all(warden)
    with contextlib.suppress(OSError):
        os.write(watch, ENDED)
    _end_as(status)


def _control(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _limited(warden: int, memory: int) -> None:
    """Set the limits of a worker; the processes that it starts inherit them."""
    import resource

    _control(DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != warden:  # the warden ended before the line above
        os._exit(1)
    os.setsid()
    for what, most in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, FILE), (resource.RLIMIT_DATA, memory)):
        hard = resource.getrlimit(what)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (most, most))
    with contextlib.suppress(OSError):  # if memory runs out, the kernel ends the worker and not the judge
        Path("/proc/self/oom_score_adj").write_text("1000")


def _guarded(watch: int, worker: int, memory: int) -> int:
    """Wait until the worker ends, or must be ended. Returns its status, or -1 if it is still running."""
    events = select.poll()
    events.register(watch, select.POLLIN)
    with contextlib.suppress(OSError):
        events.register(os.pidfd_open(worker), select.POLLIN)
    scanned = 0.0
    while True:
        found = dict(events.poll(1000 * LOOK))
        if (status := _reaped(worker)) is not None:
            return status
        if watch in found:
            return -1
        told = _over([worker], memory)
        if not told and time.monotonic() > scanned + SCAN:
            scanned = time.monotonic()
            told = _over(list(below(os.getpid())), memory)
        if told:
            with contextlib.suppress(OSError):
                os.write(watch, told)
            return -1


def _reaped(worker: int) -> int | None:
    """Collect the status of every child that has ended; returns the worker's, if it is among them."""
    while (ended := _next()) and ended[0]:
        if ended[0] == worker:
            return ended[1]
    return None


def _next() -> tuple[int, int] | None:
    """A child that has ended, with its status; (0, 0) if none has; None if there is no child."""
    try:
        return os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None


def _over(processes: list[int], memory: int) -> bytes:
    if len(processes) > MOST:
        return PROCESSES
    over = sum(held(p, "status", ("RssAnon:", "RssShmem:")) for p in processes) > memory  # shared pages count for each
    return MEMORY if over and sum(held(p, "smaps_rollup", ("Pss_Anon:", "Pss_Shmem:")) for p in processes) > memory else b""


def held(process: int, told: str, names: tuple[str, ...]) -> int:
    """Bytes held by a process and not backed by a file on disk."""
    try:
        lines = Path(f"/proc/{process}/{told}").read_text().splitlines()
    except OSError:
        return 0
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith(names))


def below(ancestor: int) -> Iterator[int]:
    """Every living descendant of a process."""
    children: dict[int, list[int]] = defaultdict(list)
    for process, parent in living():
        children[parent].append(process)
    left = children[ancestor]
    while left:
        process = left.pop()
        yield process
        left += children[process]


def living() -> Iterator[tuple[int, int]]:
    """Every living process, with its parent."""
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal():
            try:
                state, parent = Path(entry.path, "stat").read_bytes().rpartition(b")")[2].split()[:2]
            except (OSError, ValueError):
                continue
            if state not in (b"Z", b"X"):
                yield int(entry.name), int(parent)


def end_all(ancestor: int) -> None:
    """End every descendant of this process. They are stopped first, so that none starts another one meanwhile.

    Orphans become children of this process, so nothing is left when it has no child.
    """
    until = time.monotonic() + ENDING
    while time.monotonic() < until:
        found = list(below(ancestor))
        for order in (signal.SIGSTOP, signal.SIGKILL):
            for process in found:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(process, order)
        while (ended := _next()) and ended[0]:
            continue
        if ended is None:
            return
        time.sleep(0.002)


def end_marked(mark: str) -> None:
    """End every process with a mark. Used if a warden was killed, to find the processes it supervised.

    A process that is just starting has no environment yet, or is not listed; so several consecutive checks must find none.
    """
    wanted = f"{MARK}={mark}".encode()
    until, empty = time.monotonic() + ENDING, 0
    while HERE and empty < EMPTY and time.monotonic() < until:
        found = [process for process, _ in living() if _carries(process, wanted)]
        empty = 0 if found else empty + 1
        for process in found:
            with contextlib.suppress(OSError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.02)


def _carries(process: int, wanted: bytes) -> bool:
    try:
        return wanted in Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def _end_as(status: int) -> None:
    """End this process with the status of another one."""
    if status >= 0 and os.WIFEXITED(status):
        os._exit(os.WEXITSTATUS(status))
    ended = os.WTERMSIG(status) if status >= 0 else signal.SIGKILL
    if ended not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(ended, signal.SIG_DFL)
    os.kill(os.getpid(), ended)
    os._exit(1)
