"""The memory that an engine states, beside what it takes on a GPU: `python -m perf_gates.gpu.memory --out FILE`.

Each case loads a model and runs prompts, with steps launched one by one, and as CUDA graphs. The engine states its bytes
before it reads a weight (`ssmspec_fast.models.memory`). What it takes is how much these grow until the end:

    allocated, reserved    the peaks of PyTorch's allocator, the pools of graphs included
    every shape            what is reserved after a graph is recorded for every number of rows
    device                 what the GPU lists as used: besides, the code of kernels and the nodes of graphs

Exits with 1 if a case takes less than 500 MB, fails or has no time, or if stated / reserved is not within 0.9 to 1.1, where
reserved counts every shape.
"""

import functools
import gc
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import monotonic
from typing import Annotated, Any

import torch
import typer
from safetensors.torch import save_file

from conformance.main import run_command
from perf_gates import files
from perf_gates.gpu.engine.engines import engine as ours
from perf_gates.machine import fingerprint, need_gpu

LEAST, OFF = 500e6, 0.1
"""Bytes that a case must take, and how far the ratio may be from 1."""
SECONDS = 80.0
"""After which no case begins."""


@dataclass(frozen=True)
class Case:
    """A model that ships with other sizes, the options of its engine, and the tokens of each slot's prompt."""

    model: str
    sizes: dict[str, Any]
    options: dict[str, Any]
    tokens: int = 9
    budget: int = 3

    def folder(self, home: Path) -> Path:
        """A checkpoint of zeros: values change no sizes, and are slow to draw."""
        config = json.loads((ours("cli.shipped", "SHIPPED") / self.model / "config.json").read_text()) | self.sizes
        family, read = ours("families", "find")(config)
        plan = ours("families.source", "Plan")(torch.bfloat16)
        family.assemble(read, plan)
        held = {name: torch.zeros(shape, dtype=torch.bfloat16) for name, shape in plan.shapes.items()}
        home.mkdir(parents=True, exist_ok=True)
        save_file(held, home / "model.safetensors")
        (home / "config.json").write_text(json.dumps(config))
        return home

    def parts(self, folder: Path, device: str, recorder: Any = None, **options: Any) -> Any:
        """The parts of its engine, with graphs if there is a recorder."""
        given = {"mode": "fast", "prompt": self.tokens, **self.options, **options}
        if "sampling" in given:
            given["sampling"] = ours("accept.processors", "Sampling")(**given["sampling"])
        engine = functools.partial(ours("engine.emitted_windows", "StreamingEngine"), graphs=recorder)
        return ours("models.build", "Parts")(folder, device=device, engine=engine, **given)


STATES = {"state_size": 128, "num_hidden_layers": 48}
WIDE = {"hidden_size": 256, "intermediate_size": 24576, "num_hidden_layers": 1}
CASES = {
    "weights": Case(
        "llama", {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 6}, {"slots": 2, "cache": 64}
    ),
    "states": Case("mamba2", STATES, {"drafter": "ngram", "method": "snapshots", "slots": 16, "cache": 64}),
    "a history for n-grams": Case("mamba2", {}, {"drafter": "ngram", "slots": 4, "cache": 6_000_000}),
    "a run of prompts": Case("llama", WIDE, {"slots": 1, "cache": 2800}, tokens=2790, budget=2),
    "laws of a window": Case(
        "mamba2",
        {"vocab_size": 180_000, "num_hidden_layers": 2},
        {"drafter": "ngram", "tree": "2", "slots": 6, "cache": 40, "acceptance": "naive", "sampling": {"top_p": 0.9}},
    ),
}


