"""The tests of a kernel: its own, those that name its module, and those of the kernels that use it, nearest first."""

import ast
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from perf_gates.verdicts import gates

ELSEWHERE = {"test_compiled.py", "test_interpreter.py", "test_model_shapes.py", "test_campaign.py"}
"""Tests of the compiler's output, of the interpreter itself, at the models' sizes, and of this."""
COUNTED = "test_counted.py"
"""The kernels that `gates.toml` counts the bytes of, which the file does not import."""
NOT_CODE = {"traffic_bytes", "tile"}
EVERY = "calls"
"""The file that draws a call of every launcher, for tests that name none of them themselves."""


def leaf(node: ast.ImportFrom) -> str:
    """The module that an import takes names from, without its folders."""
    return (node.module or "").rpartition(".")[2]


@cache
def users(package: Path) -> dict[str, set[str]]:
    """The kernels that import more of a module than its formula of bytes or its tile."""
    found: dict[str, set[str]] = {file.stem: set() for file in package.rglob("*.py")}
    for file in package.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_bytes())):
            if not isinstance(node, ast.ImportFrom) or not node.level or leaf(node) not in found:
                continue
            if any(alias.name not in NOT_CODE for alias in node.names):
                found[leaf(node)].add(file.stem)
    return found


@cache
def named(tests: Path) -> dict[str, set[str]]:
    """The test files that import a kernel's module, and `COUNTED`; under the name `EVERY` those of all kernels."""
    found: dict[str, set[str]] = {}
    for file in tests.glob("test_*.py"):
        nodes = imports(file)
        for node in nodes:
            if leaf(node) == EVERY:
                found.setdefault(EVERY, set()).add(file.name)
            if not (node.module or "").startswith("ssmspec_kernels"):
                continue
            for name in [leaf(node), *(alias.name for alias in node.names)]:
                found.setdefault(name, set()).add(file.name)
    for gate in gates.load().bytes:
        found.setdefault(gate.case.split()[0], set()).add(COUNTED)
    return {name: files - ELSEWHERE for name, files in found.items()}


def imports(file: Path) -> list[ast.ImportFrom]:
    return [node for node in ast.walk(ast.parse(file.read_bytes())) if isinstance(node, ast.ImportFrom)]


def tests_of(kernel: str, package: Path, tests: Path, seconds: Mapping[str, float]) -> list[str]:
    """Names of test files: those of the kernel, then those of its users, of those and so on; the quick ones first."""
    by_kernel, uses = named(tests), users(package)
    ordered: list[str] = []
    seen, layer = {kernel}, {kernel}
    while layer:
        files = {f for k in {*layer, EVERY} for f in by_kernel.get(k, ())} - set(ordered)
        ordered += sorted(files, key=lambda f: (f != f"test_{kernel}.py", seconds.get(f, 0.0), f))
        layer = {u for k in layer for u in uses[k]} - seen
        seen |= layer
    return ordered
