"""Kernels with one change in their source: what the checks of a kernel must reject."""

import ast
import functools
import importlib
import itertools
import os
import re
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

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
    files = {file.relative_to(folder).with_suffix("").parts: file for file in sorted(folder.rglob("*.py"))}
    files = {parts[:-1] if parts[-1] == "__init__" else parts: file for parts, file in files.items()}
    found = {}
    for parts, file in files.items():
        text = file.read_text()
        tree = ast.parse(text)
        nodes = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        bases = [(_base(parts, file.stem == "__init__", folder.name, node), node) for node in nodes]
        named = {(*base, *more) for base, node in bases for more in ((), *((a.name,) for a in node.names))}
        imports = frozenset(".".join(name) for name in named & files.keys())
        found[".".join(parts)] = Source(str(file.relative_to(folder)), text, imports, tuple(_spans(tree, text)))
    return found


def _base(module: tuple[str, ...], is_package: bool, package: str, node: ast.ImportFrom) -> tuple[str, ...]:
    """The module that names are imported from, inside the package; one that no module has for others."""
    path = tuple((node.module or "").split(".")) if node.module else ()
    if not node.level:
        return path[1:] if path[0] == package else ("",)
    return module[: len(module) + is_package - node.level] + path


def _spans(tree: ast.Module, text: str) -> Iterator[tuple[str, int, int]]:
    """The names of functions, classes, methods and values, with the first character and the one after the last."""
    starts = [0, *itertools.accumulate(map(len, text.splitlines(keepends=True)))]
    inner = [(f"{c.name}.", n) for c in tree.body if isinstance(c, ast.ClassDef) for n in c.body]
    for prefix, node in [*(("", n) for n in tree.body), *inner]:
        for name in sorted(_bound(node)):
            first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
            yield f"{prefix}{name}", starts[first - 1], starts[node.end_lineno or 0]


def _bound(node: ast.stmt) -> set[str]:
    """The names that a statement of a module or a class binds."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


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
    """Whether the check rejects a changed kernel on one of its cases, by an assertion, by False, or by a crash.

    An error of another kind is raised: it may be that of a change that cannot run, which any check would catch.

    Raises: RuntimeError with the traceback of such an error.
    """
    return in_a_process_of_its_own(lambda: _rejected(mutant, check, cases))


def in_a_process_of_its_own(catches: Callable[[], bool]) -> bool:
    """What `catches` says of a planted fault, or True if it crashes: what the fault writes beside the test's memory ends with
    that process. With more than one thread of OpenMP, whose pool a forked process lacks, it runs in this process.

    Raises: RuntimeError with the traceback of its error.
    """
    if os.environ.get("OMP_NUM_THREADS") != "1":
        return catches()
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        try:
            told = str(int(catches()))
        except BaseException:
            told = traceback.format_exc()
        with os.fdopen(write, "w") as stream:
            stream.write(told)
        os._exit(0)  # nothing of pytest runs twice
    os.close(write)
    with os.fdopen(read) as stream:
        told = stream.read()
    os.waitpid(child, 0)
    if told not in ("", "0", "1"):
        raise RuntimeError(told)
    return told != "0"


def _rejected(mutant: ModuleType, check: Callable[..., object], cases: Iterable[Any]) -> bool:
    for case in cases:
        try:
            if check(mutant, case) is False:
                return True
        except AssertionError:
            return True
    return False
