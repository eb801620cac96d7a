"""A table of the kernels at the end of their tests: `pytest tests/kernels --kernel-table`.

    bound       the largest error over its bound, of all comparisons that the tests make                  (1)
    bytes       bytes counted over `traffic_bytes`, the smallest and the largest of all cases             (2)
    registers   a thread, and bytes spilled: the most over the shapes and architectures of `budgets.toml`, (3)
                which `test_compiled` holds the compiled kernels to

A comparison or a count belongs to the launchers that its test ran: to the one that the test's file is named after, and to
those that no file is named after. A test that ran any kernel but the package's own, a planted fault, counts for none.
A kernel without its figures fails the run: (1) may be missing where results are choices or moved values, (2) where a kernel
declares no `traffic_bytes`. So does a formula two of whose sizes are the same wherever bytes are counted: there either may
stand for the other.
"""

import ast
import functools
import inspect
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any, ClassVar

import pytest

from perf_gates.static.kernel_modules import homes, kernel_module

PACKAGE = "ssmspec_kernels"
MODULES = {"commit_halves": "double_buffer", "commit_window": "cursors"}
"""Launchers that are not named after their modules."""
INNER = {"delta_apply", "delta_solve", "delta_tree_products", "kda_pairs", "ssd_buffered_short", "ssd_tree_large"}
"""Modules whose kernels the launcher of another module starts: they are part of its row."""
EXACT = {
    "accept_greedy",
    "accept_sampled",
    "commit_tokens",
    "conv_commit",
    "cursors",
    "double_buffer",
    "kv_compact",
    "ngram_drafts",
    "rotary",
    "tree_mask",
}
"""Kernels whose results are choices or moved values; their tests demand equality."""
HEAD = ("kernel", "tests", "bound", "bytes / formula", "registers sm_80", "sm_90", "sm_100", "spills")


@dataclass
class Figures:
    """What the tests of one kernel found."""

    tests: int = 0
    used: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    apart: list[str] = field(default_factory=list)
    """Pairs of sizes that differed in a count of bytes."""

    def add(self, other: "Figures") -> None:
        """The largest share of a bound, and the ends of the ratios."""
        self.tests += other.tests
        self.used = [max([*self.used, *other.used])] if self.used or other.used else []
        ratios = [*self.ratios, *other.ratios]
        self.ratios = [min(ratios), max(ratios)] if ratios else []
        self.apart = sorted({*self.apart, *other.apart})


class Formula(int):
    """Bytes by a formula; what they are compared with is kept."""

    seen: ClassVar[list[float]] = []
    apart: ClassVar[dict[str, set[str]]] = {}
    """Of each module, the pairs of sizes that differed in a call of its formula."""

    def __eq__(self, other: object) -> bool:
        if isinstance(other, int) and int(self) > 0:
            Formula.seen.append(int(other) / int(self))
        return int(self) == other

    def __hash__(self) -> int:
        return hash(int(self))

    def __add__(self, other: int) -> "Formula":
        return Formula(int(self) + int(other))

    __radd__ = __add__

    def __sub__(self, other: int) -> "Formula":
        return Formula(int(self) - int(other))


class Recorder:
    """Watches launches, comparisons and byte counts while tests run, and keeps those of tests that pass."""

    def __init__(self) -> None:
        self.found: dict[str, Figures] = {}
        self.launched: set[str] = set()
        self.used: list[float] = []

    def install(self) -> None:
        from triton.runtime.interpreter import GridExecutor

        from conformance.judge import verdict
        from ssmspec_ref.error_bounds import comparison

        launch, made, measure = GridExecutor.__call__, comparison.Comparison, verdict.measure

        @functools.wraps(launch)
        def launching(grid: Any, *args: Any, **kwargs: Any) -> Any:
            self.launched.add(launcher(sys._getframe(1)))
            return launch(grid, *args, **kwargs)

        def compared(*args: Any) -> Any:
            result = made(*args)
            if result.passed:
                self.used.append(result.utilisation)
            return result

        @functools.wraps(measure)
        def measured(*args: Any) -> Any:
            """The same of a case that the suite judges."""
            result = measure(*args)
            if result.utilisation <= 1:
                self.used.append(result.utilisation)
            return result

        GridExecutor.__call__ = launching
        comparison.Comparison = compared  # type: ignore[assignment, misc]
        verdict.measure = measured  # type: ignore[assignment]
        for name in modules():
            module = kernel_module(name)
            if hasattr(module, "traffic_bytes"):
                module.traffic_bytes = formula(name, module.traffic_bytes)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[Any]:
        report: Any = yield
        if call.when == "call":
            if report.passed:
                self.keep(Path(str(item.path)).stem.removeprefix("test_"))
            self.launched, self.used, Formula.seen, Formula.apart = set(), [], [], {}
        return report

    def keep(self, file: str) -> None:
        """Count what the test that just passed found."""
        if not self.launched <= set(modules()):
            return
        for name, pairs in Formula.apart.items():
            self.found.setdefault(name, Figures()).add(Figures(apart=sorted(pairs)))
        tested = {path.stem.removeprefix("test_") for path in Path(__file__).parent.glob("test_*.py")}
        for name in self.launched:
            if name == file or name not in tested or file not in modules():
                self.found.setdefault(name, Figures()).add(Figures(1, self.used, Formula.seen))

    # --- pytest-xdist: workers hand over, the controller adds up ---

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):
            found = {name: asdict(figures) for name, figures in self.found.items()}
            session.config.workeroutput["kernels"] = json.dumps(found)
        elif session.exitstatus == 0 and missing(self.found):
            session.exitstatus = 1

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        for name, figures in json.loads(getattr(node, "workeroutput", {}).get("kernels", "{}")).items():
            self.found.setdefault(name, Figures()).add(Figures(**figures))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("kernels")
        for line in table(self.found):
            terminalreporter.write_line(line)
        for line in missing(self.found):
            terminalreporter.write_line(line, red=True)


