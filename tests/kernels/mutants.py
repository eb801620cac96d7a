"""Kernels with one change in their source: what the checks of a kernel must reject."""

import ast
import functools
import importlib
import itertools
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from perf_gates.closure.package import Definition, Package, bound

_count = itertools.count()
_root = tempfile.TemporaryDirectory(prefix="ssmspec_mutants_")


@dataclass(frozen=True)
class Source:
    """A module's text, the modules of the package that it imports, and where each of its definitions stands."""

    path: str
    text: str
    imports: frozenset[str]
    spans: tuple[tuple[str, int, int], ...]


@functools.cache
def sources(folder: Path) -> dict[str, Source]:
    """Of every module of a package, by its name inside it."""
    package = Package(folder)
    found = {}
    for module in package.modules.values():
        path = "/".join([*filter(None, module.name.split(".")), *(["__init__"] if module.is_package else [])]) + ".py"
        text = (folder / path).read_text() if (folder / path).exists() else ""
        nodes = [n for n in ast.walk(module.tree) if isinstance(n, ast.Import | ast.ImportFrom)]
        targets = [target for node in nodes for _, target in package.imported(module, node)]
        inside = [t for t in targets if isinstance(t, Definition)]
        names = {f"{t.module}.{t.name}".strip(".") for t in inside} | {t.module for t in inside}
        found[module.name] = Source(path, text, frozenset(names & package.modules.keys()), tuple(_spans(module.tree, text)))
    return found


def _spans(tree: ast.Module, text: str) -> Iterator[tuple[str, int, int]]:
    """The names of functions, classes, methods and values, with the first character and the one after the last."""
    starts = [0, *itertools.accumulate(map(len, text.splitlines(keepends=True)))]
    inner = [(f"{c.name}.", n) for c in tree.body if isinstance(c, ast.ClassDef) for n in c.body]
    for prefix, node in [*(("", n) for n in tree.body), *inner]:
        for name in sorted(bound(node)) if not isinstance(node, ast.Import | ast.ImportFrom) else ():
            first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
            yield f"{prefix}{name}", starts[first - 1], starts[node.end_lineno or 0]


def planted(held: dict[str, Source], own: str, old: str, at: str | None) -> tuple[Source, int]:
    """The module and the character where a fault is planted.

    Raises: LookupError where `old` is not in one place.
    """
    reached = [own]
    for name in reached:
        reached += sorted(held[name].imports - {*reached})
    if at is not None:
        spans = [(held[name], a, b) for name in reached for told, a, b in held[name].spans if told == at]
    elif old in held[own].text:
        spans = [(held[own], 0, len(held[own].text))]
    else:
        spans = [(held[name], 0, len(held[name].text)) for name in reached]
    places = [
        (source, match.start()) for source, a, b in spans for match in re.compile(re.escape(old)).finditer(source.text, a, b)
    ]
    if len(places) != 1:
        where = f"in {at}" if at else f"in {own} and what it imports"
        raise LookupError(
            f"{old!r} stands {len(places)} times {where}; name a statement, and with `at` a function, that is one"
        )
    return places[0]


def mutated(module: ModuleType, old: str, new: str, *, at: str | None = None) -> ModuleType:
    """The module, loaded from a copy of its package in which `old` became `new`: in the function, class or value `at`, of
    this module or of one that it imports; without `at` in this module, or if it does not hold `old`, in what it imports.

    `old` must stand there exactly once, so that a change of the kernel cannot turn the mutant into the original. Files may
    move and modules have other names: a fault is found by its function and statement.

    Raises: LookupError where it does not: an AssertionError would pass for the rejection of a fault that was never planted.
    """
    top, _, inside = module.__name__.partition(".")
    folder = Path(str(sys.modules[top].__path__[0]))
    source, start = planted(sources(folder), inside, old, at)
    name = f"ssmspec_mutant_{next(_count)}"
    package = Path(_root.name) / name
    shutil.copytree(folder, package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / source.path).write_text(source.text[:start] + new + source.text[start + len(old) :])
    sys.path.insert(0, _root.name)
    try:
        importlib.invalidate_caches()
        return importlib.import_module(f"{name}.{inside}")
    finally:
        sys.path.remove(_root.name)


def caught(mutant: ModuleType, check: Callable[..., object], cases: Iterable[Any]) -> bool:
    """Whether the check rejects a changed kernel on one of its cases, by an assertion or by False.

    An error of another kind is raised: it may be that of a change that cannot run, which any check would catch.
    """
    for case in cases:
        try:
            if check(mutant, case) is False:
                return True
        except AssertionError:
            return True
    return False
