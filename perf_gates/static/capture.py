"""Which kernels a launcher launches, and with what: recorded without a device.

A launcher is called with meta tensors, which have shapes, strides and types but no data; a launcher that reads data fails
here. Instead of launching, the kernel and its arguments are recorded. Triton's own binder then says what it would compile for
the device: the types of pointers, the constants, which arguments are 1 or divisible by 16. None of that is written by hand.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from types import FrameType
from typing import Any

from triton import knobs
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, CompiledKernel, make_backend
from triton.compiler import compile as triton_compile
from triton.runtime.jit import JITFunction, create_function_from_signature


@dataclass(frozen=True)
class Launch:
    """A kernel, and the arguments from its launcher, with constants and options among the keywords; the grid; and the
    module of the launcher, the outermost one in the kernel's package."""

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
    """A compiled launch, and the names of the arguments that its PTX takes, in order, with their types."""

    compiled: CompiledKernel
    parameters: tuple[tuple[str, str], ...]


@contextmanager
def launching(instead: Callable[..., Any]) -> Iterator[None]:
    """In the block a launch calls `instead`, with the kernel and its launch: arguments, `grid`, `warmup`."""
    run, JITFunction.run = JITFunction.run, instead
    try:
        yield
    finally:
        JITFunction.run = run


@contextmanager
def recorded() -> Iterator[list[Launch]]:
    """Records every launch of the block instead of making it."""
    launches: list[Launch] = []

    def keep(kernel: JITFunction, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        launches.append(Launch(kernel, args, kwargs, grid, outermost(kernel, sys._getframe())))

    with launching(keep):
        yield launches


def outermost(kernel: JITFunction, frame: FrameType | None) -> str:
    """The outermost module of a kernel's package on the call stack, `row` aside, which checks every call."""
    package, found = str(kernel.fn.__module__).partition(".")[0], ""
    while frame is not None:
        path = str(frame.f_globals.get("__name__", "")).split(".")
        found, frame = path[-1] if path[0] == package and path[1:] != ["row"] else found, frame.f_back
    return found


def launches_of(call: Callable[[], object]) -> list[Launch]:
    """The launches that a call makes, without repetitions.

    Raises: RuntimeError (Triton was imported for its interpreter, which compiles nothing).
    """
    if knobs.runtime.interpret:
        raise RuntimeError("TRITON_INTERPRET is set, and interpreted kernels cannot be compiled; unset it and start again")
    with recorded() as launches:
        call()
    return launches


def leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """An argument under its name; for a tuple its entries, by field or place. A field `ptr` has the tuple's own name."""
    if not isinstance(value, tuple):
        yield name, value
        return
    fields: Sequence[Any] = getattr(value, "_fields", range(len(value)))
    for field, part in zip(fields, value, strict=True):
        yield from leaves(name if field == "ptr" else f"{name}.{field}", part)


def given(launch: Launch) -> dict[str, Any]:
    """The arguments of a launch for the parameters of its kernel, in their order."""
    names = launch.kernel.arg_names
    found = dict(zip(names, launch.args, strict=False)) | launch.kwargs
    return {name: found[name] for name in names if name in found}


def taken(name: str, kind: Any) -> list[tuple[str, str]]:
    """The PTX parameters of an argument: none for a constant; for a descriptor also its sizes and its strides; for a tuple
    those of each of its values."""
    if isinstance(kind, tuple):
        return [pair for leaf, part in leaves(name, kind) for pair in taken(leaf, part)]
    if kind == "constexpr":
        return []
    if not kind.startswith("tensordesc"):
        return [(name, kind)]
    axes = kind[kind.index("[") + 1 : kind.index("]")].count(",") + 1
    return [(name, kind), *[(f"{name}.size", "i32")] * axes, *[(f"{name}.stride", "i64")] * axes]


@dataclass(frozen=True)
class Given:
    """The compiler's input for a launch on an architecture: the kernel with types, constants and hints, and options."""

    source: ASTSource
    target: GPUTarget
    options: dict[str, Any]


@cache
def _binder(kernel: JITFunction, capability: int) -> tuple[GPUTarget, Any, Any]:
    target = GPUTarget("cuda", capability, 32)
    backend = make_backend(target)
    return target, backend, create_function_from_signature(kernel.signature, kernel.params, backend)


def compiler_input(launch: Launch, capability: int) -> Given:
    """The input that the first launch on a device of an architecture (80, 90, 100) would give the compiler."""
    target, backend, binder = _binder(launch.kernel, capability)
    kwargs = {"debug": False, "instrumentation_mode": knobs.compilation.instrumentation_mode, **launch.kwargs}
    bound, specialization, options = binder(*launch.args, **kwargs)
    options, signature, constants, hints = launch.kernel._pack_args(backend, kwargs, bound, specialization, options)
    return Given(ASTSource(launch.kernel, signature, constants, hints), target, dict(options.__dict__))


def build(launch: Launch, capability: int) -> Built:
    """Compiles a launch for an architecture (80, 90, 100), exactly as the first launch on such a device would."""
    held = compiler_input(launch, capability)
    parameters = tuple(pair for name, kind in held.source.signature.items() for pair in taken(name, kind))
    return Built(triton_compile(held.source, target=held.target, options=held.options), parameters)


def optimised_ir(launch: Launch, capability: int) -> tuple[str, dict[str, Any]]:
    """The Triton IR of a launch after its own passes, without lines and names of values; and all other inputs of the later
    passes."""
    held = compiler_input(launch, capability)
    backend = make_backend(held.target)
    options = backend.parse_options({**held.options, **held.source.parse_options()})
    context, stages = ir.context(), dict[str, Any]()
    ir.load_dialects(context)
    backend.load_dialects(context)
    backend.add_stages(stages, options, held.source.language)
    generators, modules = backend.get_codegen_implementation(options), backend.get_module_map()
    module = held.source.make_ir(held.target, options, generators, modules, context)
    told = {"target": held.target, **options.__dict__}
    module = stages["ttir"](module, told)
    return module.str_nodebug(), told