@dataclass
class Taken:
    """Bytes. `stated` as an engine says them; the others are growths, 0 where nothing was measured."""

    case: str
    graphs: bool
    stated: int = 0
    allocated: int = 0
    reserved: int = 0
    every_shape: int = 0
    device: int = 0
    seconds: float = 0.0
    error: str = ""
    text: str = field(default="", repr=False)

    @property
    def ratio(self) -> float:
        taken = max(self.reserved, self.every_shape)
        return self.stated / taken if taken else 0.0

    @property
    def holds(self) -> bool:
        return not self.error and self.reserved >= LEAST and abs(self.ratio - 1) <= OFF

    def __str__(self) -> str:
        how = "graphs" if self.graphs else "launches"
        if self.error:
            return f"{self.case}, {how}: {self.error}"
        sizes = {name: getattr(self, name) for name in ("stated", "allocated", "reserved", "every_shape", "device")}
        said = ", ".join(f"{name.replace('_', ' ')} {size / 1e6:.1f} MB" for name, size in sizes.items() if size)
        return f"{self.case}, {how}: {said}; stated / reserved {self.ratio:.3f}{'' if self.holds else ' NOT WITHIN'}"


class Allocator:
    """PyTorch's peak on a GPU, counted from an empty allocator."""

    def __init__(self) -> None:
        gc.collect()
        torch.cuda.synchronize()
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        self.began = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
        self.free = torch.cuda.mem_get_info()[0]

    def grown(self) -> tuple[int, int, int]:
        """Of the peaks of what is allocated and reserved, and of what the device lists as used."""
        torch.cuda.synchronize()
        peaks = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
        return peaks[0] - self.began[0], peaks[1] - self.began[1], self.free - torch.cuda.mem_get_info()[0]


@dataclass(frozen=True)
class Bench:
    """Where cases run: the device, what reads its allocator, and what records graphs."""

    device: str = "cuda"
    meter: Callable[[], Any] = Allocator
    recorder: Callable[[], Any] = field(default_factory=lambda: ours("engine.graphs", "CUDARecorder"))

    def measure(self, name: str, case: Case, folder: Path, graphs: bool) -> Taken:
        """Loads the case's engine, and gives every slot a prompt."""
        began, taken = monotonic(), self.meter()
        parts = case.parts(folder, self.device, self.recorder() if graphs else None)
        found = Taken(name, graphs, parts.memory.peak, text=str(parts.memory))
        engine, settings = parts.load().engine, ours("engine.requests", "Settings")(case.budget)
        prompt = [number % engine.model.config.vocabulary for number in range(1, 1 + case.tokens)]
        engine.generate([prompt] * engine.slots, settings)
        found.allocated, found.reserved, found.device = taken.grown()
        if graphs and engine.drafter.on_device:
            engine.prepare(settings)
            found.every_shape = taken.grown()[1]
        found.seconds = monotonic() - began
        return found

    def run(self, cases: dict[str, Case], seconds: float = SECONDS) -> Iterator[Taken]:
        """Every case, with launches and with graphs; one that fails, or has no time, says so."""
        began = monotonic()
        for name, case in cases.items():
            with tempfile.TemporaryDirectory() as home:
                for graphs in (False, True):
                    if monotonic() - began > seconds:
                        yield Taken(name, graphs, error=f"not run: {seconds:.0f} s are over")
                        continue
                    try:
                        folder = Path(home) / "model"
                        yield self.measure(name, case, folder if graphs else case.folder(folder), graphs)
                    except Exception as error:
                        yield Taken(name, graphs, error=f"{type(error).__name__}: {error}".split("\n")[0][:400])


def main(
    out: Annotated[Path | None, typer.Option(help="The file of the results.")] = None,
    seconds: Annotated[float, typer.Option(help="After which no case begins.")] = SECONDS,
) -> int:
    need_gpu()
    found, machine = list[Taken](), fingerprint()
    for taken in Bench().run(CASES, seconds):
        found.append(taken)
        print(f"{taken} ({taken.seconds:.0f} s)\n    {taken.text}", flush=True)
        if out:
            rows = [{**asdict(one), "ratio": one.ratio} for one in found]
            files.write(out, {"machine": machine, "cases": rows})
    return 0 if found and all(one.holds for one in found) else 1


if __name__ == "__main__":
    sys.exit(run_command(main))
