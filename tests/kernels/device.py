"""Where the tests of kernels run: in Triton's interpreter, or with SSMSPEC_KERNELS_DEVICE=cuda compiled, on a GPU.

On a GPU PyTorch makes its tensors there by default. The two crossings between NumPy and PyTorch that know no default are
replaced, so that a test reads the same on both.
"""

import os
import tempfile
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch
from filelock import FileLock
from torch import Tensor

DEVICE = os.environ.get("SSMSPEC_KERNELS_DEVICE", "interpreter")
COMPILED = DEVICE != "interpreter"


def place() -> None:
    """Make every tensor on the device."""
    from_numpy, to_numpy = torch.from_numpy, Tensor.numpy
    torch.set_default_device(DEVICE)
    torch.from_numpy = lambda array: from_numpy(array).to(DEVICE)  # type: ignore[assignment]
    Tensor.numpy = lambda tensor: to_numpy(tensor.detach().cpu())  # type: ignore[assignment, method-assign, misc]


LARGE = FileLock(Path(tempfile.gettempdir()) / "ssmspec-large-tensors")
"""For tensors of many gigabytes, of which a GPU holds few: one process of a machine at a time."""


def reaches(function: Any, wanted: tuple[Any, ...]) -> bool:
    """Whether a test names one of the functions `wanted`, or a function of ours that does."""
    seen: set[int] = set()
    waiting = [function]
    while waiting:
        current = waiting.pop()
        if any(current is w for w in wanted):
            return True
        if isinstance(current, FunctionType) and id(current) not in seen:
            seen.add(id(current))
            waiting += _named(current)
    return False


def _named(function: FunctionType) -> list[Any]:
    """What a function names in its module, or in a module of tests that it names."""
    names, modules = _names(function.__code__), [function.__globals__]
    modules += [
        vars(m) for n in names if isinstance(m := function.__globals__.get(n), ModuleType) and ".kernels" in m.__name__
    ]
    return [module[name] for name in names for module in modules if name in module]


def _names(code: CodeType) -> set[str]:
    inner = [_names(c) for c in code.co_consts if isinstance(c, CodeType)]
    return set(code.co_names).union(*inner)
