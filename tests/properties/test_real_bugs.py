"""docs/evidence/real-bugs.md: every bug of the list is there once, what it names exists, and a wrong name does not pass."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from conformance.faults.catalogue import FAULTS
from conformance.faults.classes import CLASSES
from property_tests import real_bugs
from property_tests.real_bugs import FOLDER, REASONS, MalformedBug, bug, markdown, read

PAGE = Path(__file__).parents[2] / "docs" / "evidence" / "real-bugs.md"
BUGS = read()
SCOPES = {"a": 42, "b": 11, "c": 49, "d": 17, "e": 45}
COUNTS = {
    "CONV": 7, "PAD-LEAK": 6, "INIT-DROP": 5, "CHUNK": 7, "GROUP-MAP": 3, "VARIANT": 3, "NUMERIC": 10, "RULE": 2,
    "TRANSPOSE": 3, "INDEX": 7, "ROLLBACK": 7, "COMMIT": 3, "ACCEPT-IDX": 3, "SLOT-SCOPE": 4, "PAD-SLOT": 9, "SLOT-REUSE": 2,
    "REPLAY": 6, "PREFIX-CKPT": 7, "SCHED": 4, "CLASSIFY": 4, "TREE-MASK": 5, "TREE-TOPO": 6, "TREE-COMMIT": 6,
    "Q-MISMATCH": 7, "P-MISMATCH": 10, "ACCEPT-RULE": 7, "RNG": 6, "GREEDY": 4, "GRAMMAR": 5, "STOP": 6,
}  # fmt: skip
"""The bugs of each class in the list that the classes come from."""
TABLE: dict[str, Any] = {
    "thread": "https://github.com/some/engine/pull/7",
    "state": "merged",
    "bug_class": "CONV",
    "says": "It is wrong.",
    "faults": ["first_column"],
}


def test_every_bug_of_the_list_is_there_once_and_in_its_class() -> None:
    assert [b.name for b in BUGS] == [f"{scope}{n:02}" for scope, count in SCOPES.items() for n in range(1, count + 1)]
    assert Counter(b.bug_class for b in BUGS) == COUNTS
    assert set(CLASSES) - set(COUNTS) == {"BITS", "CHEAT", "CONDUCT"}
    assert (len(BUGS), len({b.thread for b in BUGS}), len({b.project for b in BUGS})) == (164, 162, 40)


def test_no_two_bugs_say_the_same() -> None:
    assert len({b.says for b in BUGS}) == len(BUGS)


def test_every_reason_is_some_bugs() -> None:
    assert {b.none for b in BUGS if b.none} == set(REASONS)


def test_a_fault_that_cites_a_thread_of_the_list_is_an_answer_to_it() -> None:
    answers: dict[str, set[str]] = {}
    for b in BUGS:
        answers.setdefault(f"{b.project}#{b.number}", set()).update(b.faults)
    assert [f.name for f in FAULTS if f.source in answers and f.name not in answers[f.source]] == []


def test_the_page_that_is_committed_is_made_from_the_tables() -> None:
    assert PAGE.read_text(encoding="utf-8") == markdown(BUGS), (
        "python -m property_tests.real_bugs --out docs/evidence/real-bugs.md"
    )


def test_the_page_shows_every_bug_once_and_its_counts_add_up() -> None:
    page = markdown(BUGS)
    shown = re.findall(r"^\| \[[\w./-]*#\d+\]\((https://\S+)\) \|", page, re.MULTILINE)
    assert Counter(shown) == Counter(b.thread for b in BUGS)
    classes = re.findall(r"^\| [A-Z-]+ \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", page, re.MULTILINE)
    sums = [sum(map(int, column)) for column in zip(*classes, strict=True)]
    held = Counter(b.held for b in BUGS)
    assert sums == [len(BUGS), held["fault"], held["law"], held["none"]]
    assert all(f"**{held[key]} " in page for key in ("fault", "law", "none"))


def test_a_table_that_is_whole_is_read() -> None:
    assert (bug("a01", TABLE).project, bug("a01", TABLE).number, bug("a01", TABLE).held) == ("some/engine", 7, "fault")
    law = bug("a01", TABLE | {"faults": [], "laws": ["ragged/RaggedAsUniform"]})
    assert law.held == "law"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"faults": ["first_colunm"]}, "no fault first_colunm"),
        ({"faults": ["RaggedAsUniform"]}, "no fault RaggedAsUniform"),
        ({"laws": ["raged/RaggedAsUniform"]}, "no law raged/RaggedAsUniform that finds it"),
        ({"laws": ["ragged/KeepsConvWindow"]}, "no law ragged/KeepsConvWindow that finds it"),
        ({"laws": ["ragged"]}, "no law ragged that finds it"),
        ({"faults": ["first_column", "first_column"]}, "first_column twice"),
        ({"bug_class": "CONVOLUTION"}, "'CONVOLUTION' is none of CONV, "),
        ({"state": "closed"}, "'closed' is none of merged, "),
        ({"none": "prefix"}, "give faults or laws, or else a reason"),
        ({"faults": []}, "give faults or laws, or else a reason"),
        ({"faults": [], "none": "lazy"}, "'lazy' is none of unclear, "),
        ({"thread": "some/engine#7"}, "is not the address of an issue or pull request"),
        ({"says": "a | b."}, "a sentence that a table can hold"),
        ({"fault": "first_column"}, "Extra inputs are not permitted"),
        ({"name": "a02"}, "multiple values"),
    ],
)
def test_a_wrong_table_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(MalformedBug, match=re.escape(said)):
        bug("a01", TABLE | change)


def test_a_bug_with_two_tables_is_refused_and_an_empty_folder_too(tmp_path: Path) -> None:
    with pytest.raises(MalformedBug, match="nothing in"):
        read(tmp_path)
    table = (FOLDER / "trees.toml").read_text(encoding="utf-8")
    for name in ("one", "other"):
        (tmp_path / f"{name}.toml").write_text(table, encoding="utf-8")
    with pytest.raises(MalformedBug, match="d01, d02"):
        read(tmp_path)


def test_the_command_writes_the_page_and_ends_with_1_at_a_wrong_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app, out = typer.Typer(), tmp_path / "page.md"
    app.command()(real_bugs.main)
    done = CliRunner().invoke(app, ["--out", str(out)])
    assert (done.exit_code, out.read_text(encoding="utf-8")) == (0, markdown(BUGS))
    assert "164 bugs: " in done.output
    planted = {f.name for f in FAULTS} - {"group_map"}
    monkeypatch.setattr(real_bugs, "FAULTS", tuple(f for f in FAULTS if f.name in planted))
    done = CliRunner().invoke(app, ["--out", str(out)])
    assert done.exit_code == 1
    assert "a17: no fault group_map" in done.output
