"""The gates: every table of the papers is there, and a verdict is pass, fail or not comparable as it should be."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from perf_gates import cli, gates, occupancy, paper_table, served, stable, verdict
from perf_gates.allocated import row_bytes
from perf_gates.compiled import Cost
from perf_gates.gates import Cell, GateError, Gates, Table
from perf_gates.measured import At, Missing, Results
from perf_gates.pairs import ImplausibleTimeError, Side, TimeGate, WrongOutputError, measure
from perf_gates.verdict import Verdict

GATES = gates.load()
KERNELS = "k" * 16
PAPERS = {
    "Snakes and Ladders": [*(f"table {n}" for n in range(1, 6)), "figure 4"],
    "STree": [*(f"table {n}" for n in range(1, 9)), *(f"figure {n}" for n in (2, 3, 4))],
    "Mamba Drafters": [*(f"table {n}" for n in range(1, 8)), *(f"figure {n}" for n in (1, 2))],
    "ReplaySSM": [f"figure {n}" for n in (2, 6, 7, 8, 9, 10, 11)],
}


# --- the file ---


@pytest.mark.parametrize(("paper", "part"), [(paper, part) for paper, parts in PAPERS.items() for part in parts])
def test_every_table_and_figure_has_its_gate(paper: str, part: str) -> None:
    found = [t for t in GATES.tables if re.match(rf"{paper}, {part}\b", t.source)]
    assert found
    assert all(table.cells for table in found)


def test_windows_of_2_to_8_batches_to_256_and_models_to_23b_are_among_them() -> None:
    places = [p for table in GATES.tables for cell in table.cells for p in (*cell.over, *cell.under)]
    assert {f"snapshots of {t}" for t in (2, 4, 6, 8)} <= {p.operation for p in places}
    assert {1, 16, 64, 256} <= {p.batch for p in places}
    assert {"mamba2-1.3b", "mamba2-7b", "mamba2-13b", "mamba2-23b"} <= {p.shape for p in places}


def test_what_needs_trained_weights_says_what_stands_in() -> None:
    trained = [table for table in GATES.tables if table.kind == "trained"]
    assert len(trained) >= 4
    assert all("stands in" in t.weights or "stand in" in t.weights for t in trained)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('id = "snakes-2"', 'id = "snakes-3"', "the table 'snakes-3' comes twice"),
        ('kind = "kernel"', 'kind = "guess"', "kind 'guess'"),
        ('dims = "mamba2-2.7b"\nkind', 'dims = "mamba9"\nkind', "dims 'mamba9' are not there"),
        ("steps/step/1", "steps step 1", "give part/operation/batch"),
        ("noise = 0.02", "loudness = 0.02", "loudness"),
        ('reason = "One launch reads and writes the state once, whatever the number of tokens."', 'reason = ""', "no reason"),
        ('over = ["steps/step/1"]', "over = []", "compares nothing"),
    ],
)
def test_a_file_that_no_gate_can_be_made_of_is_refused(old: str, new: str, message: str, tmp_path: Path) -> None:
    text = gates.FILE.read_text()
    assert old in text
    (tmp_path / "gates.toml").write_text(text.replace(old, new, 1))
    with pytest.raises(GateError, match=re.escape(message)):
        gates.load(tmp_path / "gates.toml")


def test_target_is_a_share_of_the_floor_where_that_is_more() -> None:
    table = GATES.table("stree-3")
    cell = table.cells[0]
    dims = GATES.dims[table.dims]
    assert dims.floor(cell.tau) == cell.tau / (1 + dims.forwards * dims.draft_gb / dims.target_gb)
    assert GATES.target(table, cell) == max(cell.target, round(0.85 * dims.floor(cell.tau), 2))
    assert GATES.target(replace(table, of_floor=0.0), cell) == cell.target
    with pytest.raises(GateError, match="give one of snakes-1,"):
        GATES.table("none")


# --- verdicts ---

TABLE = Table("t", "a paper, table 1", "mamba2-2.7b", "kernel", "most", "random", "Because.", (), bounds="bound by something")
CELL = Cell("c", 1.1, (At("steps", "mamba2-2.7b", "scan", 16),), (At("steps", "mamba2-2.7b", "step", 16),), 1.2)


def folder(path: Path, edit: Callable[[dict[str, Any]], None] | None = None) -> Results:
    """A scan that takes 1.05 of a step, our step beside vLLM's, all as it should be."""
    machine = {"gpu": GATES.limits.gpu, "kernels": KERNELS, "torch": "2", "triton": "3", "commit": "c" * 40}
    machine |= {"copy_bytes_per_us": 1e6, "empty_launch_us": 1.0}
    timings = {
        "steps": [("step", 20.0, 9_000_000), ("scan", 21.0, 9_900_000)],
        "peers": [("step, ours", 20.0, 9_000_000), ("step, vLLM", 19.5, 9_000_000)],
    }
    parts: dict[str, Any] = {}
    for part, rows in timings.items():
        made = [
            {"model": "mamba2-2.7b", "operation": o, "batch": 16, "us": us, "bytes": b, "noise": 0.001, "clock_mhz": 1980}
            for o, us, b in rows
        ]
        parts[part] = {"machine": dict(machine), "complete": True, "errors": [], "timings": made}
    if edit:
        edit(parts)
    for part, found in parts.items():
        (path / f"{part}.json").write_text(json.dumps(found))
    return Results(path)


