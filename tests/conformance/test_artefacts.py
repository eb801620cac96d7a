"""What is made of a report: JUnit, a badge, a comparison, a whole from shards."""

from io import StringIO
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console

from conformance.errors import ReportError
from conformance.refusal import FAILED, REFUSED
from conformance.report import artefacts
from conformance.report.badge import badge
from conformance.report.grid import groups
from conformance.report.junit import junit
from conformance.report.matrix import show
from conformance.report.merge import merge
from conformance.report.stream import Diagnosis, Report, Result, read_report
from tests.commands import ends
from tests.reports import diagnosis, inapplicable, made, result, write

ALL = [
    result(0),
    result(1, "fail", 3.0),
    result(2, "unknown"),
    result(3, "known-failure", 2.0, reason="listed"),
    inapplicable(),
]


@pytest.fixture
def report(tmp_path: Path) -> Report:
    return made(tmp_path / "report.jsonl", [*ALL, diagnosis()])


def test_junit_counts_what_the_report_counts_and_nothing_unknown_passes(report: Report) -> None:
    root = ElementTree.fromstring(junit(report))
    suite = root.find("testsuite")
    assert suite is not None
    counts = {name: int(suite.attrib[name]) for name in ("tests", "failures", "errors", "skipped")}
    assert counts == {"tests": 4, "failures": 1, "errors": 1, "skipped": 1}
    tests = suite.findall("testcase")
    assert [len(test) for test in tests] == [0, 1, 1, 1], "a test without a child has passed"
    assert [test[0].tag for test in tests[1:]] == ["failure", "error", "skipped"]
    failure = tests[1][0]
    assert "3e-06" in failure.attrib["message"]
    assert "--case ssd.scan/" in (failure.text or "")


def test_junit_is_well_formed_whatever_a_message_holds(tmp_path: Path) -> None:
    said = "a panic\x00 with \x1b[31mcolours\x1b[0m & <tags> \ud7ff"
    root = ElementTree.fromstring(junit(made(tmp_path / "r", [result(0, "fail", message=said)])))
    assert "<tags>" in root.find("testsuite/testcase/failure").attrib["message"]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([result(0), inapplicable()], "conformance, smoke: 1 of 1 pass"),
        ([result(0), result(1, "known-failure")], "conformance, smoke: 1 of 2 pass, 1 known"),
        ([result(0), result(1, "unknown"), result(2, "known-failure")], "conformance, smoke: 1 of 3 pass, 1 not"),
    ],
)
def test_a_badge_says_what_passed_and_its_colour_does_not_flatter(tmp_path: Path, lines: list[object], said: str) -> None:
    drawn = badge(made(tmp_path / "r", lines))  # type: ignore[arg-type]
    root = ElementTree.fromstring(drawn)
    assert root.attrib["aria-label"] == said
    colour = {"pass": "#1c6b3f", "known": "#7a5200", "not": "#a3201d"}[said.split()[-1]]
    assert colour in drawn


@pytest.mark.parametrize(("kept", "said"), [(1, "1 result kept"), (3, "3 results kept")])
def test_results_that_were_not_run_again_are_named_everywhere_and_are_not_green(tmp_path: Path, kept: int, said: str) -> None:
    said = f"{said} from an interrupted run, and not run again"
    report = made(tmp_path / "report.jsonl", [result(0)], resumed=kept)
    drawn = ElementTree.fromstring(badge(report))
    assert drawn.attrib["aria-label"] == "conformance, smoke, resumed: 1 of 1 pass"
    assert "#7a5200" in badge(report)
    assert "#1c6b3f" not in badge(report)
    assert "#a3201d" in badge(made(tmp_path / "r", [result(0, "fail")], resumed=kept))
    (property_,) = [one for one in ElementTree.fromstring(junit(report)).iter("property") if one.attrib["name"] == "resumed"]
    assert property_.attrib["value"] == said
    assert f"Resumed: {said}." in artefacts.page(report)
    console = Console(file=StringIO(), width=200)
    show(console, report.header, report.results, [], "there")
    assert f"resumed: {said}" in console.file.getvalue()  # type: ignore[attr-defined]
    plain = made(tmp_path / "plain", [result(0)])
    assert "resumed" not in (badge(plain) + junit(plain) + artefacts.page(plain)).lower()
    ends(0, "compare", tmp_path / "plain", tmp_path / "report.jsonl", said="resumed")


