"""The judge and the judged are written twice: no four lines of the oracle stand in the engine, but for what declares."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINES, CHARACTERS = 4, 60
"""So many lines, of so many characters together, are no accident."""
SAID = ast.Import | ast.ImportFrom | ast.AnnAssign | ast.Raise


def statements(source: str) -> list[str]:
    """The lines of a source that do something: no imports, fields, messages, docstrings, comments, or heads of classes."""
    root, left_out = ast.parse(source), set[int]()
    for node in ast.walk(root):
        said = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if said or (isinstance(node, SAID) and hasattr(node, "lineno")):
            left_out |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = ((number, line.split("#")[0].strip()) for number, line in enumerate(source.splitlines(), 1))
    return [line for number, line in lines if line and number not in left_out and not line.startswith(("class ", "@"))]


def runs(source: str) -> set[tuple[str, ...]]:
    lines = statements(source)
    found = {tuple(lines[at : at + LINES]) for at in range(len(lines) - LINES + 1)}
    return {run for run in found if sum(map(len, run)) > CHARACTERS}


def shared(judge: Path, judged: Path) -> dict[str, set[tuple[str, ...]]]:
    """What files of the judged have of the judge, by file."""
    own = set().union(*(runs(file.read_text()) for file in judge.rglob("*.py")))
    both = {file.relative_to(judged).as_posix(): runs(file.read_text()) & own for file in sorted(judged.rglob("*.py"))}
    return {name: found for name, found in both.items() if found}


@pytest.mark.parametrize("judged", ["ssmspec_fast", "kernels/ssmspec_kernels"])
def test_the_oracle_shares_no_code_with_what_it_judges(judged: str) -> None:
    assert shared(ROOT / "ssmspec_ref", ROOT / judged) == {}


def test_a_planted_copy_is_caught(tmp_path: Path) -> None:
    source = (ROOT / "ssmspec_ref" / "accept" / "processors.py").read_text()
    (tmp_path / "copied.py").write_text(source.replace("np.", "numpy."))
    assert list(shared(ROOT / "ssmspec_ref", tmp_path)) == ["copied.py"]
