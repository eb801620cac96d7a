"""A list of known failures made from a report: with it the same run is green, and it names nothing that passed."""

from datetime import date, timedelta
from pathlib import Path

import pytest

from conformance.errors import KnownListError
from conformance.refusal import FAILED, REFUSED
from conformance.report import listing as made_of
from conformance.report.listing import listing
from conformance.run.known import read_known
from tests.commands import ends
from tests.reports import CONTRACT, diagnosis, made, result, write

LAST = date.today() + timedelta(days=1)
ODD = 'conv *[fast]? "x" \\ é'
STEP = {"operation": "ssd.step", "case": "ssd.step/b1,g1,h1,p1,n1/plain/gentle/s0"}
LINES = [
    result(0),
    result(1, "fail", 3.0),
    result(2, "known-failure", 3.0, reason="listed before", link="https://example.org/1"),
    result(3, "unknown"),
    result(4, "fail", 3.0, drawn=True),
    result(5, "fail", 3.0, subject=ODD, message=ODD),
    result(0, "fail", 3.0, subject="other", **STEP),
    diagnosis(facts={"behaves": "as if x"}),
]


def check_list(folder: Path, text: str) -> None:
    """Every failure but those of the seed is a known failure, and nothing that passed or stayed unknown is listed."""
    (folder / "known.toml").write_text(text, encoding="utf-8")
    known = read_known("mine", folder / "known.toml")
    for r in (line for line in LINES if line.kind == "result"):
        listed = known.entry(r.subject, r.contract, r.case)  # type: ignore[union-attr]
        assert (listed is not None) is (r.verdict in ("fail", "known-failure") and not r.drawn), r  # type: ignore[union-attr]
    assert known.entry("kernel", CONTRACT, "ssd.scan/b1,t3,g1,h1,p1,n1/plain/gentle/s9") is None
    assert known.entry('conv what [fast]x "x" \\ é', CONTRACT, LINES[5].case) is None  # type: ignore[union-attr]


def test_what_failed_is_listed_and_nothing_else(tmp_path: Path) -> None:
    found = listing(made(tmp_path / "report.jsonl", LINES), "https://example.org/2", LAST)
    check_list(tmp_path, found.text)
    assert (found.entries, found.drawn, found.unknown) == (4, 1, 1)
    entries = read_known("mine", tmp_path / "known.toml").entries
    assert {e.reason: e.link for e in entries}["listed before"] == "https://example.org/1"
    assert {e.reason: e.link for e in entries}["as if x"] == "https://example.org/2"
    assert {e.expires for e in entries} == {LAST}
    assert [e.case for e in entries if e.subject == "other"] == ["ssd.step/*"], "every case of it failed"


def test_a_name_that_is_read_as_a_pattern_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(made_of, "escape", lambda name: name)
    with pytest.raises(AssertionError):
        check_list(tmp_path, listing(made(tmp_path / "report.jsonl", LINES), "", LAST).text)


def test_a_run_of_some_cases_lists_no_whole_operation(tmp_path: Path) -> None:
    found = listing(made(tmp_path / "report.jsonl", LINES, only="operation ssd.*"), "", LAST)
    (tmp_path / "known.toml").write_text(found.text)
    assert all("/*" not in entry.case for entry in read_known("mine", tmp_path / "known.toml").entries)


def test_the_list_makes_its_run_green(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "listed_kernels.py").write_text(
        "from ssmspec_ref import conv\nfrom ssmspec_ref.contract import FLOAT64, Adapter, Capability, Subject\n"
        "def commit(M, u, advanced):\n    return conv.commit(M, u, advanced) * (1 + (advanced > 1).any())\n"
        "def adapter():\n    return Adapter('mine', '1', (Subject('x', {'conv.commit': Capability(commit, FLOAT64)}),))\n"
    )
    words = (
        "run",
        "--adapter",
        "listed_kernels:adapter",
        "--tier",
        "smoke",
        "--explain",
        "none",
        "--in-process",
        "--seed",
        1,
    )
    ends(FAILED, *words)
    ends(
        0, "known", "conformance-report", "--write", "known.toml", said=f"they expire on {date.today() + timedelta(days=90)}"
    )
    ends(0, *words, "--known", "known.toml")
    ends(REFUSED, "known", "conformance-report", "--write", "known.toml", said="exists, and may hold reasons of yours")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--expires", "soon"), "--expires is 'soon'; it must be a day such as"),
        (("--expires", "2020-01-01"), "--expires is 2020-01-01, which is over"),
        (("--write", "no/such/known.toml"), "no/such is not a folder; create it first"),
    ],
)
def test_what_cannot_be_listed_is_refused(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    ends(REFUSED, "known", write(tmp_path / "report.jsonl", LINES), *words, said=said)


def test_a_green_report_and_one_of_two_adapters_are_refused(tmp_path: Path) -> None:
    with pytest.raises(KnownListError, match="nothing to list"):
        listing(made(tmp_path / "report.jsonl", [result(0)]), "", LAST)
    with pytest.raises(KnownListError, match="give that of one"):
        listing(made(tmp_path / "report.jsonl", LINES, adapters={"mine": "1", "yours": "1"}), "", LAST)
