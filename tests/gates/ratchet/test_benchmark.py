"""pytest-benchmark as its users know it: real rounds, groups, JSON, and a comparison that fails where a side is slower."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perf_gates import cli
from perf_gates.gpu_gates import core_part
from perf_gates.ratchet import bars
from perf_gates.ratchet.bars import Bar, Bars
from perf_gates.verdicts.gates import load
from tests.gates.gates_results import pytest_said

BODY = '''
import json, os, random
from pathlib import Path
import pytest
from perf_gates.gpu.paired_timing import Side
from perf_gates.ratchet.bars import Bar, Bars, name_of
from perf_gates.timed.gated import Bench, run
from perf_gates.timed.place import place
from perf_gates.verdicts.gates import load

GATES, SLOWER = load(), float(os.environ.get("SLOWER", "1"))
CORE = GATES.core[0]
MACHINE = json.loads(os.environ["MACHINE"])

NOW, RNG = [0.0], random.Random(0)

def moment():
    return NOW[0]

def spend(us):
    """A call on a clock of its own: what the host does beside it moves nothing."""
    NOW[0] += us * RNG.gauss(1.0, 0.002) / 1e6

class Clock:
    def us(self, call):
        began = moment()
        call()
        return 1e6 * (moment() - began)

def side(name, us):
    return Side(name, lambda: spend(us), lambda: None, bytes=0, launches=1)

@pytest.mark.benchmark(timer=moment)
@pytest.mark.parametrize("which", ["over", "under"])
def test_side(which, benchmark):
    over, under = side("over", 2374 * SLOWER), side("under", 2000)
    bench = Bench(over, under, lambda: side("over", 1.08 * 2374 * SLOWER), Clock(), lambda: None, MACHINE, lambda: 1980)
    held = {name_of(place(CORE, w)): Bar(us, 0.001) for w, us in (("over", 2374.0), ("under", 2000.0))}
    faults = run(benchmark, CORE, which, bench, GATES, Bars({}, "", held))
    assert not faults, "; ".join(faults)
'''


@pytest.fixture(scope="module")
def machine() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((cli.RESULTS / "steps.json").read_text())["machine"]
    return found


def benchmarked(
    folder: Path, machine: dict[str, Any], *options: str, slower: float = 1.0
) -> subprocess.CompletedProcess[str]:
    """The body above in a process of its own, as a user runs it."""
    (folder / "test_stand_in.py").write_text(BODY)
    (folder / "pytest.ini").write_text("[pytest]\n")
    return pytest_said("test_stand_in.py", *options, at=folder, MACHINE=json.dumps(machine), SLOWER=str(slower))


def test_rounds_are_real_grouped_and_hold_the_ratio_pair_by_pair(tmp_path: Path, machine: dict[str, Any]) -> None:
    said = benchmarked(tmp_path, machine, "--benchmark-json", "found.json")
    read = json.loads((tmp_path / "found.json").read_text())["benchmarks"]
    assert [b["group"] for b in read] == [load().core[0].name] * 2, said.stdout
    assert all(b["stats"]["rounds"] >= 20 and len(b["stats"]["data"]) == b["stats"]["rounds"] for b in read)
    over, under = (b["stats"]["median"] for b in read)
    assert over / under == pytest.approx(1.187, rel=0.01)
    (pair,) = core_part.pairs(tmp_path / "found.json")
    assert len(pair["pairs"]) >= 10
    assert pair["delayed"]["ratio"] > pair["ratio"]
    assert core_part.write_part(tmp_path / "found.json", tmp_path)
    assert len(json.loads((tmp_path / "core_set.json").read_text())["timings"]) == 2


def test_a_comparison_with_a_saved_run_fails_where_a_side_is_slower(tmp_path: Path, machine: dict[str, Any]) -> None:
    storage = ("--benchmark-storage", str(tmp_path / "kept"))
    benchmarked(tmp_path, machine, *storage, "--benchmark-save", "first")
    fails = (*storage, "--benchmark-compare", "--benchmark-compare-fail", "median:30%")
    slower = benchmarked(tmp_path, machine, *fails, slower=2.0)
    assert slower.returncode != 0
    assert "Performance has regressed" in slower.stdout + slower.stderr


def test_on_another_gpu_a_side_fails_and_says_so(tmp_path: Path, machine: dict[str, Any]) -> None:
    said = benchmarked(tmp_path, machine | {"gpu": "NVIDIA H100 80GB HBM3"})
    assert said.returncode == 1
    assert "made on NVIDIA H100 80GB HBM3, not NVIDIA H200" in said.stdout


@pytest.mark.parametrize(("slower", "why"), [(1.5, "slower"), (0.6, "faster")])
def test_a_side_off_its_bar_fails_on_either_side(tmp_path: Path, machine: dict[str, Any], slower: float, why: str) -> None:
    said = benchmarked(tmp_path, machine, slower=slower)
    assert said.returncode == 1
    assert any(word in said.stdout for word in (why, "leapt" if why == "faster" else why))


def test_every_pair_has_both_sides_held_or_is_listed_as_unmeasured() -> None:
    from perf_gates.timed.gated import best_of

    gates, held = load(), bars.read()
    unknown = [core.name for core in gates.core if best_of(core, held) is None]
    assert {f"core, {name}" for name in unknown} <= gates.lacking.keys()
    core = replace(gates.core[0], best=None)
    from perf_gates.ratchet.bars import name_of
    from perf_gates.timed.place import place

    both = {name_of(place(core, which)): Bar(us, 0.001) for which, us in (("over", 30.0), ("under", 20.0))}
    assert best_of(core, Bars({}, "", both)) == 1.5
