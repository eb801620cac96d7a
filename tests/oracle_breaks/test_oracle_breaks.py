"""The campaign over the oracle: a broken copy is what is judged, one that cannot be used says nothing, the table counts."""

import tempfile
import tomllib
from pathlib import Path

import pytest

from tests.kernels.campaign.draw import draw
from tests.kernels.campaign.places import find
from tests.oracle_breaks import run, table

SOURCE = (run.SOURCES["ssd.py"]).read_bytes()


def changed(old: str, new: str) -> bytes:
    assert SOURCE.count(old.encode()) == 1
    return SOURCE.replace(old.encode(), new.encode())


def test_a_break_is_killed_by_a_case_of_its_operation() -> None:
    said = run.verdict("ssd.py", changed("a[..., None, None] * S + U", "a[..., None, None] * S - U"))
    assert (said["result"], said["how"]) == ("killed", "bound")
    assert said["by"].startswith("ssd.")


@pytest.mark.parametrize("source", [b"import nothing_of_this_name\n" + SOURCE, changed("def per_head(", "def per_heads(")])
def test_a_package_that_cannot_be_used_says_nothing_of_the_suite(source: bytes) -> None:
    assert run.verdict("ssd.py", source)["result"] == "void"


def test_every_file_of_the_campaign_has_places() -> None:
    with tempfile.TemporaryDirectory() as folder:
        flat = run.flat(Path(folder))
        places, _ = find(flat.glob("*.py"))
        drawn = draw(places, 1, 5, 1, flat, kind=run.OracleBreak)
        assert {made.row(flat)["file"] for made in drawn} == set(run.SOURCES)
        assert len({made.name for made in drawn}) == len(drawn)
    assert {place.file for place in places} == set(run.SOURCES)
    assert len(run.SOURCES) == len(run.FILES)


def row(name: str, **given: object) -> dict[str, object]:
    place = {"file": "ssd.py", "line": 1, "start": 0, "kind": "sign", "old": "-", "new": "+", "source": "a = -b"}
    return {"name": name, **place, "cases": 9, "subject": "definitions", "by": "ssd.scan/x", "how": "bound", **given}


def test_the_score_leaves_out_what_is_argued_and_counts_what_is_missed() -> None:
    header = {"seed": 1, "places": 9, "files": 1, "count": 3, "each": 0, "commit": "c", "sources": "s", "cases": 9}
    header |= {"void": 0, "left_out": {}}
    rows = [row("a", result="killed"), row("b", result="survived"), row("c", result="survived")]
    made = table.table(header, rows, {"b": "it changes nothing"})
    assert "**1 killed, 2 survived: 1 argued equivalent, 1 missed; mutation score 50.0 %**" in made
    assert "it changes nothing" in made
    assert "| Missed |" in made
    assert "1 missed" in table.table(header, rows, {"b": "it changes nothing", "c": "Missed: nothing calls it."})
    assert table.later(made).startswith("## A fresh draw\n")
    assert table.EARLIER not in table.later(made)
    with pytest.raises(SystemExit, match="did not survive"):
        table.table(header, rows, {"a": "an argument for what was killed"})


def test_of_the_fresh_draw_three_in_a_hundred_are_missed_at_most_and_the_page_says_so() -> None:
    home = Path(table.__file__).parent
    header, rows = table.load(home / "fresh.jsonl")
    argued = tomllib.loads((home / "fresh.toml").read_text())
    survived = {row["name"] for row in rows if row["result"] == "survived"}
    missed = [name for name, why in argued.items() if why.startswith(table.MISSED)]
    assert (len(rows), survived) == (header["count"], set(argued))
    assert len(missed) <= 3
    page = (home.parents[1] / "docs" / "evidence" / "oracle-breaks.md").read_text()
    assert table.later(table.table(header, rows, argued)) in page
