"""Parameters of tests over several kernels: each with its cases, or with the faults planted in it."""

from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any

import pytest

from tests.kernels.mutants import caught


def covered(covers: Mapping[ModuleType, Iterable[Any]]) -> list[Any]:
    """Every kernel with each of its cases."""
    return [pytest.param(module, o, id=str(o)) for module, cover in covers.items() for o in cover]


def planted(faults: Mapping[ModuleType, Iterable[tuple[Any, ...]]]) -> list[Any]:
    """Every kernel with each of its faults."""
    named = ((module.__name__.rpartition(".")[2], module, rows) for module, rows in faults.items())
    return [
        pytest.param(module, *row, id=f"{name} {'-'.join(map(str, row))}") for name, module, rows in named for row in rows
    ]


def launcher(module: ModuleType) -> Any:
    """The launcher that has its module's name."""
    return getattr(module, module.__name__.rpartition(".")[2])


def rejected(mutant: ModuleType, *checks: Callable[[ModuleType], object]) -> bool:
    """Whether one of the checks rejects a changed kernel, in a process of its own."""
    return caught(mutant, lambda module, check: check(module), checks)
