"""What an audit found is held: each point names a test that exists, or says why it is unmeasured."""

import ast
import re
import tomllib
from typing import Any

import pytest

from perf_gates.gpu.sides import tokens
from tests.gates.gates_results import GATES, ROOT, pytest_said

POINTS: list[dict[str, Any]] = tomllib.loads((ROOT / "perf_gates" / "held.toml").read_text())["point"]


def exists(name: str) -> bool:
    """Whether `FILE::FUNCTION` is a test."""
    file, _, function = name.partition("::")
    if not (ROOT / file).is_file():
        return False
    tree = ast.parse((ROOT / file).read_text())
    return any(isinstance(node, ast.FunctionDef) and node.name == function for node in ast.walk(tree))


@pytest.mark.parametrize("point", POINTS, ids=lambda point: point["name"].split(":")[0])
def test_a_point_names_tests_that_exist_or_a_reason(point: dict[str, Any]) -> None:
    assert point.get("tests") or point.get("unmeasured")
    assert [name for name in point.get("tests", ()) if not exists(name)] == []


def test_a_test_that_does_not_exist_is_seen() -> None:
    assert exists("tests/gates/ratchet/test_held.py::test_a_test_that_does_not_exist_is_seen")
    assert not exists("tests/gates/ratchet/test_held.py::test_that_nobody_wrote")
    assert not exists("tests/gates/ratchet/no_file.py::test_that_nobody_wrote")


def test_every_point_is_there() -> None:
    numbered = [point["name"].split(":")[0] for point in POINTS]
    assert [n for n in numbered if n[0] in "AB"] == [*(f"A{i}" for i in range(1, 9)), *(f"B{i}" for i in range(2, 9))]
    assert numbered.count("also") == 4
    assert numbered.count("row") == 17


def test_rows_that_were_missing_are_gated() -> None:
    """Each cell is measured, or listed as not measured yet."""
    named = [table for point in POINTS for table in point.get("tables", ())]
    assert len(named) == 15
    assert all(GATES.table(name).cells for name in named)


def test_the_column_of_2_3b_says_which_model_stands_in() -> None:
    columns = [cell.column for cell in GATES.table("stree-1").cells if "2.7b" in cell.at]
    assert columns
    assert all("2.3B" in column and "2.7B" in column for column in columns)


def test_a_run_on_a_gpu_ends_with_what_is_skipped_and_why() -> None:
    """Collected as on a GPU, of which nothing is asked for: counting and planting are skipped, each with its reason."""
    said = pytest_said("tests/kernels/test_core_sides.py", SSMSPEC_KERNELS_DEVICE="meta")
    assert "skipped on a GPU" in said.stdout, said.stdout[-800:] + said.stderr[-400:]
    assert re.search(r"^19: needs no GPU", said.stdout, re.MULTILINE)


def test_the_example_of_a_users_gate_runs() -> None:
    text = (ROOT / "docs" / "how-to" / "gate-your-kernels.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names: dict[str, Any] = {"mine": lambda: 2.0, "baseline": lambda: 2.0}
    names["clock"] = type("Clock", (), {"us": lambda _, call: 22.0 if call is names["mine"] else 20.0})()
    exec(compile(code, "gate-your-kernels.md", "exec"), names)
    assert names["verdict"] == "pass"
    assert tokens.walked((-1, 0, 0), [1, 2, 3], [3, 5, 7]) == [3, 7]