def judged(results: Results, table: Table = TABLE, cell: Cell = CELL) -> verdict.Judged:
    return verdict.of_cell(GATES, results, KERNELS, table, cell)


def test_a_cell_that_holds_passes_and_shows_its_floor(tmp_path: Path) -> None:
    found = judged(folder(tmp_path))
    assert (found.verdict, found.value) == (Verdict.PASS, 21.0 / 20.0)
    assert found.floor == pytest.approx((9.9 + 1) / (9.0 + 1))


def test_a_cell_that_misses_fails_and_says_what_bounds_it(tmp_path: Path) -> None:
    found = judged(folder(tmp_path), cell=replace(CELL, target=1.04))
    assert (found.verdict, found.why) == (Verdict.FAIL, "bound by something")
    assert judged(folder(tmp_path), replace(TABLE, sense="least"), replace(CELL, target=1.06)).verdict is Verdict.FAIL


def set_machine(part: str, **values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda parts: parts[part]["machine"].update(values)


def set_timing(part: str, index: int, **values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda parts: parts[part]["timings"][index].update(values)


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        (set_machine("steps", gpu="NVIDIA H100"), "made on NVIDIA H100, not NVIDIA H200"),
        (set_machine("steps", kernels="other"), "steps was made with kernels other, which are not those that stand"),
        (set_timing("steps", 1, noise=0.03), "noise of scan 0.030, above 0.02"),
        (set_timing("steps", 0, clock_mhz=1500), "clock at step 1500 MHz, of 1980"),
        (set_timing("steps", 0, clock_mhz=None), "steps holds no noise or no clock of step"),
        (set_timing("peers", 1, us=18.9), "our peers/step, ours takes 1.06 of vLLM's at batch 16"),
        (lambda parts: parts["steps"]["timings"].pop(1), "not measured: steps: no 'scan' of mamba2-2.7b at 16"),
    ],
)
def test_what_cannot_be_compared_is_never_green(edit: Any, why: str, tmp_path: Path) -> None:
    found = judged(folder(tmp_path, edit))
    assert (found.verdict, found.why) == (Verdict.NOT_COMPARABLE, why)


def test_a_baseline_within_the_limit_of_its_peer_is_compared(tmp_path: Path) -> None:
    assert judged(folder(tmp_path, set_timing("peers", 1, us=19.2))).verdict is Verdict.PASS


