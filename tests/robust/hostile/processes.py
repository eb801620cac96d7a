"""Attacks by processes: they hang, end, multiply, fill the memory, and turn on who watches them."""

import os
import re
import signal
import sys
import time
from typing import Any

import numpy as np

from tests.robust.hostile.corpus import attack

CHUNK = 1 << 27
"""Bytes taken at a time."""


def detached(work: Any = lambda: time.sleep(600)) -> None:
    """Do something in a process of a session of its own, that nobody waits for."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            work()
        os._exit(0)


def eat() -> None:
    held = []
    while True:
        held.append(np.ones(CHUNK // 8))
        time.sleep(0.02)


@attack("timeout", said="no answer within", quick=True)
def sleeps(*given: Any) -> None:
    """Never returns."""
    time.sleep(600)


@attack("timeout", said="no answer within")
def spins(*given: Any) -> None:
    """Computes for ever."""
    while True:
        pass


@attack("timeout", said="no answer within")
def spins_in_c(*given: Any) -> None:
    """Never gives the interpreter back."""
    re.match("(a+)+$", "a" * 60 + "b")


@attack("crash", said="exit code 0", quick=True)
def leaves_a_child_with_the_line(*given: Any) -> None:
    """Ends, while a child in a session of its own holds the line of answers."""
    detached()
    os._exit(0)


@attack("timeout", said="no answer within", quick=True)
def hangs_beside_a_child(*given: Any) -> None:
    """Hangs, with a child in a session of its own."""
    detached()
    time.sleep(600)


@attack("timeout", said="no answer within")
def hangs_beside_a_child_without_an_environment(*given: Any) -> None:
    """Hangs, with a program in a session of its own that carries no mark."""
    detached(lambda: os.execve(sys.executable, [sys.executable, "-S", "-c", "import time; time.sleep(600)"], {}))
    time.sleep(600)


@attack("memory", "error", said=r"raise --memory|MemoryError", quick=True)
def eats_memory(*given: Any) -> None:
    """Takes memory for ever."""
    eat()


@attack("memory", said="raise --memory")
def has_a_child_that_eats_memory(*given: Any) -> None:
    """Waits, while children in sessions of their own take as much memory as one may, each."""
    for _ in range(4):
        detached(eat)
    time.sleep(600)


@attack("error", said="MemoryError")
def asks_for_terabytes(*given: Any) -> Any:
    """Allocates more than there is."""
    return np.ones(1 << 43)


@attack("crash", "memory", said="more than")
def multiplies(*given: Any) -> None:
    """Starts processes without an end."""
    for _ in range(700):
        if os.fork() == 0:
            time.sleep(600)
            os._exit(0)
    time.sleep(600)


@attack("crash", said="SIGKILL", quick=True)
def kills_itself(*given: Any) -> None:
    """Is killed in the middle of a call."""
    os.kill(os.getpid(), signal.SIGKILL)


@attack("crash", said="SIGABRT")
def aborts(*given: Any) -> None:
    """Aborts."""
    os.abort()


@attack("crash", said="SIGALRM")
def rings(*given: Any) -> None:
    """Is ended by an alarm that it set."""
    signal.alarm(1)
    time.sleep(600)


@attack("crash", said="exit code 0")
def ends_well(*given: Any) -> None:
    """Ends as if all had gone well."""
    os._exit(0)


@attack("error", said="SystemExit: 0")
def exits_well(*given: Any) -> None:
    """Asks the interpreter to end as if all had gone well."""
    sys.exit(0)


@attack("crash", said="SIGINT|exit code")
def interrupts(*given: Any) -> None:
    """Raises what only the user may."""
    raise KeyboardInterrupt


@attack("error", "crash", said="RecursionError|SIGSEGV")
def recurs(*given: Any) -> Any:
    """Calls itself for ever."""
    return recurs(*given)


@attack("timeout", said="no answer within")
def stops(*given: Any) -> None:
    """Stops itself."""
    os.kill(os.getpid(), signal.SIGSTOP)


@attack("timeout", said="no answer within")
def stops_its_warden(*given: Any) -> None:
    """Stops the process that watches it, with a child in a session of its own."""
    detached()
    os.kill(os.getppid(), signal.SIGSTOP)
    time.sleep(600)


@attack("crash", said="SIGKILL", quick=True)
def kills_its_warden(*given: Any) -> None:
    """Kills the process that watches it, with a child in a session of its own."""
    detached()
    time.sleep(0.1)
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(600)


@attack("crash", said="stopped answering|exit code")
def closes_every_descriptor(*given: Any) -> None:
    """Closes all that is open, and hangs."""
    os.closerange(0, 256)
    time.sleep(600)


@attack("crash", "error", said="OSError|exit code")
def writes_a_file_without_an_end(*given: Any) -> None:
    """Fills the disk, as far as it may."""
    import tempfile

    with tempfile.TemporaryFile(buffering=0) as stream:
        stream.truncate((1 << 30) - 10)
        stream.seek(0, os.SEEK_END)
        for _ in range(100):
            stream.write(bytes(100))
