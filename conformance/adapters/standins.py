"""What Triton kernels import from the rest of their package, where the package itself is left out.

A stand-in is a module with exactly the names that the kernels read; a name that it lacks is an ImportError, so that nothing
is replaced unseen.
"""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any


def module(name: str, **contents: Any) -> None:
    """A module of a name, which may have others below it, in place of the one of the package."""
    made = ModuleType(name)
    made.__path__ = []
    vars(made).update(contents)
    sys.modules[name] = made


def silent() -> Any:
    """A logger that says nothing."""
    return SimpleNamespace(**dict.fromkeys(("debug", "info", "warning", "info_once", "warning_once"), lambda *_, **__: None))


def capability(device: str) -> tuple[int, int]:
    """The compute capability of a GPU; (0, 0) in the interpreter."""
    import torch

    found: tuple[int, int] = (0, 0) if device == "cpu" else torch.cuda.get_device_capability()
    return found


def unused(name: str) -> Any:
    """A function that kernels' modules import and that nothing judged here calls."""

    def call(*_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"{name} is not there: only the kernels of its package are")

    return call
