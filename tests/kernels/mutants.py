"""Kernels with one change in their source: what the checks of a kernel must reject."""

import importlib
import itertools
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

_count = itertools.count()
_root = tempfile.TemporaryDirectory(prefix="ssmspec_mutants_")


def mutated(module: ModuleType, old: str, new: str, *, file: str | None = None) -> ModuleType:
    """The module, loaded from a copy of its package in which `old` became `new`, in its own source or in `file`'s.

    `old` must stand there exactly once, so that a change of the kernel cannot turn the mutant into the original.

    Raises: LookupError where it does not: an AssertionError would pass for the rejection of a fault that was never planted.
    """
    source = Path(str(module.__file__))
    name = f"ssmspec_mutant_{next(_count)}"
    package = Path(_root.name) / name
    shutil.copytree(source.parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    target = package / (file or source.name)
    text = target.read_text()
    found = text.count(old)
    if found != 1:
        raise LookupError(f"{old!r} stands {found} times in {target.name}; name a place that is there once")
    target.write_text(text.replace(old, new))
    sys.path.insert(0, _root.name)
    try:
        importlib.invalidate_caches()
        return importlib.import_module(f"{name}.{source.stem}")
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
