"""Progress where there is no terminal: a line for each operation, and one every few seconds, with an estimate."""

import time
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from conformance import cli
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
    text, folder = StringIO(), Slow(monkeypatch)
    one = Result(adapter="a", subject="s", contract="c", operation="ssd.step", case="ssd.step/b1", verdict=verdict)
    with cli._bar(Console(file=text, width=200)) as bar:
        write = cli._watched(folder, 10, bar)  # type: ignore[arg-type]
        for _ in range(10):
            write(one)
    lines = text.getvalue().splitlines()
    assert [line.split()[0] for line in lines] == ["0/10", "3/10", "6/10", "9/10"] + ["10/10"] * bool(last)
    assert all(line.endswith("s left") for line in lines[1:4])
    assert not last or lines[-1].endswith(last)
