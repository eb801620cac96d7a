"""The page of engines against its records: every run is in its table, every failure is told with its numbers."""

import json
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[3] / "docs" / "evidence"
PAGE = (FOLDER / "engines.md").read_text(encoding="utf-8")
RUNS = json.loads((FOLDER / "engines.json").read_text(encoding="utf-8"))


def row(run: dict[str, object]) -> str:
    numbers = " | ".join(f"{n:,}" for n in (run["schedules"], run["requests"], len(run["failures"])))  # type: ignore[arg-type]
    return f"| {run['engine']} | {run['checkpoint']}{run['stored']} | {numbers} |"


@pytest.mark.parametrize("run", RUNS, ids=lambda run: f"{run['engine']}-{run['checkpoint']}")
def test_a_run_and_its_failures_are_told(run: dict[str, object]) -> None:
    assert row(run) in PAGE
    for failure in run["failures"]:  # type: ignore[attr-defined]
        assert failure["told"] in PAGE
        assert failure["finding"].find(failure["told"]) >= 0
        assert failure["rerun"].startswith("ssmspec conform engine --engine ")


def test_no_row_is_without_its_record() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| engine")]
    assert sorted(rows) == sorted(map(row, RUNS))
