"""The gates: every table of the papers is there, what stands in the file is checked, the commands say what they find."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from conformance.refusal import REFUSED
from perf_gates import cli
from perf_gates.report import paper_table
from perf_gates.static import occupancy
from perf_gates.static.compiled import Cost
from perf_gates.verdicts import gates
from perf_gates.verdicts.gates import GateError, Gates

from .gates_results import GATES, PLACES, folder

PAPERS = {
    "Snakes and Ladders": [*(f"table {n}" for n in range(1, 6)), "figure 4"],
    "STree": [*(f"table {n}" for n in range(1, 9)), *(f"figure {n}" for n in (2, 3, 4))],
    "Mamba Drafters": [*(f"table {n}" for n in range(1, 8)), *(f"figure {n}" for n in (1, 2))],
    "ReplaySSM": [f"figure {n}" for n in (2, 6, 7, 8, 9, 10, 11)],
}


@pytest.mark.parametrize(("paper", "part"), [(paper, part) for paper, parts in PAPERS.items() for part in parts])
def test_every_table_and_figure_has_its_gate(paper: str, part: str) -> None:
    found = [t for t in GATES.tables if re.match(rf"{paper}, {part}\b", t.source)]
    assert found
    assert all(table.cells for table in found)


def test_windows_of_2_to_8_batches_to_256_and_models_to_23b_are_among_them() -> None:
    assert {f"snapshots of {t}" for t in (2, 4, 6, 8)} <= {p.operation for p in PLACES}
    assert {1, 16, 64, 256} <= {p.batch for p in PLACES}
    assert {"mamba2-1.3b", "mamba2-7b", "mamba2-13b", "mamba2-23b"} <= {p.shape for p in PLACES}


def test_a_table_that_needs_trained_weights_says_which_are_used() -> None:
    trained = [table for table in GATES.tables if table.kind == "trained"]
    assert len(trained) >= 4
    assert all("pair of this repository" in table.weights for table in trained)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('id = "snakes-2"', 'id = "snakes-3"', "the table 'snakes-3' appears twice"),
        ('kind = "kernel"', 'kind = "guess"', "kind 'guess'"),
        ('dims = "mamba2-2.7b"\nkind', 'dims = "mamba9"\nkind', "dims 'mamba9' do not exist"),
        ("steps/step/1", "steps step 1", "must be part/operation/batch"),
        ("noise = 0.02", "loudness = 0.02", "loudness"),
        ('reason = "One launch reads and writes the state once, whatever the number of tokens."', 'reason = ""', "no reason"),
        ('over = ["steps/step/1"]', "over = []", "compares nothing"),
        ('row = "seqlen 5 over seqlen 1", ', "", "a printed figure needs its document with table or figure, its row"),
        ('source = "Snakes and Ladders, table 1 (A10G presumed)"', 'source = "a blog"', "needs its document"),
        ('kind = "derived", of', 'kind = "guess", of', "needs a kind"),
        ('of = "https://github.com/vllm-project', 'of = "github.com/vllm-project', "needs its link"),
        (
            "figure = 2.82, ",
            "figure = 2.82, paper = 2.82, ",
            "a cell has a printed figure (`paper`) or another one (`figure`), not both",
        ),
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
    with pytest.raises(GateError, match="it must be one of snakes-1,"):
        GATES.table("none")


@pytest.mark.parametrize(
    ("registers", "shared", "warps", "expected"),
    [(64, 0, 4, 32), (128, 0, 4, 16), (255, 0, 8, 8), (32, 0, 1, 32), (16, 0, 4, 64), (64, 100 * 1024, 4, 8)],
)
def test_warps_that_an_sm_holds(registers: int, shared: int, warps: int, expected: int) -> None:
    assert occupancy.resident(Cost(registers, 0, 0, shared, 0, 0, 0), warps, 90) == expected


def test_floors_that_move_either_way_come_or_go_are_said() -> None:
    assert occupancy.compare({"a": 8}, {"a": 8}) == []
    lines = occupancy.compare({"a": 8, "b": 16, "c": 4}, {"a": 16, "b": 8, "d": 2})
    said = ["a: 16 -> 8 warps an SM", "b: 8 -> 16 warps an SM", "c: no limit", "d: a limit for an entry that is not launched"]
    assert lines == [f"{line}; if this is intended, run `{occupancy.REWRITE}`" for line in said]


@pytest.fixture
def run() -> Callable[..., Any]:
    runner = CliRunner()
    return lambda *words: runner.invoke(cli.app, [str(word) for word in words])


def test_checks_run_in_processes_of_their_own_and_one_that_fails_fails_all(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[str, ...]] = []
    said = {
        "counted": ['{"kernel": "a"}', "41 kernels move the bytes of their formulas"],
        "occupancy": ["9 kernels hold as many warps as they did, 8 to 64"],
        "compiled": ["name  registers", "a     40", "", "1 kernels compiled by triton 3, 1 faults", "a: 40 -> 41 registers"],
    }

    def process(command: tuple[str, ...], name: str) -> tuple[int, list[str]]:
        ran.append(command)
        return int(name == "compiled"), said[name]

    monkeypatch.setattr(cli, "process", process)
    found = run("check")
    assert (found.exit_code, ran) == (1, list(cli.CHECKS.values()))
    assert found.output.splitlines()[1:] == [
        "counted: pass in 0 s: 41 kernels move the bytes of their formulas",
        "occupancy: pass in 0 s: 9 kernels hold as many warps as they did, 8 to 64",
        "compiled: FAIL in 0 s: 1 kernels compiled by triton 3, 1 faults",
        "  a: 40 -> 41 registers",
    ]
    assert [one["lines"] for one in json.loads(run("check", "--json").output)] == list(said.values())
    assert run("check", "--only", "occupancy").exit_code == 0
    wrong = run("check", "--only", "ocupancy")
    assert wrong.exit_code == 2
    assert "did you mean 'occupancy'?" in wrong.output


def test_a_check_gives_its_lines_and_a_sign_of_life(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "QUIET", -1.0)
    code, lines = cli.process(("calendar", "1970", "1"), "x")
    assert (code, lines[0].strip()) == (0, "January 1970")
    assert "x: 1 rows after " in capsys.readouterr().err


@pytest.mark.parametrize("command", ["check", "verdicts", "accept", "table", "page"])
def test_without_triton_gates_are_refused_and_not_failed(command: str, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "find_spec", lambda name: None)
    found = run(command)
    assert found.exit_code == REFUSED
    assert "pip install '../ssmspec[kernels]'" in found.output


@pytest.mark.parametrize("command", ["verdicts", "accept", "table", "page"])
def test_a_folder_without_a_time_is_refused_and_does_not_pass(command: str, run: Any, tmp_path: Path) -> None:
    found = run(command, tmp_path, *(("--out", tmp_path / "page") if command == "page" else ()))
    assert found.exit_code == REFUSED
    assert "has no part with times" in found.output


def test_the_command_shows_the_table_and_a_folder_that_measures_almost_nothing_is_red(run: Any, tmp_path: Path) -> None:
    folder(tmp_path)
    page = tmp_path / "page.md"
    page.write_text(f"{paper_table.MADE.begin}\n{paper_table.MADE.end}\n")
    assert run("table", tmp_path, "--write", "--page", page).exit_code == 0
    assert "| Snakes and Ladders, table 1 (A10G presumed) | kernel |" in page.read_text()
    assert run("verdicts", tmp_path).exit_code == 1


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
