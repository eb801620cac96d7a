"""Load Triton kernels of other projects from their installed sources, without their packages' other dependencies.

A package's `__init__` may require CUDA extensions that its Triton kernels do not need; it is skipped when only the sources
are needed. The interpreter has no device. Nothing is autotuned: a kernel with many configurations runs with its smallest
tiles, because the largest may not fit float32, and timing all of them takes a minute for every shape.
"""

import sys
from collections.abc import Callable
from contextlib import nullcontext
from importlib import import_module, metadata
from importlib.util import find_spec
from math import prod
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from ssmspec_ref.errors import Unsupported
from ssmspec_ref.shapes import Array


def bare(package: str) -> None:
    """Make a package importable without running its `__init__`. Raises: ImportError if it is not installed."""
    if package in sys.modules:
        return
    spec = find_spec(package)
    if spec is None or spec.submodule_search_locations is None:
        raise ImportError(f"No module named {package!r}", name=package)
    module = ModuleType(package)
    module.__path__ = list(spec.submodule_search_locations)
    sys.modules[package] = module


def version_of(*distributions: str) -> str:
    """The version of the first installed distribution; "sources" if a folder has no version record."""
    for name in distributions:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return "sources"


def placed(device: str) -> None:
    """Prepare this process for kernels on a device, a GPU or the interpreter on the CPU. Call before importing their modules.

    Raises: Unsupported if Triton would compile for a missing device.
    """
    import os

    import torch

    if device == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        raise Unsupported("these are Triton kernels: give --device interpreter, or --device cuda on a GPU")
    from triton.runtime import autotuner

    autotuner.Autotuner.__init__ = _with_the_smallest(autotuner.Autotuner.__init__)
    if device == "cpu":
        for place in (torch.cuda, torch.cpu):
            place.device = lambda index: nullcontext()  # type: ignore[attr-defined]


def _with_the_smallest(begin: Callable[..., None]) -> Callable[..., None]:
    """The initialisation of an autotuner, with only the configuration whose tile sizes have the smallest product."""

    def size(config: Any) -> int:
        return prod(value for value in config.kwargs.values() if type(value) is int)

    def init(self: Any, fn: Any, arg_names: Any, configs: Any, *rest: Any, **named: Any) -> None:
        begin(self, fn, arg_names, sorted(configs or (), key=size)[:1], *rest, **named)

    return init


def module(name: str) -> Any:
    return import_module(name)


class Tensors:
    """Converts arrays to tensors on a device, and back. `activations` is the format of what an engine computes in its layers:
    the inputs of a recurrence, which are bf16 or fp16 there; `state` is that of its state. Decays and weights stay fp32."""

    def __init__(self, device: str, activations: str = "fp32", state: str = "fp32") -> None:
        import torch

        forms = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
        self.torch, self.device, self.form, self.state = torch, device, forms[activations], forms[state]

    def __call__(self, array: Array | None) -> Any:
        """Floats become float32; other types are unchanged."""
        if array is None:
            return None
        tensor = self.torch.tensor(np.asarray(array), device=self.device)
        return tensor.float() if tensor.is_floating_point() else tensor

    def active(self, array: Array | None) -> Any:
        """An activation. The suite draws it in the contract's format of inputs, so that nothing is rounded."""
        tensor = self(array)
        return None if tensor is None else tensor.to(self.form)

    def held(self, array: Array) -> Any:
        """A state."""
        return self(array).to(self.state)

    def back(self, *tensors: Any) -> tuple[Array, ...]:
        return tuple(t.double().cpu().numpy() for t in tensors)


def one(scan: Callable[..., Any]) -> Callable[..., Any]:
    """A step made from a scan: a token is a window of one."""

    def step(S: Array, token: Any, params: Any) -> tuple[Array, Array]:
        y, S_next = scan(S, mapped(lambda a: a[:, None], token), params)
        return y[:, 0], S_next

    return step


def mapped(function: Callable[[Array], Array], record: Any) -> Any:
    """The fields of a record with a function applied to each array. The axes change, so the result is not a record."""
    return SimpleNamespace(**{name: None if a is None else function(a) for name, a in vars(record).items()})


def joined(window: Any) -> Any:
    """A record of windows as one packed run of tokens."""
    return mapped(lambda a: a.reshape(-1, *a.shape[2:]), window)


def importable(*homes: str) -> None:
    """Make packages importable without running the `__init__` of any package on their path. Raises: ImportError."""
    for home in homes:
        parts = home.split(".")
        for depth in range(1, len(parts) + 1):
            bare(".".join(parts[:depth]))
