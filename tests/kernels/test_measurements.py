"""Measurements on a GPU as far as a CPU can try them: launchers take what they are given, the report reads what it must."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from conformance.main import run_command
from perf_gates import lossless, machine
from perf_gates.digest import record
from perf_gates.gpu import __main__ as gpu
from perf_gates.gpu import compilation, model_shapes, sanitized
from perf_gates.gpu.kernels import linear, steps
from perf_gates.ratchet import bars, peers
from perf_gates.report import kernel_table, missed_cells
from perf_gates.verdicts import gates, measured, missed, targets
from perf_gates.verdicts.measured import PARTS, At, OverFloor, Results

pytestmark = pytest.mark.interpreter

ROOT = Path(__file__).parent.parent.parent
ROWS = {
    "plain step",
    "fused scan",
    "buffered standard",
    "verification",
    "tree of 13",
    "tree of 63",
    "packed tree",
    "linear_rows",
    "prefill",
}
APART = {
    *("KDA: plain step", "KDA: fused scan", "KDA: window", "KDA: tree of 13", "KDA: tree of 63"),
    *("few rows: fused scan", "few rows: verification", "accurate prefill"),
}
"""Rows that are counted apart."""

KERNELS = {
    "steps": {
        "ssd_scan_kernel",
        "ssd_window_kernel",
        "ssd_window_chain_kernel",
        "ssd_tree_large_kernel",
        "delta_scan_kernel",
        "delta_window_kernel",
        "_delta_solve_kernel",
        "_delta_apply_kernel",
        "delta_tree_products_kernel",
    },
    "buffered": {"ssd_scan_kernel", "ssd_buffered_short_kernel", "_ssd_buffered_step_kernel", "_commit_kernel"},
    "buffered_delta": {
        "delta_scan_kernel",
        "_delta_buffered_kernel",
        "delta_buffered_short_kernel",
        "_delta_buffered_step_kernel",
        "delta_step_short_kernel",
        "_commit_kernel",
    },
    "kda": {"delta_scan_kernel", "kda_tree_kernel"},
    "unrolled": {"ssd_window_kernel", "ssd_tree_large_kernel"},
    "linear": {"linear_rows_kernel"},
    "prefill": {"_causal_attention_kernel", "_chunk_walk_kernel", "_chunk_outputs_kernel"},
    "peers": {"ssd_scan_kernel", "delta_scan_kernel"},
}
THEIRS = (", vLLM", ", fla", ", mamba-ssm")
"""Peers, which are in no package that is installed here."""


@pytest.fixture(scope="module")
def rehearsed() -> dict[str, Any]:
    """What every part would time and launch, at the shapes of models: by a process without the interpreter."""
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    env["PYTHONPATH"] = os.pathsep.join([*(p for p in sys.path if p), str(ROOT)])
    command = [sys.executable, "-m", "perf_gates.gpu", "--rehearse"]
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return {found["part"]: found for found in map(json.loads, done.stdout.splitlines())}


def test_every_measurement_launches_what_it_times(rehearsed: dict[str, Any]) -> None:
    assert rehearsed.keys() == KERNELS.keys()
    for part, expected in KERNELS.items():
        assert expected <= set(rehearsed[part]["launched"]), part


def test_no_measurement_comes_twice(rehearsed: dict[str, Any]) -> None:
    for part, found in rehearsed.items():
        timed = [tuple(t) for t in found["timed"]]
        assert len(set(timed)) == len(timed) > 0, part


def test_what_the_table_reads_is_what_the_measurements_write(rehearsed: dict[str, Any]) -> None:
    written = {At(part, *t) for part, found in rehearsed.items() for t in found["timed"]}
    asked = {at for at in keys() if not at.operation.endswith(THEIRS)}
    assert len(asked) > 200
    assert asked <= written
    rings = {at for at in keys() if at.operation.startswith("buffered") and at.operation.endswith(THEIRS)}
    beside = {At(at.part, at.shape, at.operation.split(",")[0] + ", ours", at.batch) for at in keys() - asked - rings}
    assert beside <= written


# --- the report ---


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Made-up results that hold everything the table asks for; of what they miss, everything is explained."""
    explained = tuple(
        missed.Reason(row, "Bounds.", "nothing.")
        for row in (
            *("buffered standard", "verification", "packed tree"),
            *("KDA: window", "few rows: verification", "accurate prefill"),
        )
    )
    monkeypatch.setattr(missed, "reasons", lambda: explained)
    asked: dict[str, list[dict[str, Any]]] = {part: [] for part in PARTS}
    for at in keys():
        row = {"model": at.shape, "operation": at.operation, "batch": at.batch, "us": 10.0, "bytes": 1000}
        asked[at.part].append(row | {"noise": 0.001, "clock_mhz": 1980})
    limits = gates.load().limits
    head = {"gpu": limits.gpu, "driver": "1", "torch": limits.torch, "triton": limits.triton, "commit": "c" * 40}
    head |= {"kernels": machine.kernels_hash()}
    versions = {part: dict.fromkeys(names, "1.0") for part, names in peers.PEERS.items()}
    for part in PARTS:
        found: dict[str, Any] = {"machine": head | measured.rule(part) | {"copy_bytes_per_us": 100.0, "empty_launch_us": 1.0}}
        found["machine"] |= {"peers": versions.get(part, {})}
        if part == "model_shapes":
            verdict = {
                "kernel": "k",
                "model": "m",
                "variant": "v",
                "batch": 1,
                "passed": True,
                "utilisation": 0.5,
                "message": "",
            }
            found["verdicts"] = [verdict]
        else:
            done = [str(case) for case in compilation.module(part).cases()]
            found |= {"complete": True, "errors": [], "done": done, "timings": asked[part]}
        (tmp_path / f"{part}.json").write_text(json.dumps(found))
    made = bars.Bars({}, "as made", bars.times(Results(tmp_path)), peers=versions)
    monkeypatch.setattr(bars, "read", lambda: made)
    return tmp_path


