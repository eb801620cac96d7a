"""Times of replays: events on a GPU, the host's clock elsewhere. Units: microseconds."""

import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import median

import torch

Run = Callable[[], object]


def times_us(parts: Sequence[Run], device: torch.device, replays: int = 25, warm: int = 3) -> list[float]:
    """The median time of each part; in each replay all parts run one after the other."""
    for _ in range(warm):
        for part in parts:
            part()
    found = [_cuda(parts) if device.type == "cuda" else _host(parts) for _ in range(replays)]
    return [median(column) for column in zip(*found, strict=True)]


def _cuda(parts: Sequence[Run]) -> list[float]:
    events = [torch.cuda.Event(enable_timing=True) for _ in range(len(parts) + 1)]  # type: ignore[no-untyped-call]
    events[0].record()
    for part, event in zip(parts, events[1:], strict=True):
        part()
        event.record()
    events[-1].synchronize()
    return [1000 * a.elapsed_time(b) for a, b in pairwise(events)]


def _host(parts: Sequence[Run]) -> list[float]:
    found = []
    for part in parts:
        began = time.perf_counter()
        part()
        found.append(1e6 * (time.perf_counter() - began))
    return found


def copy_bytes_per_us(size: int = 2**30) -> float:
    """The GPU's copy bandwidth, counting bytes read and bytes written."""
    source = torch.ones(size // 4, device="cuda")
    target = torch.empty_like(source)
    return 2 * size / times_us([lambda: torch.mul(source, 1.0, out=target)] * 2, source.device)[1]
