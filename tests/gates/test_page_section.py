"""What a command makes of a page goes between its markers; the rest of the page stays, and a page without them is refused."""

from pathlib import Path

import pytest

from perf_gates.report import kernel_table, paper_table
from perf_gates.report.page_section import PageSection
from perf_gates.verdicts import stable

ROOT = Path(__file__).parents[2]
PARTS = [
    (kernel_table.MADE, ROOT / "perf_gates" / "README.md"),
    (paper_table.MADE, ROOT / "docs" / "performance.md"),
    (stable.MADE, ROOT / "docs" / "performance.md"),
]


def test_a_text_goes_between_the_markers_and_is_read_back() -> None:
    page = "a\n<!-- x -->\nold\n<!-- end of x -->\nb\n"
    assert PageSection("x").split(page) == ("a\n", "old", "\nb\n")
    made = PageSection("x").put(page, "new\n\nlines")
    assert made == "a\n<!-- x -->\n\nnew\n\nlines\n\n<!-- end of x -->\nb\n"
    assert PageSection("x").put(made, "old") == PageSection("x").put(page, "old")


@pytest.mark.parametrize(
    "page", ["none", "<!-- x -->", "<!-- x --> <!-- x --> <!-- end of x -->", "<!-- y --><!-- end of y -->"]
)
def test_a_page_without_each_marker_once_is_refused(page: str) -> None:
    with pytest.raises(ValueError, match="must hold <!-- x --> and <!-- end of x --> once each"):
        PageSection("x").put(page, "new")


@pytest.mark.parametrize(("part", "page"), PARTS, ids=[part.name for part, _ in PARTS])
def test_the_pages_hold_the_markers_of_what_is_made(part: PageSection, page: Path) -> None:
    before, held, behind = part.split(page.read_text())
    assert before
    assert held
    assert behind