def test_tau_multiplies_and_the_floor_of_a_speed_up_is_that_of_the_bytes(tmp_path: Path) -> None:
    table = replace(TABLE, kind="simulated acceptance", sense="least")
    drafted = replace(GATES, dims=GATES.dims | {"mamba2-2.7b": GATES.dims["pythia-6.9b"]})
    cell = replace(CELL, tau=3.0, target=3.0)
    found = verdict.of_cell(drafted, folder(tmp_path), KERNELS, table, cell)
    assert found.value == pytest.approx(3.0 * 21.0 / 20.0)
    assert found.floor == GATES.dims["pythia-6.9b"].floor(3.0)


def steps(path: Path, **changed: Any) -> Results:
    """A plain step and a window of a model whose weights take 1000 us and whose states take 100 us at copy bandwidth."""
    machine = {"gpu": GATES.limits.gpu, "kernels": KERNELS, "copy_bytes_per_us": 1e6, "empty_launch_us": 1.0}
    common = {"model": "mamba2-2.7b", "batch": 1, "noise": 0.001, "clock_mhz": 1980, "weights": 10**9}
    plain = common | {"operation": "plain, window of 1", "us": 1500.0, "bytes": 1_100_000_000, "products": 10**9}
    window = common | {"operation": "replay, window of 7", "us": 1800.0, "bytes": 1_200_000_000, "products": 7 * 10**9}
    timings = [plain, window | changed]
    (path / "bench.json").write_text(json.dumps({"machine": machine, "complete": True, "errors": [], "timings": timings}))
    return Results(path)


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
    assert judged(steps(tmp_path, us=1890.0), replace(STEPS, of_floor=1.15), cell).verdict is Verdict.FAIL


def test_a_step_is_set_against_its_own_floor(tmp_path: Path) -> None:
    floor = gates.at("floor/plain, window of 1/1", "mamba2-2.7b")
    found = judged(steps(tmp_path), STEPS, Cell("c", 1.4, (PLAIN,), (floor,)))
    assert (found.verdict, found.value) == (Verdict.PASS, pytest.approx(1500 / 1100))
    made_elsewhere = steps(tmp_path)
    made_elsewhere.parts["bench"]["machine"]["kernels"] = "other"
    assert judged(made_elsewhere, STEPS, Cell("c", 1.4, (PLAIN,), (floor,))).verdict is Verdict.NOT_COMPARABLE


def test_a_step_without_its_bytes_has_no_floor_and_is_not_compared(tmp_path: Path) -> None:
    found = judged(steps(tmp_path, weights=0), STEPS, Cell("c", 1.25, (WINDOW,), (PLAIN,)))
    assert (found.verdict, found.why) == (
        Verdict.NOT_COMPARABLE,
        "not measured: bench: no bytes of 'replay, window of 7' of mamba2-2.7b at 1",
    )


def test_speed_up_at_a_tau_has_the_lower_of_both_floors(tmp_path: Path) -> None:
    table = replace(TABLE, kind="simulated acceptance", sense="least")
    found = judged(steps(tmp_path), table, Cell("c", 1.5, (PLAIN,), (WINDOW,), tau=2.0))
    assert (found.verdict, found.value) == (Verdict.PASS, pytest.approx(2 * 1500 / 1800))
    assert found.floor == pytest.approx(2 * 1100 / 1200)


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
    found = [verdict.of_cell(GATES, results, KERNELS, table, cell) for cell in table.cells]
    assert {f.verdict for f in found} == {Verdict.PASS}


def bench(path: Path, plain: float, speculative: float) -> Results:
    """Steps of the engine that grow by a tenth with each doubling of the batch. Units: microseconds."""
    machine = {"gpu": GATES.limits.gpu, "kernels": KERNELS, "torch": "2", "triton": "3"}
    timings = [
        {"model": "mamba2-2.7b", "operation": name, "batch": b, "us": us * 1.1**i, "noise": 0.001, "clock_mhz": 1980}
        for name, us in ((served.PLAIN, plain), (served.SPECULATIVE, speculative))
        for i, b in enumerate(served.BATCHES)
    ]
    (path / "bench.json").write_text(json.dumps({"machine": machine, "timings": timings}))
    return Results(path)


