"""The matrix in a terminal: every subject, contract and operation can be read, however narrow the console is."""

import re
from io import StringIO
from itertools import pairwise

import pytest
from rich.console import Console

from conformance.report import matrix as told
from conformance.report.failure_groups import listed
from conformance.report.stream import Result
from ssmspec_ref.contract import OPERATIONS as OPERATIONS_OF_ALL
from tests.reports import result

OPERATIONS = ("step", "scan", "scan_masked", "scan_packed", "verify_snapshots", "verify_tree", "buffered_verify")
SUBJECTS = ("ssd chunked", "torch", "buffered step, output only of ssd")


def results() -> list[Result]:
    """The first subject has every operation, the second the first three, the last the last one."""
    offered = dict(zip(SUBJECTS, (OPERATIONS, OPERATIONS[:3], OPERATIONS[-1:]), strict=True))
    return [
        result(subject=subject, operation=f"ssd.{name}", case=f"ssd.{name}/b1")
        for subject, names in offered.items()
        for name in names
    ]


def shown(width: int) -> str:
    text = StringIO()
    console = Console(file=text, width=width)
    console.print(told.matrix(results(), console))
    return text.getvalue()


def headings(text: str) -> list[list[str]]:
    """The operations of each table: what stands above a rule, apart by two spaces or more."""
    lines = text.splitlines()
    return [re.split(" {2,}", above.strip()) for above, rule in pairwise(lines) if "──" in rule]


def check(width: int) -> None:
    """Names and contracts are whole, each operation stands once, and each case is counted once."""
    text = shown(width)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    for name in (*SUBJECTS, "fp32/sequential"):
        assert name in text
    assert [name for table in headings(text) for name in table] == [name.replace("_", " ") for name in OPERATIONS]
    assert text.count("1/1") == len(results())


@pytest.mark.parametrize("width", [74, 80, 100, 130, 200])
def test_names_and_operations_are_whole_at_every_width(width: int) -> None:
    check(width)


def test_a_group_that_fits_is_one_table_and_one_that_does_not_goes_on_in_another() -> None:
    assert [len(table) for table in headings(shown(130))] == [7]
    assert [len(table) for table in headings(shown(80))] == [5, 2]
    assert [len(table) for table in headings(shown(24))] == [1] * len(OPERATIONS)  # narrower than any table of two


def test_a_row_without_any_of_a_tables_operations_is_left_out_of_it() -> None:
    first, last = shown(80).split("\nssd  ")
    assert [name in first for name in SUBJECTS] == [True, True, False]
    assert [name in last for name in SUBJECTS] == [True, False, True]


def test_one_table_of_all_operations_is_seen_to_be_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(told, "_tables", lambda group, console: [told._table(group, group.operations, 40)])
    check(130)
    with pytest.raises(AssertionError):
        check(80)


def test_names_that_hold_a_comma_are_told_apart() -> None:
    assert listed(["plain", "joint", "plain"]) == "plain, joint"
    assert listed(["joint", "joint, two drafts", "joint"]) == "joint; joint, two drafts"


def test_many_operations_that_are_not_offered_are_one_line() -> None:
    few = told._absent("mine", {"conv.step"}, {"ssd.step"})
    assert few == "mine: no conv.step"
    many = told._absent("mine", {*OPERATIONS_OF_ALL} - {"ssd.step"}, {"ssd.step"})
    assert many.startswith(f"mine: 1 of {len(OPERATIONS_OF_ALL)} operations is tested; the others are not offered")
