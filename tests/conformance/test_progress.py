"""Progress where there is no terminal: a line for each operation, one every few seconds, with an estimate, and the first
failing cases of each operation as they fail."""

import time
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from conformance.progress.watch import FIRST, Watch, progress_bar
from conformance.report.stream import Result


class Slow:
    """A folder in which every result takes four seconds of a clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    def add(self, line: Any) -> None:
        self.now += 4.0


@pytest.mark.parametrize(("verdict", "last"), [("fail", "looking for the smallest case of each failure"), ("pass", "")])
def test_a_long_operation_prints_a_line_every_few_seconds(monkeypatch: pytest.MonkeyPatch, verdict: Any, last: str) -> None:
    text, table, folder = StringIO(), StringIO(), Slow(monkeypatch)
    told: dict[str, Any] = {"case": "ssd.step/b1", "verdict": verdict, "message": "y is wrong by 1"}
    one = Result(adapter="a", subject="s", contract="c", operation="ssd.step", **told)
    with progress_bar(Console(file=text, width=200)) as bar:
        write = Watch(folder.add, 10, bar)
        for _ in range(10):
            write(one)
        write.table(Console(file=table), [one] * 10)
    printed = text.getvalue().splitlines()
    lines = [line for line in printed if not line.startswith("failed")]
    failures = ["failed  a: s  ssd.step/b1  y is wrong by 1"] * FIRST if verdict == "fail" else []
    assert [line for line in printed if line not in lines] == failures
    assert [line.split()[0] for line in lines] == ["0/10", "3/10", "6/10", "9/10"] + ["10/10"] * bool(last)
    assert all(line.endswith("s left") for line in lines[1:4])
    assert not last or lines[-1].endswith(last)
    assert ("10 fail" in table.getvalue()) is bool(last)  # what passes is shown once, at the end
