"""A cell has one value in every command and page, and noise excuses only a verdict that it could change."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from perf_gates import cli
from perf_gates.digest import record
from perf_gates.machine import kernels_hash
from perf_gates.ratchet import bars
from perf_gates.ratchet.bars import Bars
from perf_gates.ratchet.outcome import outcome
from perf_gates.ratchet.rows import Row
from perf_gates.report import kernel_table
from perf_gates.verdicts import targets
from perf_gates.verdicts.measured import At, Results
from perf_gates.verdicts.verdict import Judged, Verdict, judge

from .gates_results import CELL, COMMITTED, GATES, KERNELS, TABLE, Edit, Parts, at, edited, folder, judged


def made(path: Path, limit_path: Path, edit: Edit) -> tuple[Results, Bars]:
    """The made run after an edit, with the limits of the run before it."""
    limit_path.mkdir()
    return folder(path, edit), Bars({}, "as they were", bars.times(folder(limit_path)), {"t, c": 1.05})


def noisy(index: int, noise: float) -> Edit:
    """The step (0) or the scan (1) with an error."""
    return lambda parts: parts["steps"]["timings"][index].update(noise=noise)


@pytest.mark.parametrize("index", [0, 1], ids=["the baseline", "what is judged"])
@pytest.mark.parametrize(
    ("sense", "target", "noise", "missed", "verdict"),
    [
        ("most", 0.8, 0.03, True, Verdict.MISS),
        ("most", 0.8, 0.03, False, Verdict.FAIL),
        ("most", 1.02, 0.03, True, Verdict.UNKNOWN),
        ("most", 1.1, 0.03, False, Verdict.UNKNOWN),
        ("most", 1.2, 0.03, False, Verdict.PASS),
        ("most", 1.2, 0.03, True, Verdict.TIGHTEN),
        ("least", 1.3, 0.03, True, Verdict.MISS),
        ("least", 1.3, 0.03, False, Verdict.FAIL),
        ("least", 1.1, 0.03, True, Verdict.UNKNOWN),
        ("least", 1.0, 0.03, False, Verdict.UNKNOWN),
        ("least", 0.9, 0.03, False, Verdict.PASS),
        ("most", 0.8, 0.5, True, Verdict.UNKNOWN),
        ("most", 0.05, 0.5, True, Verdict.MISS),
        ("most", 20.0, 0.5, False, Verdict.PASS),
    ],
)
def test_noise_excuses_only_a_verdict_that_it_could_change(
    index: int, sense: str, target: float, noise: float, missed: bool, verdict: Verdict, tmp_path: Path
) -> None:
    results, held = made(tmp_path, tmp_path / "before", noisy(index, noise))
    stood = held if missed else replace(held, missed={})
    j = judged(results, replace(TABLE, sense=sense), replace(CELL, target=target), stood=stood)
    assert j.verdict is verdict
    assert j.value == 21.0 / 20.0
    assert f"noise of {('step', 'scan')[index]} {noise:.3f}, above 0.02" in j.why
    assert ("which does not change the verdict" in j.why) is (verdict is not Verdict.UNKNOWN)


@pytest.mark.parametrize("noise", [None, float("nan"), float("inf"), -0.1])
def test_an_error_that_says_nothing_leaves_every_verdict_unknown(noise: Any, tmp_path: Path) -> None:
    results, held = made(tmp_path, tmp_path / "before", noisy(1, noise))
    for target in (0.001, 1000.0):
        j = judged(results, cell=replace(CELL, target=target), stood=held)
        assert j.verdict is Verdict.UNKNOWN
        assert j.why.startswith("steps holds no noise or no clock of scan")


@pytest.mark.parametrize(("share", "how"), [(1.0, None), (1.1, None), (1.3, "noisy"), (2.6, "slower")])
def test_noise_hides_no_slower_kernel(share: float, how: str | None, tmp_path: Path) -> None:
    """The target is far, so only the limit can tell. Three errors of 50 % would explain 2.5 times the limit."""

    def slow(parts: Parts) -> None:
        parts["steps"]["timings"][1].update(noise=0.5, us=21.0 * share)

    results, held = made(tmp_path, tmp_path / "before", slow)
    off = {m.name: m.how for m in bars.moved(held, bars.times(results), GATES.limits, GATES.slacks)}
    assert off.get("steps/mamba2-2.7b/scan/16") == how
    j = judged(results, cell=replace(CELL, target=100.0), stood=replace(held, missed={}))
    assert j.verdict is {None: Verdict.PASS, "noisy": Verdict.UNKNOWN, "slower": Verdict.FAIL}[how]
    assert any("steps/mamba2-2.7b/scan/16" in line for line in outcome(GATES, results, KERNELS, held).reds) is bool(how)


def test_noise_of_a_time_does_not_touch_a_size(tmp_path: Path) -> None:
    def sized(parts: Parts) -> None:
        for timing, memory in zip(parts["steps"]["timings"], (100, 150), strict=True):
            timing.update(memory=memory, noise=0.5)

    results = folder(tmp_path, sized)
    j = judged(results, replace(TABLE, kind="memory"), replace(CELL, target=1.6))
    assert (j.verdict, j.value, j.why) == (Verdict.PASS, 1.5, "")


def test_a_latency_under_load_whose_steps_are_noisy_is_unknown(tmp_path: Path) -> None:
    rows = [Row(t, c) for t in GATES.tables for c in t.cells if c.over[0].part == "traffic" == c.under[0].part]
    assert rows
    place = At("bench", rows[0].cell.over[0].shape, "plain, window of 1", 4)
    results = edited(tmp_path / "run", at(place, lambda timing: timing.update(noise=0.03)))
    found = list(judge(GATES, results, kernels_hash(), bars.read(), rows))
    noisy = [j for j in found if j.cell.over[0].shape == place.shape]
    assert {j.verdict for j in noisy} == {Verdict.UNKNOWN}
    assert all("noise of plain, window of 1 0.030" in j.why for j in noisy)


def test_a_miss_by_sixteen_times_is_a_known_miss(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was measured: the engine may have changed since, which makes it unknown."""
    monkeypatch.setattr(record, "fault", lambda *of: "")
    monkeypatch.setattr(record, "listed", lambda *of: "")
    (j,) = [j for j in outcome(GATES, COMMITTED, kernels_hash(), bars.read()).judged if j.table.id == "drafters-4"]
    same, text = (
        bars.read().times["trained/checkpoints/same tokens/1"].us,
        COMMITTED.timing(At("trained", "checkpoints", "by text", 1)),
    )
    assert j.value == pytest.approx(same / text["us"], rel=1e-4), "a slower baseline keeps its limit"
    assert (j.verdict, j.listed) == (Verdict.MISS, "")
    assert text["noise"] > GATES.limits.noise
    assert f"noise of by text {text['noise']:.3f}" in j.why


