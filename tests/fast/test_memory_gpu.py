"""The memory of an engine on a GPU, counted without one: the counter against real peaks, its figures against an H200's."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from perf_gates.gpu import memory as gpu_memory
from ssmspec_fast.cli.shipped import SHIPPED
from ssmspec_fast.engine.sampling import Sampling
from ssmspec_fast.families.source import Plan
from ssmspec_fast.models import build, memory
from ssmspec_fast.models.build import Parts
from ssmspec_fast.models.counting import WORKSPACE, Counting, Segments, counted, without_launches

from .child import output_of
from .memory_counted import several
from .test_memory_stated import CASES, GIVES_BACK, folder_of

pytest.importorskip("triton")
H200 = torch.device("cuda", 90)
"""A number that no device has: results that are cached for it are of no other."""
MIB = 2**20
THEN: dict[str, tuple[float, float, float, float]] = {
    "a history for n-grams": (612.1, 0.24, 0.0, 0.0),
    "a run of prompts": (630.2, 1.05, 1.09, 0.0),
    "laws of a window": (558.5, 1.45, 0.0, 1.57),
}
"""Measured on an H200 with torch 2.11: the MB that PyTorch's operations were counted to take, and the share of it that was
taken; that was reserved; that was taken with graphs. 0: not measured."""


def engine_of(folder: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> tuple[Parts, Any]:
    """An engine of kernels on tensors without memory."""
    monkeypatch.setattr(build, "LARGE", 2**62)
    monkeypatch.setattr(build, "available", lambda device: 2**62)
    parts = Parts(folder, kernels=True, **options)
    folders = [found for found in (parts.target, parts.draft) if found is not None]
    models = [found.family.assemble(found.config, Plan(parts.type)) for found in folders]
    return parts, parts.build(models[0], models[1] if len(models) > 1 else None)


@pytest.mark.parametrize("case", THEN)
def test_what_is_counted_is_what_an_h200_took(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the two digits that were written down. With graphs the warm-up and the recording have a stream each, and in it a
    workspace of cuBLAS."""
    name, change, options, tokens, _ = CASES[case]
    options = options | ({"sampling": Sampling(**options["sampling"])} if "sampling" in options else {})
    parts, engine = engine_of(folder_of(tmp_path / "m", name, change), monkeypatch, **options)
    held, stated = parts.memory, THEN[case][0] * 1e6
    work = memory.gpu_work(engine, [engine.target], min(engine.target.chunk, engine.slots * tokens), H200)
    rest = held.weights + held.states + held.tokens
    found = (rest + work.peak, rest + work.reserved, rest + work.peak + 2 * WORKSPACE)
    for counted_bytes, share in zip(found, THEN[case][1:], strict=True):
        assert not share or counted_bytes / stated == pytest.approx(share, abs=0.01)


def test_an_engine_on_a_gpu_is_counted_with_its_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "check_device", lambda device: None)
    options: dict[str, Any] = {"drafter": "ngram", "mode": "fast", "slots": 4, "cache": 300_000, "prompt": 100}
    stated = Parts(SHIPPED / "mamba2", device="cuda:90", limit=2**40, **options).memory
    assert not stated.bound
    places = 16 * 4 * (300_000 + 5 + 4)  # two numbers of 8 bytes for each place of a history: the kernel's own
    assert places <= stated.work <= places + WORKSPACE + 10 * MIB
    monkeypatch.setattr(build.choices, "operations", lambda *_: memory.TorchOperations(windows=True))
    assert Parts(SHIPPED / "mamba2", device="cuda:90", limit=2**40, **options).memory.work > 2 * stated.work


SMALL: dict[str, Any] = {"slots": 2, "cache": 64}
DRAFTER = str(SHIPPED / "mamba2-drafter")