def test_the_whole_counts_what_every_shard_kept(tmp_path: Path) -> None:
    parts = [made(tmp_path / str(n), [result(n)], shard=f"{n}of3", resumed=n - 1) for n in (1, 2, 3)]
    assert merge(parts, ["1", "2", "3"]).header.resumed == 3


def test_a_record_holds_no_text_that_a_terminal_obeys(tmp_path: Path) -> None:
    said = "\x1b]52;c;cGFzcw==\x07\x1b[2J\u202e\x00"
    lines = [result(0, "fail", message=said, reason=said), diagnosis(message=said, facts={said: said})]
    path = write(tmp_path / "report.jsonl", lines, adapters={"mine": said}, only=said)
    assert not {"\x1b", "\x07", "\u202e", "\x00"} & set(ends(0, "compare", path, path))
    read = read_report(path)
    assert read.results[0].message == r"\x1b]52;c;cGFzcw==\x07\x1b[2J\u202e\x00"
    assert read.diagnoses[0].facts == {read.results[0].message: read.results[0].message}
    assert read.header.only == read.header.adapters["mine"] == read.results[0].message


def test_the_grid_shows_every_case_once(report: Report) -> None:
    (group,) = groups(report.results)
    (row,) = group.rows
    cell = row.cells["ssd.scan"]
    assert len(cell.results) == 4
    assert (cell.worst, cell.utilisation) == ("fail", 3.0)


ONE, BROKEN, LEFT = [result(0)], [result(0, "fail", 5.0)], result(1, "not-run", outputs=())
COMPARED: list[tuple[list[Result], list[Result], str, str]] = [
    (ONE, ONE, "0 broken, 0 no longer run, 0 fixed, 0 new, 1 as before", ""),
    (ONE, BROKEN, "1 broken, 0 no longer run, 0 fixed, 0 new, 0 as before", ""),
    (BROKEN, ONE, "0 broken, 0 no longer run, 1 fixed, 0 new, 0 as before", ""),
    (ONE, [*ONE, result(1, "unknown")], "1 broken, 0 no longer run, 0 fixed, 1 new, 1 as before", ""),
    (ONE, [*ONE, result(1, "known-failure")], "0 broken, 0 no longer run, 0 fixed, 1 new, 1 as before", ""),
    (ONE, [result(0, contract="fp32/state=bf16/sequential")], "0 broken, 1 no longer run, 0 fixed, 1 new, 0 as before", ""),
    (ONE, [result(0, "fail", outputs=())], "1 broken, 0 no longer run, 0 fixed, 0 new, 0 as before", ""),
    ([*ONE, result(1)], [*ONE, LEFT], "0 broken, 1 no longer run, 0 fixed, 0 new, 1 as before", ""),
    ([*ONE, LEFT], [*ONE, result(1)], "0 broken, 0 no longer run, 0 fixed, 1 new, 1 as before", ""),
    ([result(4, used=0.1)], [result(4, used=0.4)], "0 broken, 0 no longer run, 0 fixed, 0 new", "more"),
    ([result(5)], [result(5, used=0.1)], "0 broken, 0 no longer run, 0 fixed, 0 new", "less"),
    (
        [*ONE, result(1, drawn=True)],
        [*ONE, result(2, "fail", 3.0, drawn=True)],
        "1 broken, 0 no longer run, 0 fixed, 1 new, 1 as before; drawn by the seeds: 1 in the first report only, 0 in the",
        "",
    ),
    ([result(0, "known-failure")], ONE, "0 broken, 0 no longer run, 1 fixed, 0 new, 0 as before", ""),
    ([*ONE, result(1, drawn=True)], [result(2, drawn=True)], "0 broken, 1 no longer run, 0 fixed, 0 new, 0 as before", ""),
]
"""Two reports, what is counted, and whether an output uses more or less of its bound."""


