"""The rows of launchers, and their oracles; the kernels' package is imported by name only."""

from collections.abc import Callable
from importlib import import_module
from operator import attrgetter
from types import ModuleType
from typing import Any, TypeAlias

from ssmspec_ref import error_bounds

from .kernel_modules import kernel_module

Entry: TypeAlias = Any
"""A tensor of a row: `ssmspec_kernels.row.Entry`."""
FP32: tuple[Any, ...] = kernel_module("row").FP32
row_of: Callable[..., tuple[Entry, ...]] = kernel_module("row").row_of
takes: Callable[..., frozenset[str]] = kernel_module("row").takes
taken: Callable[..., dict[str, Any]] = kernel_module("row").taken
ORACLES: dict[str, Any] = kernel_module("oracles").ORACLES


def oracle_of(launcher: str) -> Callable[..., Any]:
    """The function of the oracle that a launcher computes."""
    module, _, name = ORACLES[launcher].function.rpartition(".")
    found: Callable[..., Any] = getattr(import_module(f"ssmspec_ref.{module}"), name)
    return found


def bound_of(launcher: str) -> Callable[..., Any]:
    """The same on pairs: `ssd.tree.scan` is `error_bounds.ssd.tree`."""
    module, _, name = ORACLES[launcher].function.rpartition(".")
    found: Any = attrgetter(module)(error_bounds)
    return getattr(found, name) if isinstance(found, ModuleType) else found