@pytest.mark.parametrize(
    ("folder", "options"),
    [
        ("hybrid", {"drafter": "ngram", "method": "joint-by-lag", "mode": "fast"}),
        ("llama", {"drafter": DRAFTER, "tree": "2,2"}),
        ("delta", {"drafter": "ngram", "method": "replay-buffer", "mode": "fast"}),
        ("mamba2", {"drafter": DRAFTER, "mode": "fast"}),
    ],
)
def test_graphs_take_a_pool_beside_prompts_and_beside_the_steps_that_are_recorded_after(
    folder: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, engine = engine_of(SHIPPED / folder, monkeypatch, **options, **SMALL)
    own = engine.drafter.innermost.decoder
    decoders = [engine.target, *(() if own is None else (own,))]
    prompts = memory.gpu_work(engine, decoders, 50, H200, rows=0).reserved
    one, two = (memory.gpu_work(engine, [], 0, H200, rows=rows).reserved for rows in (1, 2))
    assert memory.gpu_work(engine, [], 0, H200).reserved == two >= one > 0
    engine.recorder = object()
    assert memory.gpu_bytes(engine, decoders, 50, H200) == max(prompts + two, two + WORKSPACE + one)


def test_reading_on_a_gpu_takes_what_joins_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    joined = memory.gpu_reading(lambda: torch.cat([torch.empty(MIB, device="meta") for _ in range(2)]), 8 * MIB, H200)  # type: ignore[arg-type, return-value]
    assert joined == 8 * MIB
    parts, _ = engine_of(SHIPPED / "llama", monkeypatch, **SMALL)
    monkeypatch.setattr(build, "check_device", lambda device: None)
    weights = parts.memory.weights
    on_gpu = Parts(SHIPPED / "llama", device="cuda:90", limit=2**40, mode="fast", **SMALL).memory
    assert on_gpu.weights == weights
    assert 0 <= on_gpu.reading < parts.memory.reading


MEASURED = json.loads((Path(__file__).parents[2] / "perf_gates" / "results" / "memory.json").read_text())["cases"]


@pytest.mark.parametrize(
    "taken", MEASURED, ids=lambda taken: f"{taken['case']}-{'graphs' if taken['graphs'] else 'launches'}"
)
def test_what_is_stated_is_within_a_tenth_of_what_an_h200_reserved(
    taken: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "check_device", lambda device: None)
    recorder = object() if taken["graphs"] else None
    case = gpu_memory.CASES[taken["case"]]
    stated = case.parts(case.folder(tmp_path / "m"), "cuda:90", recorder, limit=2**40).memory.peak
    reserved = max(taken["reserved"], taken["every_shape"])
    assert reserved >= 500e6
    assert stated == pytest.approx(reserved, rel=0.1)


def test_a_planted_kernel_that_keeps_what_it_made_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    _, engine = engine_of(SHIPPED / "mamba2", monkeypatch, **SMALL, mode="fast")
    right, norm, kept = memory.gpu_work(engine, [engine.target], 60, H200), engine.operations.norm, list[Tensor]()

    def hoarding(*args: Any, **named: Any) -> Tensor:
        kept.append(torch.empty(MIB, device=args[0].device))
        return norm(*args, **named)

    monkeypatch.setattr(engine.operations, "norm", hoarding)
    work = memory.gpu_work(engine, [engine.target], 60, H200)
    assert work.peak > right.peak + 4 * MIB * (len(kept) - 1)


def test_blocks_are_cut_reused_and_joined_as_the_allocator_does() -> None:
    of = Segments()
    small = [of.take(size) for size in (1, 512, 513)]
    assert ([block[3] for block in small], of.reserved) == ([512, 512, 1024], 2 * MIB)
    middle = of.take(3 * MIB)
    assert of.reserved == 22 * MIB
    large = of.take(21 * MIB + 1)
    assert of.reserved == 44 * MIB
    of.give(large)
    again = of.take(20 * MIB)  # what is left, 2 MiB, is cut off
    assert (again[1:3], of.reserved) == (large[1:3], 44 * MIB)
    for block in (*small, middle, again):
        of.give(block)
    assert sorted(of.free[True].values()) == [2 * MIB]
    assert sorted(of.free[False].values()) == [20 * MIB, 22 * MIB]


def test_what_a_sort_takes_inside_is_in_the_peak_and_given_back() -> None:
    n = 8 * 5000
    with counted(device=H200) as counting:
        x = torch.empty(8, 5000, dtype=torch.float64, device=H200)
        y = torch.sort(x, dim=-1, stable=True)
    blocks = sum(map(Segments.rounded, (8 * n, 8 * n, 8 * n, 8 * n, 8 * n, 8 * n, 16 * n)))
    assert (counting.peak, counting.live) == (blocks, sum(map(Segments.rounded, (8 * n,) * 3)))
    del x, y


def test_launches_are_left_out_in_this_thread_alone() -> None:
    from triton.runtime.jit import KernelInterface

    class Kernel(KernelInterface[Any]):
        launched = 0

        def run(self, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
            self.launched += 1

    kernel = Kernel()
    with without_launches():
        kernel[(1,)]()
        other = threading.Thread(target=lambda: kernel[(1,)]())
        other.start()
        other.join()
        assert kernel.launched == 1
    kernel[(1,)]()
    assert kernel.launched == 2


def test_the_counter_is_the_peak_of_a_process() -> None:
    """A child of at least 500 MB: what its peak grows by, and what the counter says, within a hundredth."""
    found = json.loads(output_of("memory_counted.py", seconds=100, **GIVES_BACK))
    assert found["grown"] >= 500e6, found
    assert found["counted"] == pytest.approx(found["grown"], rel=0.01), found


def test_the_counter_is_the_peak_of_the_allocator() -> None:
    """Every allocation and release of PyTorch's allocator, as its profiler saw them."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as seen:
        kept = several(4000)
    live = peak = 0
    for event in sorted(seen.profiler.kineto_results.events(), key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            live += event.nbytes()
            peak = max(peak, live)
    with Counting(real=True) as counting:
        again = several(4000)
    assert (counting.peak, counting.live) == (peak, live)
    del kept, again
