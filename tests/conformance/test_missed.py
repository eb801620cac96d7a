"""docs/evidence/missed.md: the planted faults and the cases that it names exist, each case in the tier standard."""

import re
from pathlib import Path

import pytest

from conformance.faults.catalogue import FAULTS
from conformance.suite import find
from ssmspec_ref.contract import Limits

PAGE = (Path(__file__).parents[2] / "docs" / "evidence" / "missed.md").read_text(encoding="utf-8")
ROWS = re.findall(r"\| `(\w+)` \| (.+) \|$", PAGE, re.MULTILINE)


@pytest.mark.parametrize(("fault", "case"), ROWS, ids=[fault for fault, _ in ROWS])
def test_a_row_names_a_planted_fault_and_a_case_of_the_tier_standard(fault: str, case: str) -> None:
    operations = {f.operation for f in FAULTS if f.name == fault}
    if case.startswith("`"):
        specification, found = find(case.strip("`"))
        assert specification.operation in operations
        assert found in specification.cases("standard", Limits())
    else:
        assert operations
        assert case == "cases drawn when the run starts"


TOLD, _, TOOLS = PAGE.partition("## What the suite did wrong itself")


def test_every_row_of_the_tables_is_read() -> None:
    tables = 3
    assert len(ROWS) == sum(line.startswith("| ") for line in TOLD.splitlines()) - tables > 40


def test_the_tests_that_the_page_names_exist() -> None:
    named = re.findall(r"\| `(tests/\S+)` \|$", TOOLS, re.MULTILINE)
    assert len(named) == sum(line.startswith("| ") for line in TOOLS.splitlines()) - 1 > 4
    assert [name for name in named if not (Path(__file__).parents[2] / name).is_file()] == []