def launcher(frame: Any) -> str:
    """The module of the package that was called from outside; a launch from elsewhere keeps the whole name of its module."""
    outermost, name = "", str(frame.f_globals["__name__"])
    while frame is not None:
        package, _, module = str(frame.f_globals.get("__name__", "")).partition(".")
        if package == PACKAGE and module not in ("", "row"):
            outermost = module.rpartition(".")[2]
        frame = frame.f_back
    return outermost or name


def formula(name: str, function: Any) -> Any:
    @functools.wraps(function)
    def counted(*args: Any, **kwargs: Any) -> Formula:
        given = inspect.signature(function).bind(*args, **kwargs).arguments
        apart = {f"{x} {y}" for x, y in map(str.split, pairs(function)) if given[x] != given[y]}
        Formula.apart.setdefault(name, set()).update(apart)
        return Formula(function(*args, **kwargs))

    return counted


def pairs(function: Any) -> list[str]:
    """All pairs of the sizes that a formula must be given."""
    given = inspect.signature(function).parameters.values()
    sizes = [p.name for p in given if p.default is p.empty and p.annotation in (int, "int")]
    return [f"{x} {y}" for x, y in combinations(sizes, 2)]


@functools.cache
def modules() -> dict[str, bool]:
    """The modules of the package that launch kernels, and whether they declare `traffic_bytes`."""
    found = {name: Path(str(kernel_module(name).__file__)).read_text() for name in sorted(homes())}
    named = {MODULES.get(name.split()[0], name.split()[0]) for name in budgets()}
    rows = {m: text for m, text in found.items() if m not in INNER and (m in named or launches(text))}
    return {m: "\ndef traffic_bytes(" in text for m, text in rows.items()}


def launches(source: str) -> bool:
    """Whether a call of a subscript, `kernel[grid](...)`, stands in a source."""
    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    return any(isinstance(call.func, ast.Subscript) for call in calls)


@functools.cache
def budgets() -> dict[str, Any]:
    from perf_gates.static import compiled

    return compiled.budgets()[1]


def costs(module: str) -> tuple[list[int], int]:
    """(3): the most registers on each architecture, and the most bytes spilled."""
    from perf_gates.static.entry import ARCHITECTURES

    own = {name: c for name, c in budgets().items() if MODULES.get(name.split()[0], name.split()[0]) == module}
    registers = [max((c.registers for n, c in own.items() if n.endswith(f"sm_{a}")), default=0) for a in ARCHITECTURES]
    return registers, max((c.spills for c in own.values()), default=-1)


def table(found: dict[str, Figures]) -> Iterator[str]:
    rows = [HEAD, *(row(name, found.get(name, Figures())) for name in modules())]
    widths = [max(len(r[i]) for r in rows) for i in range(len(HEAD))]
    yield from ("  ".join(f"{cell:{'<' if i == 0 else '>'}{widths[i]}}" for i, cell in enumerate(r)) for r in rows)


def row(name: str, figures: Figures) -> tuple[str, ...]:
    registers, spills = costs(name)
    bound = f"{max(figures.used):.3f}" if figures.used else "equal" if name in EXACT else "-"
    ends = sorted({f"{ratio:.6g}" for ratio in figures.ratios}, key=float)
    return name, str(figures.tests), bound, " to ".join(ends) or "-", *map(str, registers), str(spills)


def missing(found: dict[str, Figures]) -> list[str]:
    """What keeps a kernel from having its row."""
    wrong = []
    for name, declares in modules().items():
        figures = found.get(name, Figures())
        if not figures.tests:
            wrong.append(f"{name}: no test that passed launched it")
        elif not figures.used and name not in EXACT:
            wrong.append(f"{name}: nothing was compared with a bound")
        if declares and not figures.ratios:
            wrong.append(f"{name}: its bytes were not counted")
        if figures.ratios and figures.ratios != [1.0, 1.0]:
            wrong.append(f"{name}: bytes counted over the formula came as {figures.ratios}, not 1")
        same = [pair for pair in pairs(kernel_module(name).traffic_bytes) if pair not in figures.apart] if declares else []
        if figures.ratios and same:
            wrong.append(f"{name}: bytes are counted only where these sizes are the same: {', '.join(same)}")
        if costs(name)[1] < 0:
            wrong.append(f"{name}: no budget of registers")
    return wrong
