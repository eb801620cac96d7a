"""What a command makes of a page goes between its markers; the rest of the page stays, and a page without them is refused."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from perf_gates import cli
from perf_gates.machine import kernels_hash
from perf_gates.ratchet import bars
from perf_gates.real_text import __main__ as real_text_command
from perf_gates.real_text import report as real_text
from perf_gates.report import kernel_table, paper_table, peers_today
from perf_gates.report.page_section import PageSection
from perf_gates.verdicts import stable
from perf_gates.verdicts.verdict import judge

from .gates_results import COMMITTED, GATES, ROOT

RESULTS = cli.RESULTS


def stable_table() -> str:
    read = json.loads((RESULTS / stable.FILE).read_text())
    return "\n".join(stable.table(stable.with_current_best(read, GATES.limits, GATES.core)))


def papers() -> str:
    found = judge(GATES, COMMITTED, kernels_hash(), bars.read())
    return paper_table.text(GATES, [j for j in found if j.row.kernel is None])


PERFORMANCE = ROOT / "docs" / "performance.md"
PARTS: dict[str, tuple[PageSection, Path, Callable[[], str], str]] = {
    "kernels": (kernel_table.MADE, kernel_table.README, lambda: kernel_table.text(COMMITTED),
                "python -m perf_gates.report.kernel_table perf_gates/results --write"),
    "papers": (paper_table.MADE, PERFORMANCE, papers, "ssmspec gates table --write"),
    "core set": (stable.MADE, PERFORMANCE, stable_table,
                 "python -m perf_gates.verdicts.stable FILE .. --out perf_gates/results"),
    "peers of today": (peers_today.MADE, peers_today.README, lambda: peers_today.text(RESULTS),
                       "python -m perf_gates.report.peers_today perf_gates/results --write"),
    "real text": (real_text.MADE, ROOT / real_text.PAGE, lambda: real_text.text(real_text.read(real_text_command.RESULTS)),
                  "python -m perf_gates.real_text --table --write"),
}  # fmt: skip


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


@pytest.mark.parametrize("name", PARTS)
def test_a_page_holds_what_its_command_makes_of_the_committed_results(name: str) -> None:
    """A cell without its measurement, or a part of other kernels than those that stand, changes the text and fails."""
    part, page, made, command = PARTS[name]
    before, held, behind = part.split(page.read_text())
    assert before
    assert behind
    assert held == made().strip(), f"run `{command}`"
