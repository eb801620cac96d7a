"""Our own engine under the suite: what no subject offers is what docs/evidence/not-tested.md says."""

import re
from collections import defaultdict
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from conformance.run.load import load
from conformance.run.plan import Selection, plan
from conformance.suite import SPECIFICATIONS
from ssmspec_ref.contract import Limits

PAGE = Path(__file__).parents[2] / "docs" / "evidence" / "not-tested.md"


def told(text: str) -> dict[tuple[str, str], set[str]]:
    """What each row of the page's table covers: its pattern of operations and the options in it, with what it matched."""
    _, _, table = text.partition("## Of our own engine")
    rows = [line.split("|")[1:3] for line in table.splitlines() if line.startswith("| `")]
    named = [(row[0], row[1]) for row in rows]
    return {(re.findall(r"`(.+?)`", who)[0], part): set() for who, what in named for part in re.findall(r"[\w=]+", what)}


def missing() -> set[tuple[str, str]]:
    """Operations that no subject has, as "all", and options of others that no case that is run has."""
    jobs, _ = plan({"ssmspec_fast": load("ssmspec_fast")}, Selection(tier="standard"))
    ran: dict[str, set[str]] = defaultdict(set)
    for job in jobs:
        ran[job.case.operation] |= {f"{name}={value}" for name, value in job.case.options.items()}
    found = set()
    for specification in SPECIFICATIONS:
        operation = specification.operation
        if operation not in ran:
            found.add((operation, "all"))
            continue
        for case in specification.cases("standard", Limits()):
            options = {f"{name}={value}" for name, value in case.options.items()}
            found |= {(operation, option) for option in options - ran[operation]}
    return found


def unlike(text: str, found: set[tuple[str, str]]) -> list[str]:
    """What the page leaves out, and rows of it that nothing meets."""
    rows = told(text)
    for operation, part in found:
        for (pattern, listed), met in rows.items():
            if listed == part and fnmatchcase(operation, pattern):
                met.add(operation)
    covered = {(operation, part) for (_, part), met in rows.items() for operation in met}
    return sorted(f"{operation}: {part} is not told" for operation, part in found - covered) + [
        f"{pattern}: {part} is told, and everything is run" for (pattern, part), met in rows.items() if not met
    ]


def test_only_what_the_page_lists_is_inapplicable_to_our_engine() -> None:
    assert unlike(PAGE.read_text(encoding="utf-8"), missing()) == []


MET = "is told, and everything is run"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("`generate.greedy`", "`generate.other`", ["generate.greedy: all is not told", f"generate.other: all {MET}"]),
        (
            "`*.verify_replay`",
            "`s*.verify_replay`",
            [f"{kind}.verify_replay: between=chains is not told" for kind in ("delta", "mamba3")],
        ),
    ],
)
def test_a_page_that_says_too_little_or_too_much_is_seen(old: str, new: str, said: list[str]) -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text.count(old) == 1
    assert unlike(text.replace(old, new), missing()) == said
