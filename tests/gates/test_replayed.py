"""Cells that no timing holds: memory, counted from what the launchers take, and traffic, replayed with measured steps."""

from pathlib import Path

import pytest

from perf_gates.static.allocated import row_bytes
from perf_gates.verdicts import served
from perf_gates.verdicts.measured import At, Missing, Results
from perf_gates.verdicts.verdict import Verdict

from .gates_results import GATES, judged, part, timing, written


def test_sequences_in_a_budget_hold_their_keys_and_values_too() -> None:
    def sequence(kind: str) -> int:
        return row_bytes(At("memory", "nemotron-3-nano-4b", f"sequence, {kind} T=4", 1))

    row = row_bytes(At("memory", "nemotron-3-nano-4b", "snapshots T=4", 1))
    assert sequence("snapshots") == 21 * row + 4 * 2048 * 2 * 8 * 128 * 2
    assert sequence("snapshots") - sequence("ring") == 21 * (
        row - row_bytes(At("memory", "nemotron-3-nano-4b", "ring T=4", 1))
    )


def test_recurrent_memory_is_counted_from_what_the_launchers_take() -> None:
    for shape, h, p, n, g in (("mamba2-2.7b", 80, 64, 128, 1), ("nemotron-3-nano-4b", 96, 80, 128, 8)):
        ring = 20 * ((h * p + g * n) * 2 + 4 * h) + 8
        assert row_bytes(At("memory", shape, "ring T=4", 1)) == 4 * h * p * n + ring
        assert row_bytes(At("memory", shape, "snapshots T=4", 3)) == 3 * 4 * 4 * h * p * n
    with pytest.raises(Missing, match="no 'cache T=4'"):
        row_bytes(At("memory", "mamba2-2.7b", "cache T=4", 1))
    results = Results(Path("nowhere"))
    table = GATES.table("replayssm-11")
    found = [judged(results, table, cell) for cell in table.cells]
    assert {f.verdict for f in found} == {Verdict.PASS}


def bench(path: Path, plain: float, speculative: float) -> Results:
    """Steps of the engine that grow by a tenth with each doubling of the batch. Units: microseconds."""
    timings = [
        timing(name, us * 1.1**i, us * 1.1**i * 3.1e6, b, weights=us * 1.1**i * 3.0e6, products=10**9)
        for name, us in ((served.PLAIN, plain), (served.SPECULATIVE, speculative))
        for i, b in enumerate(served.BATCHES)
    ]
    return written(path, {"bench": part(*timings, copy_bytes_per_us=4.2e6, empty_launch_us=0.9)})


def test_traffic_is_replayed_with_the_measured_steps(tmp_path: Path) -> None:
    table = GATES.table("snakes-traffic")
    found = [judged(bench(tmp_path, 1800, 2000), table, cell) for cell in table.cells]
    assert {f.verdict for f in found} == {Verdict.PASS}
    assert all(f.value is not None and f.value < 0.6 for f in found)
    useless = [judged(bench(tmp_path, 1800, 9000), table, cell) for cell in table.cells]
    assert {f.value for f in useless} == {1.0}
    assert served.p95(bench(tmp_path, 1800, 2000), At("traffic", "mamba2-2.7b", "plain, load 0.1", 16)) > 400 * 1800e-6


def test_traffic_without_its_steps_or_of_noisy_ones_is_not_comparable(tmp_path: Path) -> None:
    table = GATES.table("snakes-traffic")
    missing = judged(Results(tmp_path), table, table.cells[0])
    assert (missing.verdict, missing.value) == (Verdict.UNKNOWN, None)
    results = bench(tmp_path, 1800, 2000)
    results.parts["bench"]["timings"][3]["noise"] = 0.5
    noisy = judged(results, table, table.cells[0])
    assert (noisy.verdict, noisy.why) == (Verdict.UNKNOWN, "noise of plain, window of 1 0.500, above 0.02")
    with pytest.raises(Missing, match="not a traffic operation"):
        served.p95(results, At("traffic", "mamba2-2.7b", "guess", 16))
