"""The committed results: the pages say what the files hold, of which kernels, and what they lack."""

from pathlib import Path

from perf_gates import gates, paper_table, report
from perf_gates.machine import kernels_hash
from perf_gates.measured import Results
from perf_gates.verdict import judge

ROOT = Path(__file__).parent.parent
RESULTS = Results(ROOT / "perf_gates" / "results")


def between(file: Path, begin: str, end: str) -> str:
    return file.read_text().split(begin)[1].split(end)[0].strip()


def test_the_table_of_the_kernels_is_that_of_the_results_and_names_what_they_lack() -> None:
    """A cell without its measurement, or a part of other kernels than those that stand, changes the text and fails."""
    said = between(ROOT / "perf_gates" / "README.md", report.BEGIN, report.END)
    assert said == report.text(RESULTS).strip(), "run `python -m perf_gates.report perf_gates/results --write`"


def test_the_papers_tables_are_those_of_the_results() -> None:
    said = between(ROOT / "docs" / "performance.md", paper_table.BEGIN, paper_table.END)
    found = paper_table.text(gates.load(), list(judge(gates.load(), RESULTS, kernels_hash())))
    assert said == found.strip(), "run `ssmspec gates table --write`"


def test_every_part_of_the_table_is_there() -> None:
    assert set(report.PARTS) <= RESULTS.parts.keys()
