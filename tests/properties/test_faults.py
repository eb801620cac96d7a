"""Every planted fault of decoding sequences is found, soon, and shrinks to a few actions."""

import datetime
import re
from pathlib import Path

import pytest

from property_tests.faults import MOST_EXAMPLES, MOST_STEPS, look_for, names

PAGE = Path(__file__).parents[2] / "docs" / "fuzzing.md"
TODAY = datetime.datetime.now(tz=datetime.UTC).toordinal() % 10
"""Which tenth of the faults is looked for now."""


@pytest.mark.parametrize(("kind", "fault"), names()[TODAY::10])
def test_a_planted_fault_is_found_and_shrinks(kind: str, fault: str) -> None:
    row = look_for(kind, fault)
    assert row.found, row.line()


def test_the_table_of_the_docs_holds_every_fault() -> None:
    """Made by `python -m property_tests.faults`."""
    rows = re.findall(r"^\| ([\w ]+) \| (\w+) \| (\d+) \| (\d+) \| prefill", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert [(kind, fault) for kind, fault, _, _ in rows] == names()
    assert all(int(examples) <= MOST_EXAMPLES and int(steps) <= MOST_STEPS for _, _, examples, steps in rows)


def test_eight_classes_have_faults() -> None:
    assert {kind for kind, _ in names()} == {
        "rollback", "commit", "cursor", "slot", "padding", "schedule", "tree commit", "stop"
    }  # fmt: skip