def test_traffic_is_replayed_with_the_measured_steps(tmp_path: Path) -> None:
    table = GATES.table("snakes-traffic")
    found = [verdict.of_cell(GATES, bench(tmp_path, 1800, 2000), KERNELS, table, cell) for cell in table.cells]
    assert {f.verdict for f in found} == {Verdict.PASS}
    assert all(f.value is not None and f.value < 0.6 for f in found)
    useless = [verdict.of_cell(GATES, bench(tmp_path, 1800, 9000), KERNELS, table, cell) for cell in table.cells]
    assert {f.value for f in useless} == {1.0}
    assert served.p95(bench(tmp_path, 1800, 2000), At("traffic", "mamba2-2.7b", "plain, load 0.1", 16)) > 400 * 1800e-6


def test_traffic_without_its_steps_or_of_noisy_ones_is_not_comparable(tmp_path: Path) -> None:
    table = GATES.table("snakes-traffic")
    missing = verdict.of_cell(GATES, Results(tmp_path), KERNELS, table, table.cells[0])
    assert (missing.verdict, missing.value) == (Verdict.NOT_COMPARABLE, None)
    results = bench(tmp_path, 1800, 2000)
    results.parts["bench"]["timings"][3]["noise"] = 0.5
    noisy = verdict.of_cell(GATES, results, KERNELS, table, table.cells[0])
    assert (noisy.verdict, noisy.why) == (Verdict.NOT_COMPARABLE, "noise of plain, window of 1 0.500, above 0.02")
    with pytest.raises(Missing, match="matter of traffic"):
        served.p95(results, At("traffic", "mamba2-2.7b", "guess", 16))


def test_what_a_cost_gains_is_shown_for_every_tau_of_its_window() -> None:
    table = GATES.table("replayssm-2")
    four, six = (next(c for c in table.cells if f"T={t}" in c.at) for t in (4, 6))
    found = [verdict.Judged(table, cell, Verdict.PASS, 1.0, cost) for cell, cost in ((four, 1.25), (six, 2.0))]
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
    found = list(verdict.judge(GATES, folder(tmp_path), KERNELS))
    text = paper_table.text(GATES, found)
    assert len(found) == sum(len(table.cells) for table in GATES.tables)
    assert text.count("| not comparable |\n") + text.count("| pass |\n") + text.count("| FAIL |\n") >= len(found)


# --- time, by a synthetic clock ---


class Synthetic:
    """Times of calls by their names, with noise, and a drift that moves all of them alike."""

    def __init__(self, seed: int, noise: float = 0.003, drift: float = 0.002) -> None:
        self.rng, self.noise, self.drift, self.now = np.random.default_rng(seed), noise, drift, 0

    def us(self, call: Callable[[], object]) -> float:
        self.now += 1
        return float(call()) * (1 + self.drift) ** self.now * float(np.exp(self.noise * self.rng.standard_normal()))  # type: ignore[arg-type]


def side(name: str, us: float, check: Callable[[], None] = lambda: None, **counts: int) -> Side:
    return Side(name, lambda: us, check, **counts)


GATE = TimeGate("scan over step", 1.10, GATES.limits.regression, GATES.limits.noise)
WANTED = GATES.limits.noise / 4


def test_ten_runs_give_the_same_verdict_and_a_delay_of_8_percent_fails_in_each() -> None:
    step = side("step", 20.0)
    for seed in range(10):
        pair = measure(side("scan", 22.0), step, Synthetic(seed), wanted=WANTED)
        slower = measure(side("scan", 22.0 * (1 + GATES.limits.delay)), step, Synthetic(100 + seed), wanted=WANTED)
        assert pair.error <= WANTED
        assert pair.ratio == pytest.approx(1.10, abs=0.02)
        assert (GATE.verdict(pair), GATE.verdict(slower)) == ("pass", "FAIL")


