"""The parts of a run: what each executes, how long it may take, and when it is done.

A part is one command of at most eight minutes. Its measurements are in the run's folder, and an interrupted part continues
from there. No part needs a network.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import monotonic

from .. import files

MOST_S = 480
"""Most seconds of a part."""
COMPILE_S = 120
"""Most seconds of a part that are for compilation (`perf_gates.gpu`)."""
BENCHMARK, CORE_JUNIT, TOOK = "core-benchmark.json", "core-junit.xml", "durations.json"


@dataclass(frozen=True)
class Part:
    """`files`: what it measures, by the parts of `perf_gates.gpu`; `expected` seconds, for shards; `tries` in one run."""

    name: str
    files: tuple[str, ...]
    expected: int
    tries: int = 1

    def command(self, out: Path, peers: Path | None) -> list[str]:
        if self.name == "core":
            core_set = Path(__file__).parent.parent / "timed" / "core_set.py"
            options = ["-q", "-p", "no:cacheprovider", "--benchmark-json", str(out / BENCHMARK)]
            return ["pytest", str(core_set), *options, "--junit-xml", str(out / CORE_JUNIT)]
        compiling = 0 if self.files == ("model_shapes",) else COMPILE_S  # checks compile what they launch
        timed = max(60, (MOST_S - compiling - 20) // len(self.files))
        given = ["--peers", str(peers)] if peers else []
        return ["perf_gates.gpu", "--out", str(out), "--only", *self.files, "--seconds", str(timed), *given]


PARTS = (
    Part("core", ("core_set",), 40),
    Part("steps", ("steps", "buffered", "buffered_delta", "kda"), 190),
    Part("peers", ("unrolled", "linear", "prefill", "peers"), 150),
    Part("shapes", ("model_shapes",), 360),
    Part("papers", ("papers", "trained"), 220),
    Part("engine", ("bench",), 480, tries=3),
    Part("equality", ("equality",), 100),
)
"""In the order in which they run. Expected seconds only balance shards; the real ones are written to TOOK."""


@dataclass
class Took:
    """How long the parts of a run took. Units: seconds."""

    seconds: dict[str, float] = field(default_factory=dict)
    ended: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, out: Path) -> "Took":
        return cls(**files.read(out / TOOK))

    def write(self, out: Path) -> None:
        files.write(out / TOOK, asdict(self))


def chosen(names: Sequence[str], shard: tuple[int, int]) -> list[Part]:
    """The parts of a shard (i of n, i from 1), the longest assigned first; `names` empty: of all parts."""
    i, n = shard
    bins: list[list[Part]] = [[] for _ in range(n)]
    for part in sorted((p for p in PARTS if not names or p.name in names), key=lambda p: (-p.expected, p.name)):
        min(bins, key=lambda held: sum(p.expected for p in held)).append(part)
    return sorted(bins[i - 1], key=PARTS.index)


def ended(command: list[str], seconds: float) -> str:
    """Runs a Python module, and says how it ended. Its child processes end with it."""
    environment = dict(os.environ)
    root = str(Path(__file__).parent.parent.parent)
    environment["PYTHONPATH"] = os.pathsep.join([root, *(p for p in [environment.get("PYTHONPATH")] if p)])
    child = subprocess.Popen([sys.executable, "-m", *command], env=environment, start_new_session=True)
    try:
        code = child.wait(timeout=seconds)
        return "complete" if code == 0 else f"exit code {code}"
    except subprocess.TimeoutExpired:
        return f"ended after {seconds:.0f} s"
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def run(part: Part, out: Path, peers: Path | None, seconds: float) -> str:
    """Runs a part once, and records how long it took."""
    began = monotonic()
    said = ended(part.command(out, peers), min(MOST_S, seconds))
    took = Took.read(out)
    took.seconds[part.name] = round(took.seconds.get(part.name, 0.0) + monotonic() - began, 1)
    took.ended[part.name] = said
    took.write(out)
    return said