def line(cell: targets.Cell, results: Results) -> str:
    """The row of the table for a cell."""
    (found,) = [j for j in kernel_table.judged(results, machine.kernels_hash()) if j.row.kernel == cell]
    return kernel_table.line(found, results)


def keys() -> set[At]:
    """Every measurement that some cell reads."""
    found: set[At] = set()
    for cell in targets.every():
        for figure in (cell.reached, cell.best, cell.floor):
            if not isinstance(figure, str):
                held = (at for value in vars(figure).values() for at in (value if isinstance(value, tuple) else (value,)))
                found |= {at for at in held if isinstance(at, At)}
    return found


def change(folder: Path, part: str, edit: Callable[[dict[str, Any]], None]) -> None:
    file = folder / f"{part}.json"
    found = json.loads(file.read_text())
    edit(found)
    file.write_text(json.dumps(found))


def test_the_report_names_every_row_and_whole_results_have_no_fault(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(kernel_table.main, [str(folder)]) == 0
    printed = capsys.readouterr().out
    assert {cell.row for cell in targets.cells()} == ROWS
    assert {cell.row for cell in targets.apart()} == APART
    for cell in targets.every():
        assert f"| {cell.what} | {cell.shape} | {cell.batch} |" in printed
    assert " | - | " not in printed
    assert "| k | m | 1 | 0.50 | 0 |" in printed


def test_missing_cell_is_a_fault_and_a_dash(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change(folder, "steps", lambda found: found["timings"].pop(0))
    assert run_command(kernel_table.main, [str(folder)]) == 1
    printed = capsys.readouterr()
    assert "steps: no " in printed.err
    assert "| - |" in printed.out


@pytest.mark.parametrize("part", PARTS)
def test_part_that_is_not_there_or_of_other_kernels_is_a_fault(part: str, folder: Path) -> None:
    change(folder, part, lambda found: found["machine"].update(kernels="other"))
    (wrong,) = kernel_table.faults(Results(folder), machine.kernels_hash())
    whose = "the digests of kernels other" if part == "model_shapes" else f"{part}: its digests at ccccccc"
    assert wrong.startswith(f"{whose} are not recorded; run `python -m perf_gates.digest` where git holds th")
    (folder / f"{part}.json").unlink()
    assert f"{part}: no file" in list(kernel_table.faults(Results(folder), machine.kernels_hash()))


@pytest.mark.parametrize(
    ("part", "edit"),
    [
        ("peers", lambda found: found.update(complete=False)),
        ("peers", lambda found: found["errors"].append("one")),
        ("model_shapes", lambda found: found["verdicts"][0].update(passed=False)),
    ],
)
def test_part_with_a_fault_is_a_fault_and_is_run_again(part: str, edit: Any, folder: Path) -> None:
    assert gpu.complete(folder / f"{part}.json")
    change(folder, part, edit)
    assert len(list(kernel_table.faults(Results(folder), machine.kernels_hash()))) == 1
    assert not gpu.complete(folder / f"{part}.json")


@pytest.mark.parametrize(
    "edit", [lambda found: found["done"].pop(), lambda found: found["machine"].update(outputs="shared")], ids=["case", "rule"]
)
def test_part_without_one_of_its_cases_or_by_an_older_rule_is_run_again(edit: Any, folder: Path) -> None:
    change(folder, "unrolled", edit)
    assert not gpu.complete(folder / "unrolled.json")
    said = [
        line for line in kernel_table.text(Results(folder)).splitlines() if line.startswith("Measured before each launch")
    ]
    by_rule = [
        part
        for part in PARTS
        if part in measured.LOOKED_AT and not measured.ruled(part, Results(folder).parts[part]["machine"])
    ]
    assert [line.split(": ")[1].split(". ")[0] for line in said] == by_rule


def test_what_was_measured_by_an_older_rule_is_not_gone_on_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "linear.json"
    three_cases(monkeypatch, lambda rows: [steps.Timing("m", "o", rows, 1.0)])
    gpu.measure("linear", file, None, "1")
    gpu.measure("linear", file, None)
    assert [t["batch"] for t in json.loads(file.read_text())["timings"]] == [1, 2, 3]
    gpu.without_errors(file)
    change(tmp_path, "linear", lambda found: found["machine"].pop("outputs"))
    gpu.measure("linear", file, None, "2")
    assert [t["batch"] for t in json.loads(file.read_text())["timings"]] == [2]


def test_target_that_is_missed_is_said_and_what_bounds_it_is_asked_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(found: dict[str, Any]) -> None:
        for t in found["timings"]:
            t["us"] *= 3 if t["operation"].startswith("linear_rows") and t["batch"] > 16 else 1

    change(folder, "linear", slow)
    results = Results(folder)
    (cell,) = [c for c in targets.cells() if c.what == "linear_rows, over 1 row" and c.batch == 32]
    assert line(cell, results).endswith("| <= 1.06 | 3.00 | 1.00 | 1.00 cuBLAS | **FAIL** |")
    found = missed_cells.missing(kernel_table.judged(results, machine.kernels_hash()))
    short = [f"{c.what}, {c.shape}, {c.batch}: misses its target" for c, _ in found if c.row == "linear_rows"]
    assert short
    assert [fault.split(", and missed.toml")[0] for fault in kernel_table.faults(results, machine.kernels_hash())] == short
    given = (*missed.reasons(), missed.Reason("linear_rows", "Starts and ends.", "overlap."))
    monkeypatch.setattr(missed, "reasons", lambda: given)
    assert list(kernel_table.faults(results, machine.kernels_hash())) == []
    assert (
        "the farthest: linear_rows, over 1 row, batch 32: 3.00, target <= 1.06. Starts and ends. Tried: overlap."
        in kernel_table.text(results)
    )


def test_a_part_stands_while_its_own_calls_do(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else changed in the kernels."""
    held = record.read().parts["linear"]

    def other(found: dict[str, Any]) -> None:
        found["machine"] |= {"kernels": "of before", "commit": held.commit}

    change(folder, "linear", other)
    monkeypatch.setattr(record, "standing", lambda: record.Stale({"steps": ["m/step/1"]}, {}, []))
    assert list(kernel_table.faults(Results(folder), machine.kernels_hash())) == []
    monkeypatch.setattr(record, "standing", lambda: record.Stale({"linear": [min(held.calls)]}, {}, []))
    (wrong,) = kernel_table.faults(Results(folder), machine.kernels_hash())
    assert wrong == f"linear at {held.commit[:7]}: {record.AGAIN}, its code has changed"


def test_entry_that_explains_what_holds_is_a_fault(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = (*missed.reasons(), missed.Reason("tree of 63", "b", "t", ("qwen3.5-4b",), (4,)))
    monkeypatch.setattr(missed, "reasons", lambda: given)
    (wrong,) = kernel_table.faults(Results(folder), machine.kernels_hash())
    assert wrong == "missed.toml: tree of 63, qwen3.5-4b: it explains no cell that misses its target; delete it"


def test_committed_entries_name_rows_and_shapes_of_the_table() -> None:
    for reason in missed.reasons(missed.FILE):
        assert any(reason.covers(cell) for cell in targets.every())
        assert set(reason.shapes) <= {cell.shape for cell in targets.every()}
        assert reason.bounds.endswith(".")
        assert reason.tried.endswith(".")


def test_floor_is_that_of_the_bytes_and_a_launch_of_each(folder: Path) -> None:
    (cell,) = [c for c in targets.cells() if c.row == "tree of 63" and c.batch == 4 and c.shape == "qwen3.5-4b"]

    def grow(found: dict[str, Any]) -> None:
        for t in found["timings"]:
            t["bytes"] = 1900 if t["operation"] == "tree of 63" else t["bytes"]

    change(folder, "steps", grow)
    assert not isinstance(cell.floor, str)
    assert cell.floor(Results(folder)) == (1900 / 100 + 1) / (1000 / 100 + 1)
    assert "| <= 2.5 | 1.00 | 1.82 |" in line(cell, Results(folder))


def test_time_over_bytes_and_a_launch(folder: Path) -> None:
    (cell,) = [c for c in targets.cells() if c.row == "plain step" and c.batch == 1 and c.shape == "mamba2-2.7b"]
    assert isinstance(cell.reached, OverFloor)
    assert cell.reached(Results(folder)) == 10.0 / (1000 / 100.0 + 1.0)


# --- the runner ---


def test_runner_goes_on_behind_a_part_that_fails_and_skips_what_is_complete(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[Any] = []

    def stage(arguments: Any, _: Any) -> bool:
        ran.append(arguments)
        return False

    monkeypatch.setattr(gpu, "stage", stage)
    monkeypatch.setattr(gpu, "need_gpu", lambda: None)
    assert run_command(gpu.main, ["--out", str(folder)]) == 0
    assert ran == []
    (folder / "linear.json").unlink()
    (folder / "model_shapes.json").unlink()
    assert run_command(gpu.main, ["--out", str(folder), "--peers", "p"]) == 1
    assert [a[a.index("--only") + 1 :] for a in ran[:2]] == [["linear"], ["linear"]]
    assert ran[2][0] == "perf_gates.gpu.model_shapes"
    assert run_command(gpu.main, ["--out", str(folder), "--only", "steps", "--again"]) == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="here a GPU is seen")
@pytest.mark.parametrize("command", [gpu.main, sanitized.main, model_shapes.main, lossless.main])
def test_without_a_gpu_what_measures_is_refused_before_it_removes_or_writes_anything(
    command: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {file: file.read_bytes() for file in folder.iterdir()}
    out = folder if command is gpu.main else folder / "linear.json"
    wanted = {gpu.main: ["--only", "steps", "--again"], lossless.main: ["--device", "cuda"]}.get(command, [])
    assert run_command(command, ["--out", str(out), *wanted]) == 2
    assert "torch sees no GPU" in capsys.readouterr().err
    assert {file: file.read_bytes() for file in folder.iterdir()} == before


def three_cases(monkeypatch: pytest.MonkeyPatch, timings: Any) -> None:
    """The part `linear` is three cases that these timings answer; what it asks of the machine is made up."""
    monkeypatch.setattr(linear, "timings", timings)
    monkeypatch.setattr(linear, "cases", lambda: iter([(1,), (2,), (3,)]))
    monkeypatch.setattr(gpu, "fingerprint", lambda: {"kernels": machine.kernels_hash()})
    monkeypatch.setattr(gpu, "copy_bytes_per_us", lambda: 1.0)
    monkeypatch.setattr(gpu, "empty_launch_us", lambda: 1.0)


def test_case_that_fails_is_an_error_of_its_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def timings(rows: int) -> list[steps.Timing]:
        if rows == 2:
            raise ValueError("no")
        return [steps.Timing("m", "o", rows, 1.0)]

    three_cases(monkeypatch, timings)
    gpu.measure("linear", tmp_path / "linear.json", None)
    found = json.loads((tmp_path / "linear.json").read_text())
    assert [t["batch"] for t in found["timings"]] == [1, 3]
    assert found["errors"] == ["(2,): ValueError: no"]
    assert found["complete"]
    assert not gpu.complete(tmp_path / "linear.json")


def test_case_that_breaks_the_gpu_ends_its_process_and_the_next_goes_on_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, ran = tmp_path / "linear.json", []

    def timings(rows: int) -> list[steps.Timing]:
        ran.append(rows)
        if rows == 2:
            raise RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered")
        return [steps.Timing("m", "o", rows, 1.0)]

    three_cases(monkeypatch, timings)
    gpu.measure("linear", file, None)
    assert (ran, gpu.again(file)) == ([1, 2], True)
    gpu.measure("linear", file, None)
    assert (ran, gpu.again(file), gpu.complete(file)) == ([1, 2, 3], False, False)
    gpu.without_errors(file)
    found = json.loads(file.read_text())
    assert (found["errors"], len(found["timings"]), found["complete"]) == ([], 2, False)


def test_what_compiles_can_be_found_by_a_process_that_is_started_anew() -> None:
    """A package's own `__main__` cannot."""
    assert compilation.compile_task.__module__ == "perf_gates.gpu.compilation"
    assert len(compilation.tasks(["linear", "prefill"], 3)) == len(linear.ROWS) + 3 * 4


def test_stage_that_takes_too_long_ends_with_what_it_started() -> None:
    assert not gpu.stage(["timeit", "-n", "1", "-r", "1", "import time; time.sleep(30)"], 1.5)
    assert gpu.stage(["timeit", "-n", "1", "-r", "1", "pass"], 30)
