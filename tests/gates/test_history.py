"""Runs kept and compared: what is significant, what is a regression, what says nothing."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from perf_gates import cli
from perf_gates.digest import texts
from perf_gates.machine import kernels_hash
from perf_gates.verdicts import gates, history
from perf_gates.verdicts.history import Change, NotComparableError, Run, Time
from perf_gates.verdicts.measured import Results

LIMITS = gates.load().limits
MACHINE = {"gpu": "G", "torch": "2", "triton": "3", "kernels": "k" * 16, "commit": "c" * 40}


def run(us: dict[str, float], noise: float = 0.003, **machine: str) -> Run:
    return Run(MACHINE | machine, {name: Time(value, noise, 1980) for name, value in us.items()})


def test_a_run_comes_back_as_it_was_kept_and_is_not_kept_twice(tmp_path: Path) -> None:
    file = tmp_path / "history.jsonl"
    one, two = run({"a": 1.0}), run({"a": 1.1}, commit="d" * 40)
    assert [history.keep(r, file) for r in (one, two, one)] == [True, True, False]
    assert history.runs(file) == [one, two]
    assert history.runs(tmp_path / "none") == []


def test_a_folder_without_a_run_is_refused_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(NotComparableError, match="nowhere has no part with times"):
        history.run_of(Results(tmp_path / "nowhere"))


def test_holm_orders_and_multiplies() -> None:
    assert history.holm({"a": 0.01, "b": 0.04, "c": 0.03}) == pytest.approx({"a": 0.03, "c": 0.06, "b": 0.06})
    assert history.holm({"a": 0.9, "b": 0.8}) == {"b": 1.0, "a": 1.0}


def test_noise_is_not_significant_and_8_percent_is() -> None:
    rng = np.random.default_rng(0)
    names = [f"m{i}" for i in range(300)]
    before = run(dict(zip(names, 10 * np.exp(0.003 * rng.standard_normal(300)), strict=True)))
    after = run(dict(zip(names, 10 * np.exp(0.003 * rng.standard_normal(300)), strict=True)))
    slower = replace(after, times=after.times | {"m7": Time(10 * (1 + LIMITS.delay), 0.003, 1980)})
    assert [c.name for c in history.compare(before, after) if c.p < LIMITS.significance] == []
    assert [c.name for c in history.compare(before, slower) if c.p < LIMITS.significance] == ["m7"]
    assert [c.name for c in history.regressions([before, after], slower, LIMITS)] == ["m7"]
    assert list(history.regressions([before], after, LIMITS)) == []


def test_noise_hides_what_it_is_as_large_as() -> None:
    (change,) = history.compare(run({"a": 10.0}, noise=0.1), run({"a": 10.8}, noise=0.1))
    assert change.p > LIMITS.significance


def test_the_best_of_the_last_runs_is_what_counts() -> None:
    earlier = [run({"a": 9.0}), *(run({"a": 10.0 + i}) for i in range(LIMITS.runs))]
    assert (best := history.best(earlier, "G", LIMITS.runs))
    assert best.times["a"].us == 10.0
    assert [c.before for c in history.regressions(earlier, run({"a": 10.8}), LIMITS)] == [10.0]
    assert history.best(earlier, "other", LIMITS.runs) is None


def test_a_small_change_that_is_significant_is_no_regression() -> None:
    assert list(history.regressions([run({"a": 10.0})], run({"a": 10.3}), LIMITS)) == []


def test_runs_that_say_nothing_of_each_other_are_refused() -> None:
    with pytest.raises(NotComparableError, match="one run is from G, the other from H"):
        history.compare(run({"a": 1.0}), run({"a": 1.0}, gpu="H"))
    with pytest.raises(NotComparableError, match="no measurement in common"):
        history.compare(run({"a": 1.0}), run({"b": 1.0}))
    with pytest.raises(NotComparableError, match="no saved run is from H"):
        list(history.regressions([run({"a": 1.0})], run({"a": 1.0}, gpu="H"), LIMITS))
    assert history.lost(run({"a": 1.0, "b": 1.0}), run({"b": 1.0})) == ["a"]


def test_the_table_tells_what_is_significant_and_counts_the_rest() -> None:
    rows = list(history.table([Change("a", 1.0, 1.2, 1e-9), Change("b", 1.0, 1.0, 1.0)], 0.01))
    assert rows[2] == "| a | 1.00 | 1.20 | 1.200 | 1e-09 |"
    assert rows[-1].strip() == "1 of 2 measurements did not change at the level 0.01."


def test_a_run_that_regressed_is_kept_only_with_a_reason(tmp_path: Path) -> None:
    file, run, slow = tmp_path / "mine" / "history.jsonl", tmp_path / "run", tmp_path / "slow"
    for folder, factor in ((run, 1.0), (slow, 1.2)):
        folder.mkdir()
        for part in cli.RESULTS.glob("*.json"):
            held = json.loads(part.read_text())
            if "timings" in held:
                held["machine"] |= {"kernels": kernels_hash(), "code": texts.text()}
            for timing in held.get("timings", []):
                timing["us"] *= factor
            (folder / part.name).write_text(json.dumps(held))
    for of, words, code, count in (
        (run, [], 0, 1), (slow, [], 1, 1), (slow, ["--accept"], 2, 1),
        (slow, ["--accept", "--reason", "another driver"], 0, 2),
    ):  # fmt: skip
        said = CliRunner().invoke(cli.app, ["keep", str(of), "--history", str(file), *words])
        assert (said.exit_code, len(history.runs(file))) == (code, count)
        assert ("--accept --reason saves it" in said.output) == (code == 1)
    assert json.loads(file.read_text().splitlines()[1])["accepted"] == "another driver"


def test_a_history_is_named_by_the_user_and_never_lies_in_the_installed_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert CliRunner().invoke(cli.app, ["keep"]).exit_code == 2
    installed = tmp_path / "site-packages" / "perf_gates" / "verdicts" / "history.py"
    monkeypatch.setattr(history, "__file__", str(installed))
    with pytest.raises(history.PlaceError, match="inside the installed package"):
        history.keep(run({"a": 1.0}), installed.parent.parent / "results" / "history.jsonl")
    assert history.keep(run({"a": 1.0}), tmp_path / "mine.jsonl")


def test_a_difference_within_the_slack_of_two_runs_is_none() -> None:
    """Significant by the errors of the medians alone, and less than two runs of the same code differ by."""
    (change,) = history.compare(run({"a": 10.0}), run({"a": 10.4}))
    assert change.p < LIMITS.significance
    assert not change.beyond
    assert "| a |" not in "\n".join(history.table([change], LIMITS.significance))
