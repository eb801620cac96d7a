"""One command for a GPU runner: parts, shards, resume and report, on a machine without a GPU."""

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from conformance.main import run_command
from perf_gates import cli
from perf_gates.gpu_gates import __main__ as command
from perf_gates.gpu_gates import core_part, parts
from perf_gates.gpu_gates.parts import BENCHMARK, COMPILE_S, MOST_S, PARTS, Part, Took, chosen
from perf_gates.verdicts.gates import load
from perf_gates.verdicts.measured import FURTHER
from perf_gates.verdicts.measured import PARTS as MEASURED
from tests.gates.gates_results import Parts, edited


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The committed results as a run."""
    for file in cli.RESULTS.glob("*.json"):
        shutil.copy(file, tmp_path)
    return tmp_path


def told(ratio: float, verdict: str, planted: str = "FAIL") -> dict[str, Any]:
    core = load().core[0]
    timing = {"us": 1000.0, "noise": 0.001, "bytes": 10, "clock_mhz": 1980}
    machine = json.loads((cli.RESULTS / "steps.json").read_text())["machine"]
    place = {"part": "core_set", "shape": core.dims, "operation": core.over, "batch": core.batch}
    found = {"name": core.name, "place": place, "timing": timing, "machine": machine, "ratio": ratio, "error": 0.001}
    return found | {"best": core.best, "verdict": verdict, "delayed": {"verdict": planted}}


def test_every_measured_part_is_in_one_part_and_fits_its_minutes() -> None:
    files = [file for part in PARTS for file in part.files]
    assert sorted(files) == sorted({*MEASURED, *FURTHER, "core_set"})
    for part in PARTS:
        said = part.command(Path("out"), Path("peers"))
        if "--seconds" in said:
            compiling = 0 if part.name == "shapes" else COMPILE_S  # checks compile what they launch
            assert compiling + len(part.files) * int(said[said.index("--seconds") + 1]) <= MOST_S


@pytest.mark.parametrize("n", [1, 2, 3, 8])
def test_shards_hold_each_part_once(n: int) -> None:
    given = [part.name for i in range(1, n + 1) for part in chosen([], (i, n))]
    assert sorted(given) == sorted(part.name for part in PARTS)
    assert [part.name for part in chosen(["core"], (1, 1))] == ["core"]


def test_the_report_of_a_whole_run_is_green_and_of_one_without_a_part_is_red(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = folder / "step.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(step))
    assert run_command(command.main, ["--out", str(folder), "--report"]) == 0
    assert step.read_text().startswith("# GPU gates: green")
    (folder / "prefill.json").unlink()
    assert run_command(command.main, ["--out", str(folder), "--report"]) == 1
    summary = (folder / "summary.md").read_text()
    assert summary.startswith("# GPU gates: red")
    assert "prefill: no 'ssd_chunk_scan, ours in bf16'" in summary


def changed(parts: Parts) -> None:
    """Slower steps, and a measurement that is gone."""
    for t in parts["steps"]["timings"]:
        t["us"] *= 1.2 if t["operation"] == "step" else 1.0
    trained = parts["trained"]
    trained["timings"] = [t for t in trained["timings"] if t["operation"] != "by text"]


def test_junit_tells_failures_unknown_cells_and_known_misses_apart(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = replace(load(), lacking={"drafters-4, other tokens over the same": "not measured on this machine"})
    monkeypatch.setattr(command.gates, "load", lambda: listed)
    Took({"core": 31.0}, {"core": "exit code 1"}).write(folder)
    edited(folder, changed)
    (folder / "unrolled.json").unlink()
    assert run_command(command.main, ["--out", str(folder), "--report"]) == 1
    root = ElementTree.parse(folder / "junit.xml").getroot()
    suites = {suite.get("name"): suite for suite in root}
    assert suites["parts"].get("errors") == "1"
    assert int(suites["bars"].get("failures", 0)) >= 15
    assert sum(int(suites["snakes-1"].get(kind, 0)) for kind in ("failures", "errors")) == 6
    assert any("slower" in one.get("message", "") for one in suites["bars"].iter("failure"))
    assert int(suites["stree-figure-3"].get("errors", 0)) == 3
    assert int(suites["drafters-4"].get("skipped", 0)) == 1
    assert suites["replayssm-6-kernel"].find("testcase/system-out") is not None


def test_a_part_goes_on_where_it_ended_and_is_ended_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part that takes too long is ended; the next try finds what it left."""
    module = tmp_path / "counting.py"
    module.write_text(
        "import sys, time, pathlib\nfile = pathlib.Path(sys.argv[1])\n"
        "done = int(file.read_text()) if file.exists() else 0\nfile.write_text(str(done + 1))\n"
        "time.sleep(60 if done < 1 else 0)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(Part, "command", lambda *_: ["counting", str(tmp_path / "done")])
    monkeypatch.setattr(parts, "MOST_S", 2)
    monkeypatch.setattr(command, "MOST_S", 2)
    part = Part("engine", ("bench",), 1, tries=3)
    assert command.measured([part], tmp_path, None, 1.0, tmp_path / "kept" / "a.tar.gz") == []
    took = Took.read(tmp_path)
    assert (tmp_path / "done").read_text() == "2"
    assert took.ended == {"engine": "complete"}
    assert took.seconds["engine"] >= 2
    assert (tmp_path / "kept" / "a.tar.gz").exists()
    assert command.measured([part], tmp_path, None, 0.0, None) == ["engine"]


def test_an_archive_is_taken_up_again(folder: Path, tmp_path: Path) -> None:
    out, kept = tmp_path / "again", tmp_path / "run.tar.gz"
    assert run_command(command.main, ["--out", str(folder), "--report", "--archive", str(kept)]) == 0
    assert run_command(command.main, ["--out", str(out), "--report", "--resume", str(kept)]) == 0
    assert (out / "bench.json").read_text() == (folder / "bench.json").read_text()


def test_what_other_parts_measure_is_not_red_for_one_part_alone(folder: Path) -> None:
    for file in folder.glob("*.json"):
        if file.stem != "steps":
            file.unlink()
    judged = command.reported(folder)
    assert judged.reds
    assert command.here(judged, command.Results(folder)) == []


def test_the_core_set_becomes_a_part_and_a_pair_that_does_not_pass_is_red(folder: Path) -> None:
    runs = [told(1.19, "pass"), told(1.5, "FAIL"), told(0.8, "to tighten"), told(1.19, "pass", planted="pass")]
    (folder / BENCHMARK).write_text(json.dumps({"benchmarks": [{"extra_info": one} for one in runs]}))
    assert core_part.write_part(folder / BENCHMARK, folder)
    timings = json.loads((folder / "core_set.json").read_text())["timings"]
    assert [(t["operation"], t["us"]) for t in timings] == [(load().core[0].over, 1000.0)]
    assert len(core_part.reds(folder / BENCHMARK)) == 3
    assert run_command(command.main, ["--out", str(folder), "--report"]) == 1
    assert not core_part.write_part(folder / "none.json", folder)


@pytest.mark.parametrize("given", ["0of2", "3of2", "1/2", "aofb", "1"])
def test_a_shard_that_is_none_is_refused(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(command.main, ["--shard", given, "--list"]) == 2
    assert "it must be IofN with 1 <= I <= N" in capsys.readouterr().err


def test_a_part_is_run_by_the_python_that_runs_the_gates(tmp_path: Path) -> None:
    (tmp_path / "said.py").write_text("import sys, perf_gates\nsys.exit(3)\n")
    assert sys.executable
    assert parts.ended(["json.tool", "--help"], 20) == "complete"
