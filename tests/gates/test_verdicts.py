"""A verdict is what it should be, and the table shows it on the right side of its target."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perf_gates.ratchet.rows import Row
from perf_gates.report import paper_table
from perf_gates.verdicts import gates
from perf_gates.verdicts.gates import Cell
from perf_gates.verdicts.measured import Results
from perf_gates.verdicts.verdict import Judged, Verdict, judge

from .gates_results import CELL, GATES, KERNELS, TABLE, Edit, bars_of, folder, judged, part, timing, written


def test_a_cell_that_holds_passes_and_shows_its_floor(tmp_path: Path) -> None:
    found = judged(folder(tmp_path))
    assert (found.verdict, found.value) == (Verdict.PASS, 21.0 / 20.0)
    assert found.floor == pytest.approx((18 + 1) / (17 + 1))


def test_a_cell_that_misses_fails_and_is_a_known_miss_where_its_bar_says_so(tmp_path: Path) -> None:
    results, short = folder(tmp_path), replace(CELL, target=1.02)
    assert judged(results, cell=short).verdict is Verdict.FAIL
    known = judged(results, cell=short, stood=bars_of(results, "t, c"))
    assert (known.verdict, known.why) == (Verdict.MISS, "bound by something")
    assert judged(results, replace(TABLE, sense="least"), replace(CELL, target=1.08)).verdict is Verdict.FAIL


def test_a_cell_within_the_error_of_its_target_does_not_pass(tmp_path: Path) -> None:
    results = folder(tmp_path)
    assert judged(results, cell=replace(CELL, target=1.052)).verdict is Verdict.NEAR
    assert judged(results, cell=replace(CELL, target=1.04)).verdict is Verdict.NEAR
    assert judged(results, cell=replace(CELL, target=float("nan"))).verdict is Verdict.FAIL


def set_machine(part: str, **values: Any) -> Edit:
    return lambda parts: parts[part]["machine"].update(values)


def set_timing(part: str, index: int, **values: Any) -> Edit:
    return lambda parts: parts[part]["timings"][index].update(values)


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        (set_machine("steps", gpu="NVIDIA H100"), "made on NVIDIA H100, not NVIDIA H200"),
        (
            set_machine("steps", kernels="other"),
            "steps: its digests at ccccccc are not recorded; run `python -m perf_gates.digest` where git holds that commit",
        ),
        (set_timing("steps", 1, noise=0.03), "noise of scan 0.030, above 0.02"),
        (set_timing("steps", 0, clock_mhz=1500), "clock at step 1500 MHz, of 1980"),
        (set_timing("steps", 0, clock_mhz=None), "steps holds no noise or no clock of step"),
        (set_timing("peers", 1, us=18.9), "our peers/step, ours takes 1.06 of vLLM's at batch 16"),
        (set_machine("steps", torch="2.13.0"), "steps was made with torch 2.13.0, not 2.11.0"),
        (set_timing("steps", 0, us=25.2), "our baseline step takes 1.40 of its bytes in steps, above 1.2"),
        (
            set_timing("steps", 1, us=2.0),
            "scan of mamba2-2.7b at 16 took 2.00 us in steps, where its bytes and products take 3.75 at the least",
        ),
        (lambda parts: parts["steps"]["timings"].pop(1), "not measured: steps: no 'scan' of mamba2-2.7b at 16"),
    ],
)
def test_what_cannot_be_compared_is_never_green(edit: Any, why: str, tmp_path: Path) -> None:
    found = judged(folder(tmp_path, edit))
    assert (found.verdict, found.why) == (Verdict.UNKNOWN, why)


def test_a_baseline_within_the_limit_of_its_peer_is_compared(tmp_path: Path) -> None:
    assert judged(folder(tmp_path, set_timing("peers", 1, us=19.2))).verdict is Verdict.PASS


def test_tau_multiplies_and_the_floor_of_a_speed_up_is_that_of_the_bytes(tmp_path: Path) -> None:
    table = replace(TABLE, kind="simulated acceptance", sense="least")
    drafted = replace(GATES, dims=GATES.dims | {"mamba2-2.7b": GATES.dims["pythia-6.9b"]})
    cell = replace(CELL, tau=3.0, target=3.0)
    found = judged(folder(tmp_path), table, cell, drafted)
    assert found.value == pytest.approx(3.0 * 21.0 / 20.0)
    assert found.floor == GATES.dims["pythia-6.9b"].floor(3.0)


def steps(path: Path, **changed: Any) -> Results:
    """A plain step and a window of a model whose weights take 1000 us and whose states take 100 us at copy bandwidth."""
    plain = timing("plain, window of 1", 1500.0, 1_100_000_000, 1, weights=10**9, products=10**9)
    window = timing("replay, window of 7", 1800.0, 1_200_000_000, 1, weights=10**9, products=7 * 10**9)
    return written(path, {"bench": part(plain, window | changed)})


STEPS = replace(TABLE, kind="step")
WINDOW = gates.at("bench/replay, window of 7/1", "mamba2-2.7b")
PLAIN = gates.at("bench/plain, window of 1/1", "mamba2-2.7b")


def test_the_floor_of_a_step_is_its_weights_or_products_and_what_else_it_moves(tmp_path: Path) -> None:
    cell = Cell("c", 1.25, (WINDOW,), (PLAIN,))
    found = judged(steps(tmp_path), STEPS, cell)
    assert (found.verdict, found.value) == (Verdict.PASS, 1.2)
    assert found.floor == pytest.approx(1200 / 1100)
    slow = judged(steps(tmp_path, products=2 * 10**6 * 989 * 1000), STEPS, cell)
    assert slow.floor == pytest.approx((2000 + 200) / 1100)


def test_a_target_may_be_a_share_of_the_runs_floor(tmp_path: Path) -> None:
    cell = Cell("c", 1.0, (WINDOW,), (PLAIN,))
    within = judged(steps(tmp_path), replace(STEPS, of_floor=1.15), cell)
    assert (within.verdict, within.target) == (Verdict.PASS, 1.25)
    assert judged(steps(tmp_path, us=1950.0), replace(STEPS, of_floor=1.15), cell).verdict is Verdict.FAIL


def test_a_step_is_set_against_its_own_floor(tmp_path: Path) -> None:
    floor = gates.at("floor/plain, window of 1/1", "mamba2-2.7b")
    found = judged(steps(tmp_path), STEPS, Cell("c", 1.4, (PLAIN,), (floor,)))
    assert (found.verdict, found.value) == (Verdict.PASS, pytest.approx(1500 / 1100))
    made_elsewhere = steps(tmp_path)
    made_elsewhere.parts["bench"]["machine"]["kernels"] = "other"
    assert judged(made_elsewhere, STEPS, Cell("c", 1.4, (PLAIN,), (floor,))).verdict is Verdict.UNKNOWN


def test_a_step_without_its_bytes_has_no_floor_and_is_not_compared(tmp_path: Path) -> None:
    found = judged(steps(tmp_path, weights=0), STEPS, Cell("c", 1.25, (WINDOW,), (PLAIN,)))
    assert (found.verdict, found.why) == (
        Verdict.UNKNOWN,
        "not measured: bench: no bytes of 'replay, window of 7' of mamba2-2.7b at 1",
    )


def test_speed_up_at_a_tau_has_the_lower_of_both_floors(tmp_path: Path) -> None:
    table = replace(TABLE, kind="simulated acceptance", sense="least")
    found = judged(steps(tmp_path), table, Cell("c", 1.5, (PLAIN,), (WINDOW,), tau=2.0))
    assert (found.verdict, found.value) == (Verdict.PASS, pytest.approx(2 * 1500 / 1800))
    assert found.floor == pytest.approx(2 * 1100 / 1200)


def test_what_a_cost_gains_is_shown_for_every_tau_of_its_window() -> None:
    table = GATES.table("replayssm-2")
    four, six = (next(c for c in table.cells if f"T={t}" in c.at) for t in (4, 6))
    found = [Judged(Row(table, cell), Verdict.PASS, 1.0, cost) for cell, cost in ((four, 1.25), (six, 2.0))]
    *_, short, long, end = paper_table.speed_ups(found)
    assert short == f"| {four.at} | 0.80 | 1.60 | 2.40 | 3.20 |  |  |"
    assert long == f"| {six.at} | 0.50 | 1.00 | 1.50 | 2.00 | 2.50 | 3.00 |"
    assert end == ""


@pytest.mark.parametrize(
    ("value", "target", "sense", "shown"),
    [
        (0.9134, 0.91, "most", "0.913"),  # 0.91 for <= 0.91 would read as reached
        (0.9134, 0.92, "most", "0.91"),
        (1.496, 1.5, "least", "1.496"),
        (1.504, 1.5, "least", "1.50"),
        (1.9996, 2.0, "least", "1.9996"),
        (float("nan"), 2.0, "least", "nan"),
    ],
)
def test_a_figure_lies_on_the_side_of_the_target_where_it_was_measured(
    value: float, target: float, sense: str, shown: str
) -> None:
    assert paper_table.figure(value, target, sense) == shown


def test_the_table_shows_every_cell_with_its_verdict(tmp_path: Path) -> None:
    results = folder(tmp_path)
    found = [j for j in judge(GATES, results, KERNELS, bars_of(results)) if j.row.kernel is None]
    text = paper_table.text(GATES, found)
    assert len(found) == sum(len(table.cells) for table in GATES.tables)
    assert sum(text.count(f"| {verdict.value} |\n") for verdict in Verdict) >= len(found)
