"""The table of the kernels: what it divides by, its floors, and what it says beside its cells; on the committed results."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perf_gates.machine import kernels_hash
from perf_gates.ratchet import bars, baselines
from perf_gates.ratchet.rows import of_kernel
from perf_gates.report import kernel_table, missed_cells
from perf_gates.static import launch_traffic
from perf_gates.verdicts import floors, gates, targets
from perf_gates.verdicts.measured import At, Missing, Ratio, Results
from perf_gates.verdicts.value import Values
from perf_gates.verdicts.verdict import Verdict

from .gates_results import at, edited

RESULTS = Path(__file__).parents[2] / "perf_gates" / "results"
PARTS = ("steps", "buffered", "buffered_delta", "kda", "unrolled", "linear", "prefill", "peers")


def run(path: Path, place: At | None = None, **values: Any) -> Results:
    """The parts that this table is made of, with one measurement changed."""
    return edited(path, at(place, lambda t: t.update(values)) if place else lambda parts: None, PARTS)


def cells(row: str, shape: str, batch: int) -> list[targets.Cell]:
    return [c for c in targets.cells() if (c.row, c.shape, c.batch) == (row, shape, batch)]


def value(cell: targets.Cell, results: Results) -> float:
    """As every command and page computes it."""
    return Values(gates.load().limits, results, baselines.held(results, bars.read()))(of_kernel(cell))


# --- denominators ---


@pytest.mark.parametrize("shape", targets.SHAPES)
@pytest.mark.parametrize("place", range(4), ids=["alone", "next to buffers", "next to the peer's", "the peer's"])
def test_what_divides_by_a_step_takes_the_fastest_of_all_parts(shape: str, place: int, tmp_path: Path) -> None:
    """Each of the four in its turn is made the fastest: every cell that divides by a step follows it."""
    results = run(tmp_path, targets.steps(shape, 64)[place], us=7.0)
    dividing = [c for row in ("fused scan", "buffered standard", "verification") for c in cells(row, shape, 64)]
    dividing = [c for c in dividing if "copy" not in c.what]
    assert len(dividing) >= 8
    for cell in dividing:
        assert isinstance(cell.reached, Ratio)
        window = min(map(results.us, cell.reached.under if cell.least else cell.reached.over))
        assert value(cell, results) == pytest.approx(7.0 / window if cell.least else window / 7.0)


def test_a_plain_step_itself_is_that_of_slots_of_its_own(tmp_path: Path) -> None:
    """A faster one in another part moves nothing in its own row."""
    runs = run(tmp_path / "a"), run(tmp_path / "b", At("peers", "qwen3.5-4b", "step, ours", 4), us=1.0)
    before, after = ([value(c, results) for c in cells("plain step", "qwen3.5-4b", 4)] for results in runs)
    assert before == after


def test_the_page_shows_every_step_and_the_spread(tmp_path: Path) -> None:
    place = At("buffered", "mamba2-2.7b", "step", 16)
    slow = run(tmp_path / "a", place, us=50.0)
    rows = list(kernel_table.plain_steps(slow))
    assert len(rows) == 2 + 15
    (row,) = [r for r in rows if r.startswith("| mamba2-2.7b | 16 |")]
    ours = [slow.us(at) for at in targets.steps("mamba2-2.7b", 16)]
    assert row.endswith(f"| {50 / min(ours[:3]):.2f} | {ours[3]:.2f} vLLM |")
    gone = run(tmp_path / "b", place, operation="other")
    (row,) = [r for r in kernel_table.plain_steps(gone) if r.startswith("| mamba2-2.7b | 16 |")]
    assert row.split(" | ")[3] == row.split(" | ")[5] == "-"


# --- floors ---


def test_every_cell_that_is_missed_has_a_floor(tmp_path: Path) -> None:
    results = run(tmp_path)
    short = missed_cells.missing(kernel_table.judged(results, kernels_hash()))
    assert len(short) > 100
    for cell, _ in short:
        assert kernel_table.floor(cell, results) not in ("", "-"), cell.what


def test_floor_of_a_packed_tree_follows_from_the_shapes_where_no_bytes_were_written_down(tmp_path: Path) -> None:
    """Of mamba2-2.7b, counted by hand: states of fp32, and x, y, B, C, dt of a node in bf16; the mask has a byte a pair."""
    state, node = 4 * 80 * 64 * 128, 2 * (2 * 80 * 64 + 2 * 128 + 80)
    tree, rows = 4 * (state + 63 * node + 63 * 63), 4 * 32 * 6 * node
    assert launch_traffic.bytes_of(At("unrolled", "mamba2-2.7b", launch_traffic.PACKED, 4)) == tree
    assert launch_traffic.bytes_of(At("unrolled", "mamba2-2.7b", launch_traffic.PRIVATE, 4)) == rows + 4 * 32 * state
    assert launch_traffic.bytes_of(At("unrolled", "mamba2-2.7b", launch_traffic.SHARED, 4)) == rows + 4 * state
    private, shared = cells("packed tree", "mamba2-2.7b", 4)
    results = run(tmp_path)
    machine = results.parts["unrolled"]["machine"]
    copy, launch = machine["copy_bytes_per_us"], machine["empty_launch_us"]
    for cell, each in ((private, 32), (shared, 1)):
        assert not isinstance(cell.floor, str)
        assert cell.floor(results) == pytest.approx(((rows + 4 * each * state) / copy + launch) / (tree / copy + launch))
    written = run(tmp_path, At("unrolled", "mamba2-2.7b", launch_traffic.PACKED, 4), bytes=2 * tree)
    assert isinstance(shared.floor, floors.Floor)
    assert shared.floor(written) == pytest.approx((rows / copy + 4 * state / copy + launch) / (2 * tree / copy + launch))


def test_delta_rule_and_prompts_are_counted_by_the_formulas_of_their_kernels() -> None:
    state, node = 4 * 32 * 128 * 128, 2 * (2 * 16 * 128 + 2 * 32 * 128) + 2 * 4 * 32
    assert launch_traffic.bytes_of(At("unrolled", "qwen3.5-4b", launch_traffic.PACKED, 1)) == state + 63 * node + 63 * 63
    assert launch_traffic.bytes_of(At("unrolled", "qwen3.5-4b", launch_traffic.SHARED, 1)) == state + 32 * 6 * node
    place = At("prefill", "nemotron-3-nano-4b", "causal_attention, ours in bf16", 1)
    assert launch_traffic.bytes_of(place) == 2 * 4096 * 128 * (2 * 40 + 2 * 8)
    for who in (At("prefill", "qwen3.5-4b", "delta_chunk_scan, fla", 1), At("steps", "qwen3.5-4b", "step", 1)):
        with pytest.raises(Missing):
            launch_traffic.bytes_of(who)


def test_floor_of_attention_is_that_of_its_products_and_of_a_small_peak(tmp_path: Path) -> None:
    (cell,) = [c for c in cells("prefill", "nemotron-3-nano-4b", 1) if "causal" in c.what]
    results = run(tmp_path)
    pairs = sum(range(1, 4097))
    theirs = results.us(At("prefill", "nemotron-3-nano-4b", "causal_attention, torch", 1))
    assert not isinstance(cell.floor, str)
    assert cell.floor(results) == pytest.approx((40 * pairs * 4 * 128 / 989e6 + results.launch_us("prefill")) / theirs)
    assert (
        cell.floor(results) > floors.copy_us(results, At("prefill", cell.shape, "causal_attention, ours in bf16", 1)) / theirs
    )


def test_products_of_linear_layers_are_129_launches(tmp_path: Path) -> None:
    cell, *_ = cells("linear_rows", "mamba2-2.7b", 1)
    results, place = run(tmp_path), At("linear", "mamba2-2.7b", "linear_rows", 1)
    assert not isinstance(cell.floor, str)
    copy = results.copy_us(place)
    assert cell.floor(results) == copy / (copy + (2 * 64 + 1) * results.launch_us("linear"))


# --- beside the cells ---


def test_the_contract_that_no_peer_has_is_shown_from_the_results(tmp_path: Path) -> None:
    place = At("prefill", "qwen3.5-4b", "delta_chunk_scan, ours", 1)
    results = run(tmp_path / "a", place, us=1000.0)
    theirs = results.us(At("prefill", "qwen3.5-4b", "delta_chunk_scan, fla", 1))
    assert f"| delta_chunk_scan | qwen3.5-4b | {1000 / theirs:.2f} fla |" in kernel_table.accurate(results)
    assert len(list(kernel_table.accurate(results))) == 2 + len(targets.PREFILL)
    gone = run(tmp_path / "b", place, operation="other")
    assert "| delta_chunk_scan | qwen3.5-4b | - fla |" in kernel_table.accurate(gone)


def test_what_was_not_measured_is_counted_as_unknown(tmp_path: Path) -> None:
    results = run(tmp_path)
    found = kernel_table.judged(results, kernels_hash())[:2]
    gone = [replace(found[0], verdict=Verdict.UNKNOWN, value=None), replace(found[1], verdict=Verdict.PASS)]
    said = "2 cells: 1 pass, 0 near, 0 known miss, 0 to tighten, 0 FAIL, 1 unknown."
    assert kernel_table.count(gone) == said
    assert kernel_table.line(gone[0], results).endswith("| **unknown** |")


def test_the_page_names_every_file_of_the_results_and_none_that_is_gone() -> None:
    listed = kernel_table.README.read_text().split("| in `results/` |")[1].split("\n\n")[0]
    files = re.compile(r"`([\w-]+\.(?:jsonl?|toml))`")
    named = {name for row in listed.splitlines()[2:] for name in files.findall(row.split("|")[1])}
    assert named == {file.name for file in RESULTS.iterdir()}
