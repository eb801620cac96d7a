"""Time on a GPU: a launch inside a CUDA graph, over states that no cache can hold, against the run's own copy bandwidth."""

import gc
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from math import inf
from statistics import median, quantiles
from time import monotonic, sleep

import torch

from .output_guard import Outputs, check_written

L2_BYTES = 60 * 2**20
"""The H200's level-2 cache; a measurement touches at least eight times as much before it reads the same bytes again."""

ENOUGH, TIMES = 0.01, 4
"""The relative error at which a median is known well enough, and the factor by which the number of replays may grow for
it."""
PAUSE = 1.0
"""After each replay the GPU rests for this many times its length: its power limit slows down runs without a rest."""

Launch = Callable[[], object]

_compiling = False
noises: list[float] = []
"""The relative error of every median since the list was cleared."""


@contextmanager
def compiling() -> Iterator[None]:
    """Launches what is timed in this block once, on little memory, so that it is compiled; takes no time."""
    global _compiling
    _compiling = True
    try:
        yield
    finally:
        _compiling = False


def is_compiling() -> bool:
    return _compiling


def layers_of(count: int) -> int:
    """How many layers of a model are made."""
    return 1 if _compiling else count


def copies_for(bytes_per_launch: int, least: int = 8, most: int = 512) -> int:
    """How many sets of arguments a measurement rotates through, so that their footprint is far beyond the cache."""
    return 2 if _compiling else max(least, min(most, -(-8 * L2_BYTES // max(1, bytes_per_launch))))


def graph_us(launches: Sequence[Launch], outputs: Outputs, states: Collection[torch.Tensor] = (), replays: int = 15) -> float:
    """The median time of one launch, in microseconds: all of them captured in one CUDA graph, replayed.

    `outputs` are what the launches write, a separate tensor for each, by names that identify the launch; `states` what they
    advance in place. After the last timing the graph is replayed once more, as `written` describes.

    Raises: WrongOutputError, ValueError (two outputs share their memory).
    """
    if _compiling:
        for launch in (*launches[:2], launches[-1]):
            launch()
        return 1.0
    replay = recorded(launches, warm=2)
    times = _replays_us(replay, replays)
    check_written(replay, outputs, states)
    return known_median(times) / len(launches)


def recorded(launches: Sequence[Launch], warm: int = 1) -> Callable[[], None]:
    """A replay of all of them in one graph, after `warm` launches outside it.

    Python's garbage collector is off: freeing a graph would abort the recording.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for launch in launches[:warm]:
            launch()
    torch.cuda.current_stream().wait_stream(side)
    graph, collects = torch.cuda.CUDAGraph(), gc.isenabled()
    gc.disable()
    try:
        with torch.cuda.graph(graph):
            for launch in launches:
                launch()
    finally:
        if collects:
            gc.enable()
    return graph.replay


def relative_error(times: Sequence[float]) -> float:
    """The standard error of a median over the median, the spread taken from the quartiles: an outlier moves neither.

    Source: the median of n normal values has the standard error 1.2533 sigma / sqrt(n); the quartiles lie 1.349 sigma apart.
    """
    low, _, high = quantiles(times, n=4)
    return 1.2533 * (high - low) / 1.349 / len(times) ** 0.5 / median(times)


def known_median(times: Sequence[float]) -> float:
    """The median, its relative error among the `noises`."""
    noises.append(relative_error(times))
    return median(times)


def repeated(once: Callable[[], float], least: int, most: int, enough: float, seconds: float = inf) -> list[float]:
    """Calls `once` from `least` to `most` times, until the median is known well enough or the time is over."""
    times: list[float] = []
    until = monotonic() + seconds
    while len(times) < least or (len(times) < most and monotonic() < until and relative_error(times) > enough):
        times.append(once())
    return times


def event_us(launch: Launch, pause: float = PAUSE) -> float:
    """The time of one launch between two events; afterwards the GPU rests for `pause` times that time."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    launch()
    end.record()
    end.synchronize()
    us: float = start.elapsed_time(end) * 1000
    sleep(pause * us / 1e6)
    return us


def _replays_us(replay: Launch, replays: int) -> list[float]:
    for _ in range(2):
        replay()
    return repeated(lambda: event_us(replay), replays, TIMES * replays, ENOUGH)


def copy_bytes_per_us(size: int = 2**31) -> float:
    """The device's copy bandwidth, read and written bytes counted, in bytes per microsecond."""
    source = torch.randn(size // 4, device="cuda")
    target = torch.empty_like(source)
    # A kernel that copies: copy_ would take the copy engine inside a graph.
    copy = lambda: torch.mul(source, 1.0, out=target)  # noqa: E731
    return 2 * size / graph_us([copy] * 2, {"the copy": target}, replays=9)


def empty_launch_us() -> float:
    """What one launch of a kernel that does nothing costs inside a graph."""
    x = torch.zeros(1, device="cuda")
    return graph_us([lambda: x.zero_()] * 256, {"the zero": x})
