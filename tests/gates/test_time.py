"""Pairs of calls timed by a synthetic clock: the same verdict in every run, and a delay that is always caught."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from conformance.main import run_command
from perf_gates.gpu.paired_timing import ImplausibleTimeError, Pair, Side, TimeGate, WrongOutputError, measure
from perf_gates.verdicts import stable

from .gates_results import GATES, pytest_said


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


@pytest.mark.parametrize(
    ("ratio", "error", "verdict"),
    [
        (3.3, 0.03, "FAIL"),
        (0.3, 0.03, "to tighten"),
        (1.2, 0.03, "not comparable"),
        (1.0, 0.03, "not comparable"),
        (1.1, 0.03, "not comparable"),
        (3.3, 0.8, "not comparable"),
        (3.3, float("nan"), "not comparable"),
        (3.3, float("inf"), "not comparable"),
        (float("nan"), 0.03, "FAIL"),
    ],
)
def test_noise_excuses_only_a_verdict_that_it_could_change(ratio: float, error: float, verdict: str) -> None:
    assert GATE.verdict(Pair("scan", "step", ratio, error, (), ())) == verdict


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


def test_without_a_gpu_the_core_set_fails_with_a_sentence(tmp_path: Path) -> None:
    words = "perf_gates/timed/core_set.py", "--benchmark-json", str(tmp_path / "found.json")
    said = pytest_said(*words, CUDA_VISIBLE_DEVICES="")
    assert said.returncode == 1, said.stderr
    sentence = "the core set needs a GPU, and there is none"
    assert sum(line.startswith(sentence) for line in said.stdout.splitlines()) == 2 * len(GATES.core)
    assert "Traceback" not in said.stdout + said.stderr


def test_runs_of_the_core_set_are_set_side_by_side(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"a\n{stable.MADE.begin}\n{stable.MADE.end}\n")
    core = GATES.core[0]
    files = [kept(tmp_path / f"{i}.json", core.best + i / 1000) for i in range(10)]
    assert run_command(stable.main, [*map(str, files), "--out", str(tmp_path), "--page", str(page)]) == 0
    span = f"{core.best:.3f} to {core.best + 0.009:.3f}"
    assert f"| {core.name} | {core.best:g} | {span} | 0.10% | pass |" in page.read_text()
    kept(files[3], core.best * 1.06)
    assert run_command(stable.main, [*map(str, files), "--out", str(tmp_path), "--page", str(page)]) == 1


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


def test_a_delay_of_8_percent_is_as_many_launches_more(monkeypatch: pytest.MonkeyPatch) -> None:
    from perf_gates.gpu import core

    made: list[int] = []
    monkeypatch.setattr(core, "recorded", lambda launches: made.append(len(launches)))
    for copies in (8, 9, 12, 23, 96):
        _, count = core.swept([lambda: None] * copies, 0.0)
        core.swept([lambda: None] * copies, GATES.limits.delay)
        assert made[-2] == count >= core.LEAST
        assert made[-1] / count == pytest.approx(1 + GATES.limits.delay, abs=0.01)