@pytest.mark.parametrize(("before", "after", "counted", "used"), COMPARED)
def test_a_comparison_counts_what_changed_and_ends_with_1_where_something_broke_or_is_gone(
    tmp_path: Path, before: list[Result], after: list[Result], counted: str, used: str
) -> None:
    code = 0 if counted.startswith("0 broken, 0 no longer run") else FAILED
    said = ends(code, "compare", write(tmp_path / "a", before), write(tmp_path / "b", after), said=counted)
    listed = {f"{part} of the bound: 1": used == part for part in ("more", "less")}
    listed |= {f"{part}: 1": f"1 {part}" in counted for part in ("broken", "fixed")}
    assert {part: part in said for part in listed} == listed


def test_the_page_of_a_comparison_has_every_change(tmp_path: Path) -> None:
    before = write(tmp_path / "a", [result(n) for n in range(30)], device="cpu")
    after = write(tmp_path / "b", [result(n, "fail", 3.0, message="<b>") for n in range(29)], device="cuda")
    said = ends(
        FAILED, "compare", before, after, "--html", tmp_path / "new" / "page.html", said="and 9 more (--html lists all)"
    )
    page = (tmp_path / "new" / "page.html").read_text()
    assert all(result(n).case in page for n in range(30))
    assert page.count("&lt;b&gt;") == 29
    for told in ("broken: 29", "no longer run: 1", "was pass", "<td>cpu</td><td>cuda</td>", "29 broken, 1 no longer run"):
        assert told in page
        assert told.replace("<td>", "").split("</td>")[0] in said
    ends(REFUSED, "compare", before, after, "--html", tmp_path, said="is a folder; give a file")


def test_a_report_that_is_cut_or_missing_is_not_compared(tmp_path: Path) -> None:
    same = write(tmp_path / "a", ONE)
    (tmp_path / "c").write_text(same.read_text()[:-9])
    for other in ("c", "none"):
        ends(REFUSED, "compare", same, tmp_path / other)


def test_shards_merge_into_the_report_of_the_run(tmp_path: Path) -> None:
    failing: list[Result | Diagnosis] = [result(1, "fail", 3.0), diagnosis()]
    parts = [write(tmp_path / "1", [inapplicable(), result(0), *failing], "1of2")]
    longer = diagnosis(failures=1, smallest="ssd.scan/b1,t17,g1,h1,p1,n1/plain/gentle/s0")
    parts.append(write(tmp_path / "2", [inapplicable(), result(2), result(3, "fail", 2.0), longer], "2of2"))
    ends(REFUSED, "merge", parts[0], *parts, said="ReportError")
    ends(FAILED, "merge", tmp_path / "whole", *parts, said=("1 inapplicable", "2 pass", "2 fail"))
    whole = read_report(tmp_path / "whole" / "report.jsonl")
    assert whole.footer.verdicts == {"inapplicable": 1, "pass": 2, "fail": 2}
    assert whole.header.shard == ""
    (way,) = whole.diagnoses
    assert (way.failures, way.cases, way.smallest) == (2, 4, diagnosis().smallest)
    assert (tmp_path / "whole" / "report.html").exists()


LISTED = """
[[known]]
case = "ssd.scan/*/s1"
reason = "it is so"
link = "https://example.org"
expires = 2999-01-01

[[known]]
case = "conv.step/*"
reason = "a case that nobody runs"
link = "https://example.org"
expires = 2999-01-01
"""


