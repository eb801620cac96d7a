"""Replacements for what Triton kernels import from the rest of their package, if the package itself is not loaded.

A stub module has exactly the names that the kernels use. Any other name is an ImportError, so that nothing is replaced
by accident.
"""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any


def module(name: str, **contents: Any) -> None:
    """Put a stub module with this name, which may have submodules, in place of the package's module."""
    made = ModuleType(name)
    made.__path__ = []
    vars(made).update(contents)
    sys.modules[name] = made


def silent() -> Any:
    """A logger that discards everything."""
    return SimpleNamespace(**dict.fromkeys(("debug", "info", "warning", "info_once", "warning_once"), lambda *_, **__: None))


def capability(device: str) -> tuple[int, int]:
    """The compute capability of a GPU; (0, 0) in the interpreter."""
    import torch

    found: tuple[int, int] = (0, 0) if device == "cpu" else torch.cuda.get_device_capability()
    return found


def unused(name: str) -> Any:
    """A function that kernel modules import but that is never called in these tests."""

    def call(*_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"{name} is not available: only the kernels of its package are loaded")

    return call
