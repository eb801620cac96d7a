"""Of the slowest tests a fifth runs in CI, another one each day; `--draw all` runs all of them.

`tests/slow.txt` lists functions whose cases take seconds, with their mean, and the commit of the last run of all tests. Every
fifth case of such a function runs, and at least one (`conformance.progress.rotation`); functions without cases count as cases
of their file. `--draw 2026-11-30:1f0c2a` repeats a run, and the header of each run prints its draw.

Always run: what `tests/failed.txt` names, the failures of the last nightly run, and the tests whose file, or a file that it
imports, has changed since the last run of all tests. A file that more than a quarter of the slow tests' files import does not
count: a case of each function sees it. Where git cannot tell, all run.

    pytest tests --draw all --junit-xml all.xml; python -m tests.rotation all.xml

writes both lists anew.
"""

import functools
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from xml.etree import ElementTree

import pytest
import typer

from conformance.progress.rotation import ALL, PARTS, Draw, git, read_draw
from tests.imported import imported_names

ROOT = Path(__file__).parents[1]
SLOW = ROOT / "tests" / "slow.txt"
FAILED = ROOT / "tests" / "failed.txt"
SECONDS = 1.5
"""A function is slow whose cases take this long on average, on the machine of the last run of all tests."""


@dataclass(frozen=True)
class Slow:
    """The list of slow functions, and the commit at which all tests ran."""

    commit: str
    names: frozenset[str]


def read_slow(file: Path) -> Slow:
    """Raises: ValueError: a line that is no commit and no function with its seconds."""
    commit, names = "", set()
    for number, line in enumerate(file.read_text().splitlines(), 1):
        word, _, rest = line.partition(" ")
        if word == "commit" and re.fullmatch(r"[0-9a-f]{40}", rest):
            commit = rest
        elif re.fullmatch(r"\d+(\.\d+)?", word) and "::" in rest:
            names.add(rest)
        else:
            raise ValueError(f"{file.name}:{number}: got {line!r}; need `commit HASH` or `SECONDS FILE::FUNCTION`")
    return Slow(commit, frozenset(names))


def draw_of(config: pytest.Config) -> Draw | None:
    """The draw that `--draw` names; None: all tests run. Raises: pytest.UsageError: a text that names no draw."""
    try:
        return read_draw(config.getoption("--draw"), ROOT)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None


def function_of(test: str) -> str:
    """`FILE::FUNCTION` of a test's id, without its case."""
    return test.partition("[")[0]


def left_out(tests: Sequence[str], slow: Slow, draw: Draw, always: Iterable[str]) -> set[str]:
    """The slow tests that do not run in this draw. `always`: files and tests that run whatever the draw."""
    kept = set(always)
    cases: defaultdict[str, list[str]] = defaultdict(list)
    for test in tests:
        name = function_of(test)
        if name in slow.names:
            cases[name].append(test)
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for name, ids in cases.items():
        groups[name if len(ids) > 1 else name.partition("::")[0]] += ids
    out: set[str] = set()
    for name, ids in groups.items():
        out |= {test for test in ids if test not in kept and test.partition("::")[0] not in kept} - draw.chosen(name, ids)
    return out


@functools.cache
def changed(commit: str) -> frozenset[str] | None:
    """The files that differ from those of `commit`, new ones included; None where git cannot tell."""
    differ = git(ROOT, "diff", "--name-only", commit) if commit else None
    new = git(ROOT, "ls-files", "--others", "--exclude-standard")
    return None if differ is None or new is None else frozenset(differ.splitlines() + new.splitlines())


def imports(file: str) -> set[str]:
    """The files of the project that a test's file names in its imports, and itself."""
    path, found = ROOT / file, {file}
    for module, name in imported_names(path.read_text(), Path(file).parent.parts):
        for parts in (module, [*module, name] if name else module):
            for root in ("", "kernels/"):
                stem = root + "/".join(parts)
                found |= {place for place in (f"{stem}.py", f"{stem}/__init__.py") if (ROOT / place).is_file()}
    return found


def readers(files: set[str], differ: frozenset[str]) -> set[str]:
    """The files of tests that read a changed file, unless it is one that many of them read."""
    reads = {file: imports(file) for file in files if (ROOT / file).is_file()}
    many = Counter(name for names in reads.values() for name in names)
    few = {name for name in differ if many[name] <= max(1, len(reads) // 4)}
    return {file for file, names in reads.items() if names & few}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--draw", default=ALL, help="all (default), today, or DATE:TREE: which fifth of the slowest tests runs")


def pytest_configure(config: pytest.Config) -> None:
    """The draw has its date before workers start, so that midnight does not give them two lists."""
    config.option.draw = str(draw_of(config) or ALL)


def pytest_report_header(config: pytest.Config) -> str:
    draw = draw_of(config)
    return "slow tests: all run" if draw is None else f"slow tests: one in {PARTS} runs: --draw {draw}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    draw = draw_of(config)
    if draw is None:
        return
    slow = read_slow(SLOW)
    differ = changed(slow.commit)
    if differ is None:
        return
    always = readers({name.partition("::")[0] for name in slow.names}, differ)
    out = left_out([item.nodeid for item in items], slow, draw, always | set(FAILED.read_text().splitlines()))
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in out])
    items[:] = [item for item in items if item.nodeid not in out]


def lists_of(reports: Iterable[Path]) -> tuple[str, str]:
    """The texts of `slow.txt`, without its commit, and of `failed.txt`, from JUnit files of runs of all tests."""
    seconds: defaultdict[str, list[float]] = defaultdict(list)
    failed = []
    for report in reports:
        for case in ElementTree.parse(report).iter("testcase"):
            module, name = case.get("classname", ""), case.get("name", "")
            test = f"{module.replace('.', '/')}.py::{name}"
            seconds[function_of(test)].append(float(case.get("time", 0)))
            if case.find("failure") is not None or case.find("error") is not None:
                failed.append(test)
    mean = {name: fmean(times) for name, times in seconds.items()}
    rows = sorted((name for name in mean if mean[name] >= SECONDS), key=lambda name: (-mean[name], name))
    return "".join(f"{mean[name]:.1f} {name}\n" for name in rows), "".join(f"{test}\n" for test in sorted(failed))


def main(reports: list[Path]) -> None:
    """Write the lists of slow and of failed tests from the JUnit files of a run of all tests."""
    slow, failed = lists_of(reports)
    SLOW.write_text(f"commit {git(ROOT, 'rev-parse', 'HEAD')}\n{slow}")
    FAILED.write_text(failed)


if __name__ == "__main__":
    typer.run(main)