@pytest.mark.parametrize(
    ("tier", "only", "named"),
    [("standard", "", ["conv.step/*"]), ("standard", "operation ssd.*", []), ("smoke", "", [])],
    ids=["whole", "selected", "smoke"],
)
def test_a_known_failure_that_no_shard_has_met_fails_the_whole(
    tmp_path: Path, tier: str, only: str, named: list[str]
) -> None:
    (tmp_path / "known.toml").write_text(LISTED)
    head = {"tier": tier, "only": only}
    parts = [write(tmp_path / "1", [result(0)], "1of2", **head)]
    parts.append(write(tmp_path / "2", [result(1, "known-failure")], "2of2", **head))
    ends(FAILED if named else 0, "merge", "--known", tmp_path / "known.toml", tmp_path / "whole", *parts)
    whole = read_report(tmp_path / "whole" / "report.jsonl")
    assert [(r.case, r.failing) for r in whole.results if r.verdict == "fail"] == [(case, "known-list") for case in named]


def test_merging_a_part_that_stopped_early_is_not_green(tmp_path: Path) -> None:
    ends(FAILED, "merge", tmp_path / "m", write(tmp_path / "a", [result(0), LEFT]))


def test_the_whole_names_the_seed_of_every_shard(tmp_path: Path) -> None:
    parts = [made(tmp_path / str(n), [result(n)], shard=f"{n}of2", seeds=(n + 5000,)) for n in (1, 2)]
    assert merge(parts, ["1", "2"]).header.seeds == (5001, 5002)


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ([("1of3", [result(0)], {}), ("2of3", [result(1)], {})], "3of3"),
        ([("1of2", [result(0)], {}), ("1of2", [result(1)], {})], "2of2"),
        ([("1of2", [result(0)], {}), ("2of2", [result(0)], {})], "more than one report"),
        ([("1of2", [result(0)], {}), ("2of2", [result(1)], {"tier": "standard"})], "tier standard"),
        ([("1of2", [result(0)], {}), ("2of2", [result(1)], {"adapters": {"mine": "2.0"}})], "adapters"),
        ([("1of2", [result(0)], {}), ("2of2", [result(1)], {"only": "subject x"})], "only subject x"),
        ([("", [result(0)], {}), ("2of2", [result(1)], {})], "each once"),
        (
            [(f"{max(n, 2)}of12", [result(n)], {}) for n in range(1, 13)],
            r"shards 2of12 \.\. 12of12; give 1of12 \.\. 12of12, each once",
        ),
    ],
)
def test_parts_that_make_no_whole_are_refused(
    tmp_path: Path, parts: list[tuple[str, list[object], dict[str, object]]], said: str
) -> None:
    reports = [made(tmp_path / str(n), lines, shard=shard, **head) for n, (shard, lines, head) in enumerate(parts)]  # type: ignore[arg-type]
    with pytest.raises(ReportError, match=said):
        merge(reports, [str(n) for n in range(len(reports))])


@pytest.mark.parametrize("shard", ["1of999999", "999998of999999"])
def test_a_shard_of_very_many_takes_no_memory(tmp_path: Path, shard: str) -> None:
    reports = [made(tmp_path / "a", [result(0)], shard=shard)]  # type: ignore[arg-type, list-item]
    with pytest.raises(ReportError, match=f"of the shards {shard}; give 1of999999 to 999999of999999, each once"):
        merge(reports, ["a"])


@pytest.mark.parametrize("shard", ["1of999999999999", "1ofx", "0of2", "2", "1of2of3", "of", "1of-2", "1of\u0663", "1/2"])
def test_a_shard_that_is_none_is_refused_when_it_is_read(tmp_path: Path, shard: str) -> None:
    path = write(tmp_path / "report.jsonl", [result(0)])
    path.write_text(path.read_text().replace('"shard":""', f'"shard":"{shard}"'))
    ends(REFUSED, "page", path, said="has a line that is not a record of a report: String should match pattern")


def test_the_files_are_made_again_from_a_report(tmp_path: Path) -> None:
    path = write(tmp_path / "report.jsonl", ALL)
    ends(0, "page", path.parent, said="report.html")
    assert {p.name for p in tmp_path.iterdir()} == {"report.jsonl", "report.html", "junit.xml", "badge.svg"}
