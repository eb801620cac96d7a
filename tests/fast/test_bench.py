"""The benchmark: its plans, its fits against the oracle's, its file, and its command on the CPU."""

import json
import re
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch

from perf_gates.machine import kernels_hash
from ssmspec_fast.bench import cli, report
from ssmspec_fast.bench.cli import app
from ssmspec_fast.bench.fit import fit
from ssmspec_fast.bench.models import DIMS, random_model, weight_bytes
from ssmspec_fast.bench.plan import TINY, Plan, papers
from ssmspec_fast.bench.report import Report, merged
from ssmspec_fast.bench.steps import StepTime, measure, split
from ssmspec_fast.bench.subjects import CONTEXT, Subject, engine_of, tree_of
from ssmspec_fast.cli.refusal import REFUSED
from ssmspec_fast.layers.attention import Attention
from ssmspec_fast.operations.torch_ops import TorchOperations
from ssmspec_ref import cost
from ssmspec_ref.errors import ParameterError

from .commands import called

ROOT = Path(__file__).parents[2]
PHASES = {"draft": 1.0, "forward": 2.0, "acceptance": 3.0, "copy": 4.0}
WEIGHTS = {
    "mamba2-1.3b": 1.34,
    "mamba2-2.7b": 2.70,
    "mamba2-7b": 7.1,
    "mamba2-13b": 12.9,
    "mamba2-23b": 22.8,
    "mamba2-130m": 0.13,
}
"""Billions, from the names, within 6 %."""


@pytest.mark.parametrize("name", WEIGHTS)
def test_the_models_have_the_weights_that_their_names_say(name: str) -> None:
    assert weight_bytes(random_model(name, device="meta")) / 2e9 == pytest.approx(WEIGHTS[name], rel=0.06)


def test_half_of_the_hybrid_is_attention() -> None:
    model = random_model("mamba-in-llama-8b", device="meta")
    assert [isinstance(mixer, Attention) for mixer in model.mixers] == [False, True] * 16
    assert weight_bytes(model) / 2e9 == pytest.approx(8.0, rel=0.12)


@pytest.mark.parametrize("degree", [1, 2])
def test_fits_are_the_oracles(degree: int) -> None:
    tokens, times = [1, 3, 5, 8, 13], [9.0, 9.5, 10.75, 11.0, 14.5]
    wanted, found = cost.fit(tokens, times, degree), fit(tokens, times, degree)
    for n in (1, 4, 20):
        assert found(n) == pytest.approx(wanted(n), rel=1e-9)
    with pytest.raises(ParameterError, match="more different sizes than the degree"):
        fit(tokens[:degree], times[:degree], degree)


@pytest.mark.parametrize(
    "subject",
    [Subject("tiny", "replay", 5, 2, advanced=3), Subject("tiny", "tree", 13, parents=tree_of(13), advanced=5)],
    ids=["chain", "tree"],
)
def test_a_step_emits_what_was_asked_for(subject: Subject) -> None:
    engine = engine_of(subject, random_model("tiny", torch.float32, "cpu"), TorchOperations(), None)
    sequences = engine.sequences
    assert sequences is not None
    with torch.no_grad():
        for part in split(engine, torch.arange(subject.batch)):
            part()
    assert (sequences.length - CONTEXT - 1).tolist() == [subject.advanced] * subject.batch


def test_more_tokens_than_a_path_has_are_refused() -> None:
    model = random_model("tiny", torch.float32, "cpu")
    for subject in (Subject("tiny", "replay", 3, advanced=4), Subject("tiny", "tree", 7, parents=tree_of(7), advanced=4)):
        with pytest.raises(ParameterError, match="must emit 4 tokens"):
            engine_of(subject, model, TorchOperations(), None)


def test_plans_are_checked_and_name_each_step_once() -> None:
    subjects = papers()
    assert len(set(subjects)) == len(subjects)
    assert {s.model for s in subjects} <= set(DIMS)
    assert all(Subject(s.model, "plain", batch=s.batch) in subjects for s in subjects if s.method != "plain" and s.batch < 32)
    for wrong in ({"models": ("gpt",)}, {"methods": ("magic",)}, {"windows": (1,)}, {"batches": (0,)}):
        with pytest.raises(ParameterError):
            Plan(**wrong)  # type: ignore[arg-type]


def time_of(subject: Subject, us: float) -> StepTime:
    return StepTime(subject, us, 2 * us, PHASES, 10, 20)