def test_noise_above_the_limit_is_not_comparable_and_the_stop_rule_ends_it() -> None:
    pair = measure(side("scan", 22.0), side("step", 20.0), Synthetic(0, noise=0.5), wanted=WANTED, most=40)
    assert len(pair.over_us) == len(pair.under_us) == 40
    assert pair.error > GATE.noise
    assert GATE.verdict(pair) == "not comparable"


def test_quiet_pairs_stop_early_and_loud_ones_go_on() -> None:
    counts = [
        len(measure(side("a", 1.0), side("b", 1.0), Synthetic(1, noise=noise), wanted=0.002).over_us)
        for noise in (0.001, 0.01)
    ]
    assert counts[0] == 10 < counts[1] < 200


def test_a_wrong_output_is_never_timed() -> None:
    def wrong() -> None:
        raise WrongOutputError("row 3 was not written")

    timed: list[float] = []
    clock = type("C", (), {"us": lambda _, call: timed.append(call()) or 1.0})()
    with pytest.raises(WrongOutputError, match="row 3"):
        measure(side("scan", 1.0), side("step", 1.0, wrong), clock, wanted=0.01)
    assert timed == []


@pytest.mark.parametrize(("us", "counts"), [(1.99, {"bytes": 9_600_000}), (3.3, {"launches": 3})])
def test_what_is_faster_than_its_bytes_or_its_launches_is_an_error(us: float, counts: dict[str, int]) -> None:
    limits = GATES.limits.bandwidth_tb_s, GATES.limits.launch_us
    with pytest.raises(ImplausibleTimeError, match="at least; check that the graph does"):
        side("scan", us, **counts).plausible(us, *limits)
    side("scan", us, **counts).plausible(us * 1.02, *limits)


def kept(path: Path, ratio: float = 1.1, verdict: str = "pass", caught: str = "FAIL") -> Path:
    """What pytest-benchmark writes of a core set of one pair."""
    told = {"name": GATES.core[0].name, "ratio": ratio, "error": 0.001, "best": 1.1, "verdict": verdict}
    told |= {"delayed": {"ratio": 1.08 * ratio, "verdict": caught}, "machine": {"gpu": "NVIDIA H200"}}
    path.write_text(json.dumps({"benchmarks": [{"extra_info": told}]}))
    return path


def test_runs_of_the_core_set_are_set_side_by_side(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"a\n{stable.MADE.begin}\n{stable.MADE.end}\n")
    core = GATES.core[0]
    files = [kept(tmp_path / f"{i}.json", core.best + i / 1000) for i in range(10)]
    assert stable.main([*map(str, files), "--out", str(tmp_path), "--page", str(page)]) == 0
    span = f"{core.best:.3f} to {core.best + 0.009:.3f}"
    assert f"| {core.name} | {core.best:g} | {span} | 0.10% | pass |" in page.read_text()
    kept(files[3], core.best * 1.06)
    assert stable.main([*map(str, files), "--out", str(tmp_path), "--page", str(page)]) == 1


@pytest.mark.parametrize(
    ("runs", "fault"),
    [
        ([{}] * 9, "9 runs, fewer than 10"),
        ([{}] * 9 + [{"verdict": "FAIL"}], "FAIL, pass"),
        ([{}] * 9 + [{"caught": "pass"}], "a delay was missed in 1 of 10 runs"),
    ],
)
def test_runs_that_differ_or_miss_the_delay_are_said(runs: list[dict[str, str]], fault: str, tmp_path: Path) -> None:
    held = stable.gathered([kept(tmp_path / f"{i}.json", **run) for i, run in enumerate(runs)])  # type: ignore[arg-type]
    assert list(stable.faults(held)) == [f"{GATES.core[0].name}: {fault}"]


# --- warps an SM ---


