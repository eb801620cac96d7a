"""Kernels are compiled ahead of the timed runs, by as many processes as there are cores, while a model is read or trained.

A process runs a way at a batch on a model of the same widths and of two layers, which launches what all layers launch; what
it compiles is kept on disk, where Triton finds it. Nothing is timed. On a CPU there is nothing to compile.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context

from .forced import table
from .runs import grouped, runner
from .texts import Text
from .ways import Models, Way, dtype_of, engine

SMALL = Text("small", tuple(range(40)), tuple(range(24)))
LAYERS = 2


def random_target(device: str, name: str) -> Models:
    """A model of known dimensions with random weights."""
    return Models(engine("bench.models", "random_model")(name, dtype_of(device), device, layers=LAYERS), {})


def once(make: Callable[..., Models], device: str, given: object, way: Way, batch: int, forced: bool) -> str:
    """Decodes a little by one way; what fails is said, and fails again where it is timed."""
    try:
        models, texts = make(device, given), [SMALL] * batch
        one = runner(way, models, texts, batch, table(texts, device) if forced else None)
        for keys in grouped(range(batch), batch):
            one.run(texts, keys)
    except Exception as error:
        return f"{way.name}, {way.how}, batch {batch}: {type(error).__name__}: {error}".split("\n")[0][:300]
    return ""


@contextmanager
def compiling(
    device: str, make: Callable[..., Models], given: object, work: Sequence[tuple[Way, int]], forced: bool
) -> Iterator[Callable[[], None]]:
    """Starts the processes; the value waits for them. `make` must be a function of a module, which another process can
    import."""
    if device != "cuda":
        yield lambda: None
        return
    with ProcessPoolExecutor(max(1, (os.cpu_count() or 2) - 2), mp_context=get_context("spawn")) as pool:
        tasks = [pool.submit(once, make, device, given, way, batch, forced) for way, batch in work]

        def wait() -> None:
            for said in filter(None, (task.result() for task in tasks)):
                print(f"not compiled ahead: {said}", flush=True)
            pool.shutdown()

        yield wait
