"""The worked tree of the page on kernels: its outputs are what the reference emits."""

import re
from pathlib import Path

import pytest

from ssmspec_ref.accept import greedy, stop
from ssmspec_ref.accept.draft_tree import DraftTree

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "kernel.md").read_text(encoding="utf-8")
NAMES = {"d1": 11, "d2": 12, "d3": 13, "x": 14}
"""The tokens of the page; the root is 10."""
ROWS = re.findall(r"^\| (\d+), (\w+) \| (.+?) \| (.+?) \| (\d+) \| (yes|no) \|$", PAGE, re.MULTILINE)
ENDS: dict[str, set[int]] = {"none": set()} | {name: {token} for name, token in NAMES.items()}


def told(budget: int, ends: set[int], choice: list[int]) -> tuple[str, str, str, str]:
    """Tokens, path, count and end of the tree of the page, by the reference, in the words of the page."""
    tree = DraftTree((10, 11, 12, 13), (-1, 0, 0, 2))
    run, ended = stop.cut(greedy.walk(tree, choice), (), stop.Stop(frozenset(ends)), budget)
    words = {token: name for name, token in NAMES.items()}
    tokens = [words[token] for token in run.tokens] + ["-1"] * (4 - len(run.tokens))
    path = [str(node) for node in run.path] + ["-1"] * (4 - len(run.path))
    return " ".join(tokens), " ".join(path), str(len(run.path)), "yes" if ended else "no"


@pytest.mark.parametrize("row", ROWS, ids=[f"{row[0]}-{row[1]}" for row in ROWS])
def test_a_row_of_the_page_is_what_the_reference_emits(row: tuple[str, ...]) -> None:
    budget, ends, *says = row
    assert told(int(budget), ENDS[ends], [12, 99, 13, 14]) == tuple(says)


def test_the_page_has_its_rows_and_another_tree_is_told_apart() -> None:
    assert len(ROWS) == 4
    assert told(9, set(), [11, 14, 13, 14]) != tuple(ROWS[0][2:])
