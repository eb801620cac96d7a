"""Which kernels a launcher launches, and with what: recorded without a device.

A launcher is called with meta tensors, which have shapes, strides and types but no data; a launcher that looks at data fails
here. In place of a launch, the kernel and its arguments are kept. Triton's own binder then says what it would compile on the
device: the types of pointers, the constants, which arguments are 1 or divisible by 16. Nothing of that is written by hand.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, CompiledKernel, make_backend
from triton.compiler import compile as triton_compile
from triton.runtime.jit import JITFunction, create_function_from_signature


@dataclass(frozen=True)
class Launch:
    """A kernel, and the arguments that its launcher gave it: constants and options among the named ones; the grid; and the
    module of the launcher, the outermost of the kernel's package."""

    kernel: JITFunction
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    grid: tuple[int, ...]
    launcher: str = ""

    @property
    def name(self) -> str:
        return str(self.kernel.__name__)


@dataclass(frozen=True)
class Built:
    """What Triton made of a launch, and the names of the arguments that its PTX takes, in order, with their types."""

    compiled: CompiledKernel
    parameters: tuple[tuple[str, str], ...]


@contextmanager
def launching(instead: Callable[..., Any]) -> Iterator[None]:
    """In the block a launch is a call of `instead`, of the kernel and what came with it: its arguments, `grid`, `warmup`."""
    run, JITFunction.run = JITFunction.run, instead
    try:
        yield
    finally:
        JITFunction.run = run


@contextmanager
def recorded() -> Iterator[list[Launch]]:
    """Keep every launch of the block instead of making it."""
    launches: list[Launch] = []

    def keep(kernel: JITFunction, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        launches.append(Launch(kernel, args, kwargs, grid, outermost(kernel, sys._getframe())))

    with launching(keep):
        yield launches


def outermost(kernel: JITFunction, frame: FrameType | None) -> str:
    """The last module of a kernel's package that is met on the way from a frame to what called it all."""
    package, _, found = str(kernel.fn.__module__).rpartition(".")
    while frame is not None:
        inside, _, module = str(frame.f_globals.get("__name__", "")).rpartition(".")
        found, frame = module if inside == package else found, frame.f_back
    return found


def launches_of(call: Callable[[], object]) -> list[Launch]:
    """The launches that a call makes, the same one once.

    Raises: RuntimeError (Triton was imported for its interpreter, which compiles nothing).
    """
    if knobs.runtime.interpret:
        raise RuntimeError("TRITON_INTERPRET is set, and interpreted kernels cannot be compiled; unset it and start anew")
    with recorded() as launches:
        call()
    return launches


def taken(name: str, kind: str) -> list[tuple[str, str]]:
    """What the PTX takes for an argument: nothing for a constant; for a descriptor its sizes and its strides too."""
    if kind == "constexpr":
        return []
    if not kind.startswith("tensordesc"):
        return [(name, kind)]
    axes = kind[kind.index("[") + 1 : kind.index("]")].count(",") + 1
    return [(name, kind), *[(f"{name}.size", "i32")] * axes, *[(f"{name}.stride", "i64")] * axes]


def build(launch: Launch, capability: int) -> Built:
    """Compile a launch for an architecture (80, 90, 100), exactly as the first launch on such a device would."""
    target = GPUTarget("cuda", capability, 32)
    backend = make_backend(target)
    kwargs = {"debug": False, "instrumentation_mode": knobs.compilation.instrumentation_mode, **launch.kwargs}
    binder = create_function_from_signature(launch.kernel.signature, launch.kernel.params, backend)
    bound, specialization, options = binder(*launch.args, **kwargs)
    options, signature, constants, hints = launch.kernel._pack_args(backend, kwargs, bound, specialization, options)
    source = ASTSource(launch.kernel, signature, constants, hints)
    parameters = tuple(pair for name, kind in signature.items() for pair in taken(name, kind))
    return Built(triton_compile(source, target=target, options=options.__dict__), parameters)