def test_a_report_says_plain_steps_floors_and_fits(tmp_path: Path) -> None:
    plain, windows = Subject("mamba2-2.7b", "plain"), [Subject("mamba2-2.7b", "replay", t) for t in (3, 5, 7)]
    steps = [time_of(plain, 100.0), *(time_of(s, 100.0 + s.window) for s in windows)]
    made = Report({"device": "x"}, 4000.0, {"mamba2-2.7b": 200_000_000}, steps)
    held = json.loads(made.as_json())
    assert [step["plain_steps"] for step in held["steps"]] == pytest.approx([1.0, 1.03, 1.05, 1.07])
    assert {step["floor_us"] for step in held["steps"]} == {50.0}
    assert held["fits"]["mamba2-2.7b replay"]["coefficients_us"] == pytest.approx([1.0, 100.0])
    file = tmp_path / "a.json"
    file.write_text(made.as_json())
    assert report.read(file, {"device": "x"}) == made
    with pytest.raises(ParameterError, match="was measured on"):
        report.read(file, {"device": "y"})
    file.write_text("{")
    with pytest.raises(ParameterError, match="cannot be read as a report"):
        report.read(file, {"device": "x"})
    other = Report({"device": "x"}, 4000.0, {}, [time_of(plain, 7.0), time_of(Subject("tiny", "plain"), 8.0)])
    assert [step.us for step in merged([made, other]).steps] == [100.0, 103.0, 105.0, 107.0, 8.0]
    with pytest.raises(ParameterError):
        merged([made, Report({"device": "y"})])


def test_the_command_measures_what_its_file_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first run has time for nothing, the second for all, the third has nothing left to do."""
    measured = []
    monkeypatch.setattr("ssmspec_fast.bench.steps.measure", lambda s, model, n: measured.append(s) or time_of(s, 5.0))
    out = tmp_path / "bench.json"
    command = ["--tiny", "--out", str(out)]
    first = called(app, *command, "--seconds", 0)
    assert (first.exit_code, measured) == (cli.UNFINISHED, [])
    whole = called(app, *command)
    assert whole.exit_code == 0
    assert whole.stdout == f"{len(measured)} steps ran, 0 failed; times of tiny models say nothing (--json)\n"
    assert re.search(rf"^4/{len(measured)}  tiny .*, about \d+ s left$", whole.stderr, re.MULTILINE)
    assert len(json.loads(called(app, *command, "--json").stdout)["steps"]) == len(measured)
    assert measured == list(TINY.subjects())
    assert called(app, *command).exit_code == 0
    assert len(measured) == len(json.loads(out.read_text())["steps"]) == len(list(TINY.subjects()))
    beside = [["--tiny", "--method", "joint"], ["--papers", "--model", "x"]]
    for wrong in (*beside, ["--windows", "x"], ["--device", "cuda"], ["--model", "gpt", "--device", "cpu"]):
        assert called(app, *wrong).exit_code == REFUSED


def test_without_torch_the_command_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    made = called(app, "--tiny")
    assert made.exit_code == REFUSED
    assert "pip install '../ssmspec[torch]'" in made.output


def test_a_report_names_the_code_that_it_was_made_with(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Another commit goes on with it, other kernels do not."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"][report.MADE_WITH]
    entries = [EntryPoint(name, value, report.MADE_WITH) for name, value in declared.items()]
    monkeypatch.setattr(report, "entry_points", lambda group: entries if group == report.MADE_WITH else [])
    monkeypatch.setenv("SSMSPEC_COMMIT", "c" * 40)
    found = report.machine_of(torch.device("cpu"))
    assert (found["commit"], found["kernels"]) == ("c" * 40, kernels_hash())
    file = tmp_path / "report.json"
    file.write_text(Report(found).as_json())
    assert report.read(file, found | {"commit": "d" * 40}).machine == found
    with pytest.raises(ParameterError, match="was measured on"):
        report.read(file, found | {"kernels": "other"})


def test_a_step_that_fails_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(subject: Subject, model: object, replays: int) -> StepTime:
        if subject.method == "joint":
            raise RuntimeError("planted\nand more")
        return time_of(subject, 5.0)

    monkeypatch.setattr("ssmspec_fast.bench.steps.measure", measured)
    done = called(app, "--tiny")
    assert done.exit_code == cli.FAILED
    assert "tiny joint, window of 3, batch 1, 1 emitted failed: RuntimeError: planted\n" in done.output
    assert "tiny tree, tree of 7, batch 1, 1 emitted failed" not in done.output


@pytest.mark.parametrize(
    "subject",
    [Subject("tiny-hybrid", "tree", 7, parents=tree_of(7)), Subject("tiny-hybrid", "joint-by-lag", 5, 2, advanced=3)],
    ids=["tree", "joint by lag"],
)
def test_a_tiny_step_is_measured(subject: Subject) -> None:
    """For real, phases and all; the whole of `--tiny` is the same again."""
    assert subject.method in {s.method for s in TINY.subjects()}
    found = measure(subject, random_model("tiny-hybrid", torch.float32, "cpu"), 3)
    assert set(found.phases) == set(PHASES)
    assert min(found.us, found.eager_us, *found.phases.values()) > 0
    assert found.memory > 0
