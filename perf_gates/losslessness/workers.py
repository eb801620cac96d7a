"""Tasks over processes that share the GPUs: started in order, each when what it needs is there; answers as they arrive.

A process works on one task at a time and gets the next one when it has answered, so that nothing starts once the time is
over. It stays with tasks of one kind, for which it has compiled and loaded, and then takes the kind that the fewest others
work on. A process that dies, or whose GPU fails, answers with the error and is replaced.
"""

import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

VISIBLE = "CUDA_VISIBLE_DEVICES"
Make = Callable[[], Callable[[Any], Any]]
"""Creates, in the process, the function that works on tasks. It is pickled, so it must be a class or a partial of one."""


class Failed(NamedTuple):
    """A task that raised, or ended its process. `broken`: the process may not be usable any more."""

    reason: str
    broken: bool = False


def failed(error: Exception) -> Failed:
    """After a RuntimeError the GPU may not respond any more."""
    return Failed(f"{type(error).__name__}: {str(error).strip().split(chr(10))[0]}", isinstance(error, RuntimeError))


@dataclass
class Worker:
    process: BaseProcess
    line: Connection
    place: int
    task: Any = None
    kin: Any = None


def alike(task: Any) -> Any:
    """The same kind for all tasks: they start in order."""
    return None


def spread(
    tasks: Sequence[Any],
    make: Make,
    jobs: int,
    needs: Callable[[Any], Any],
    until: float,
    gpus: Sequence[str] = (),
    kin: Callable[[Any], Any] = alike,
) -> Iterator[tuple[Any, Any]]:
    """Each task and its answer, or `Failed`. A task waits for the one that it `needs` (None: for none).

    Units: `until` is a reading of `time.monotonic`, after which no work starts and no wait continues.
    """
    waiting, done, workers = list(tasks), set(), [start(make, place, gpus) for place in range(jobs)]
    try:
        while time.monotonic() < until:
            for worker in (worker for worker in workers if worker.task is None):
                if ready := [task for task in waiting if needs(task) is None or needs(task) in done]:
                    task = chosen(worker, ready, workers, kin)
                    waiting.remove(task)
                    worker.task, worker.kin = task, kin(task)
                    with suppress(BrokenPipeError):  # it died: its connection says so below
                        worker.line.send(task)
            busy = [worker for worker in workers if worker.task is not None]
            if not busy:
                return
            for line in wait([worker.line for worker in busy], timeout=min(1.0, max(0.0, until - time.monotonic()))):
                worker = next(worker for worker in busy if worker.line is line)
                task, answer, sound = worker.task, *heard(worker)
                worker.task = None
                if not sound:
                    workers[workers.index(worker)] = start(make, worker.place, gpus)
                done.add(task)
                yield task, answer
    finally:
        for worker in workers:
            worker.process.kill()


def chosen(worker: Worker, ready: Sequence[Any], workers: Sequence[Worker], kin: Callable[[Any], Any]) -> Any:
    """The first task of the worker's own kind; if there is none, the first of the kind that the fewest others work on."""
    others = Counter(other.kin for other in workers if other is not worker)
    return min(ready, key=lambda task: -1 if kin(task) == worker.kin else others[kin(task)])


def heard(worker: Worker) -> tuple[Any, bool]:
    """A worker's answer, and whether the worker continues."""
    try:
        answer, sound = worker.line.recv()
    except (EOFError, ConnectionResetError):
        worker.process.join(5)
        return Failed(f"its process ended with {worker.process.exitcode}", broken=True), False
    return answer, sound


def start(make: Make, place: int, gpus: Sequence[str]) -> Worker:
    """A new process that sees one of the GPUs."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=work, args=(make, theirs), daemon=True)
    with seen(gpus[place % len(gpus)] if gpus else None):
        process.start()
    theirs.close()
    return Worker(process, ours, place)


@contextmanager
def seen(gpu: str | None) -> Iterator[None]:
    """The environment with one GPU, while a process starts."""
    before = os.environ.get(VISIBLE)
    if gpu is not None:
        os.environ[VISIBLE] = gpu
    try:
        yield
    finally:
        os.environ.pop(VISIBLE, None)
        if before is not None:
            os.environ[VISIBLE] = before


def work(make: Make, line: Connection) -> None:
    """The loop of a process, which ends when a task has broken it. A task may have several answers, in a list."""
    answers = make()
    while True:
        try:
            task = line.recv()
        except EOFError:
            return
        try:
            answer = answers(task)
        except Exception as error:
            answer = failed(error)
        several = answer if isinstance(answer, list) else [answer]
        sound = not any(isinstance(one, Failed) and one.broken for one in several)
        line.send((answer, sound))
        if not sound:
            return