# --- one value ---


def shown(page: str) -> dict[tuple[str, str, str], tuple[str, str]]:
    """Value and verdict of each cell of the kernels' table, as a page shows them."""
    rows = [[part.strip() for part in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("| ")]
    return {(r[0], r[1], r[2]): (r[4], r[7].strip("*")) for r in rows if len(r) == 8 and r[0] != "what"}


def test_page_and_verdicts_give_each_cell_one_value_and_one_verdict() -> None:
    page = shown(kernel_table.README.read_text())
    found = [j for j in outcome(GATES, COMMITTED, kernels_hash(), bars.read()).judged if j.row.kernel]
    assert len(page) == len(found) == 231
    for j in found:
        assert j.row.kernel
        assert j.value is not None
        value, verdict = page[j.row.kernel.what, j.row.kernel.shape, str(j.row.kernel.batch)]
        assert (float(value), verdict) == (pytest.approx(j.value, abs=0.0051), j.verdict.value)


PLAIN_STEP = "plain step, bytes / time in copy, mamba2-2.7b, batch 64"


def times(factor: float) -> Callable[[dict[str, Any]], None]:
    return lambda timing: timing.update(us=factor * timing["us"])


def cell_of(results: Results, name: str) -> Judged:
    (found,) = [j for j in outcome(GATES, results, kernels_hash(), bars.read()).judged if j.cell.at == name]
    return found


PARTS_OF_A_STEP = ("steps", "buffered", "peers", "papers")


@pytest.mark.parametrize("part", PARTS_OF_A_STEP)
def test_a_cell_measured_in_several_parts_has_the_worse_value_everywhere(part: str, tmp_path: Path) -> None:
    """Whichever part is the slow one: the table of the kernels, the verdicts and `why` say the same."""
    place = At(part, "mamba2-2.7b", "step, ours" if part == "peers" else "step", 64)
    results, name = edited(tmp_path / "run", at(place, times(1.2))), PLAIN_STEP
    j = cell_of(results, name)
    worse = results.copy_us(At("steps", place.shape, "step", 64)) / results.us(place)
    assert j.value == pytest.approx(worse)
    assert j.value < j.target
    assert "unstable: step of mamba2-2.7b at 64 took" in j.unstable
    assert shown(kernel_table.text(results))["plain step, bytes / time in copy", place.shape, "64"][0] == f"{worse:.2f}"
    said = CliRunner().invoke(cli.app, ["why", name, "--results", str(tmp_path / "run")]).output
    assert f"figure    {worse:.6g}" in said


def test_every_launch_that_two_parts_measure_is_compared_not_the_plain_step_alone(tmp_path: Path) -> None:
    place = At("papers", "mamba2-2.7b", "verify 6, 4 advanced, L=22, aligned", 64)
    results = edited(tmp_path / "run", at(place, times(1.2)))
    j = cell_of(results, "verification of 6, 4 advanced, L = 22, aligned: over a step, mamba2-2.7b, batch 64")
    assert "unstable: verify 6" in j.unstable
    fastest = min(results.us(step) for step in targets.steps(place.shape, 64))
    assert j.value == pytest.approx(results.us(place) / fastest)


def test_a_faster_time_in_another_part_makes_no_judged_value_better(tmp_path: Path) -> None:
    faster = edited(tmp_path / "run", at(At("buffered", "mamba2-2.7b", "step", 64), times(0.8)))
    before, after = (cell_of(run, PLAIN_STEP) for run in (COMMITTED, faster))
    assert after.value == before.value
    assert "unstable" in after.unstable
