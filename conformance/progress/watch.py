"""What a run shows while it goes on: a bar on a terminal, lines elsewhere, failing cases, and the matrix after the last."""

import time
from collections import Counter
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from ..report.matrix import matrix
from ..report.stream import Diagnosis, Result
from .estimate import left

QUIET = 10.0
"""Seconds after which another line of progress is printed where there is no bar."""
FIRST = 2
"""Failing cases of an operation of a subject to show as they fail."""
SEARCH = "looking for the smallest case of each failure"


def progress_bar(console: Console) -> Progress:
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


class Watch:
    """Passes each line of a run on, and shows progress: a bar on a terminal, otherwise a line for each operation of a
    subject, and one when the last is `QUIET` seconds old. The first failing cases of an operation of a subject are shown as
    they fail, so that a run that is killed before its report says what failed.
    """

    def __init__(self, add: Callable[[Result | Diagnosis], None], count: int, bar: Progress) -> None:
        self.add, self.count, self.bar = add, count, bar
        self.task = bar.add_task("", total=count)
        self.said, self.done = "", 0
        self.began = self.printed = time.monotonic()
        self.shown: Counter[str] = Counter()
        self.tabled = False

    def __call__(self, line: Result | Diagnosis) -> None:
        self.add(line)
        if isinstance(line, Diagnosis) or not (line.case and line.operation):
            return
        now = f"{line.adapter}: {line.subject}  {line.operation}"
        if line.verdict == "fail" and self.shown[now] < FIRST:
            self.shown[now] += 1
            self._print(f"failed  {line.adapter}: {line.subject}  {line.case}  {line.message}")
        late = time.monotonic() - self.printed >= QUIET
        if not self.bar.console.is_terminal and (now != self.said or late):
            self.printed = time.monotonic()
            self._print(f"{self.done}/{self.count}  {now}{left(self.began, self.done, self.count)}")
        self.said, self.done = now, self.done + 1
        self.bar.update(self.task, description=now, advance=1)

    def table(self, console: Console, results: Sequence[Result]) -> None:
        """Print the matrix before failures are explained, which may take longer than the cases; without failures nothing."""
        if not any(r.verdict in ("fail", "known-failure") for r in results):
            return
        self.bar.stop()
        console.print(matrix(results, console))
        self.tabled = True
        self.bar.start()
        self.bar.update(self.task, description=SEARCH, total=None)
        if not self.bar.console.is_terminal:
            self._print(f"{self.done}/{self.count}  {SEARCH}")

    def _print(self, text: str) -> None:
        self.bar.console.print(text, soft_wrap=True, highlight=False, markup=False)