@pytest.mark.parametrize(
    ("registers", "shared", "warps", "expected"),
    [(64, 0, 4, 32), (128, 0, 4, 16), (255, 0, 8, 8), (32, 0, 1, 32), (16, 0, 4, 64), (64, 100 * 1024, 4, 8)],
)
def test_warps_that_an_sm_holds(registers: int, shared: int, warps: int, expected: int) -> None:
    assert occupancy.resident(Cost(registers, 0, 0, shared, 0, 0, 0), warps, 90) == expected


def test_floors_that_move_either_way_come_or_go_are_said() -> None:
    assert occupancy.compare({"a": 8}, {"a": 8}) == []
    lines = occupancy.compare({"a": 8, "b": 16, "c": 4}, {"a": 16, "b": 8, "d": 2})
    said = ["a: 16 -> 8 warps an SM", "b: 8 -> 16 warps an SM", "c: no floor", "d: a floor for what is not launched"]
    assert lines == [f"{line}; if that is meant, run `{occupancy.REWRITE}`" for line in said]


# --- the command ---


@pytest.fixture
def run() -> Callable[..., Any]:
    runner = CliRunner()
    return lambda *words: runner.invoke(cli.app, [str(word) for word in words])


def test_checks_run_in_processes_of_their_own_and_one_that_fails_fails_all(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[str, ...]] = []
    monkeypatch.setattr(cli, "process", lambda command: ran.append(command) or int("compiled" in command[0]))
    found = run("check")
    assert (found.exit_code, ran) == (1, list(cli.CHECKS.values()))
    assert found.output.splitlines()[1:] == ["counted: pass", "occupancy: pass", "compiled: FAIL"]
    assert run("check", "--only", "occupancy").exit_code == 0
    assert run("check", "--only", "guess").exit_code == 2


@pytest.mark.parametrize("command", ["check", "verdicts", "table", "page"])
def test_without_triton_gates_are_refused_and_not_failed(command: str, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "find_spec", lambda name: None)
    found = run(command)
    assert found.exit_code == cli.REFUSED
    assert "pip install 'ssmspec[kernels]'" in found.output


def test_the_command_shows_the_table_and_exits_by_the_verdicts(run: Any, tmp_path: Path) -> None:
    folder(tmp_path)
    page = tmp_path / "page.md"
    page.write_text(f"{paper_table.MADE.begin}\n{paper_table.MADE.end}\n")
    assert run("table", tmp_path, "--write", "--page", page).exit_code == 0
    assert "| Snakes and Ladders, table 1 (A10G presumed) | kernel |" in page.read_text()
    assert run("verdicts", tmp_path).exit_code == 0


def test_the_page_holds_its_plots_and_every_cell(run: Any, tmp_path: Path) -> None:
    folder(tmp_path)
    for out in ("a", "b"):
        assert run("page", tmp_path, "--out", tmp_path / out).exit_code == 0
    text = (tmp_path / "a" / "performance.html").read_text()
    assert text.count("<svg") == 6
    assert text.count("</tr>") == 1 + sum(len(table.cells) for table in GATES.tables)
    for name in ("roofline", "ratios", "cost", "throughput", "steps", "sequences"):
        assert (tmp_path / "a" / f"{name}.svg").read_text() == (tmp_path / "b" / f"{name}.svg").read_text()


def test_the_gates_are_frozen() -> None:
    assert isinstance(GATES, Gates)
    with pytest.raises(AttributeError):
        GATES.limits.noise = 1.0  # type: ignore[misc]


def test_a_delay_of_8_percent_is_as_many_launches_more(monkeypatch: pytest.MonkeyPatch) -> None:
    from perf_gates.gpu import core

    made: list[int] = []
    monkeypatch.setattr(core, "graphed", lambda launches: made.append(len(launches)))
    for copies in (8, 9, 12, 23, 96):
        _, count = core.swept([lambda: None] * copies, 0.0)
        core.swept([lambda: None] * copies, GATES.limits.delay)
        assert made[-2] == count >= core.LEAST
        assert made[-1] / count == pytest.approx(1 + GATES.limits.delay, abs=0.01)
