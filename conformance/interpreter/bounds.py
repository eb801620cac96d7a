"""An access outside a kernel's tensors is an error in Triton's interpreter: the first one ends the launch, and is not made.

A GPU reads or writes there in silence, and the interpreter's process is lost. Inside `bounded()` the pointers of a launch are
none of the machine:

    pointer    of the i-th storage: FAR + (i + 1) SPAN + SPAN / 2 + offset                 (1)
    access     at p: storage (p - FAR) // SPAN - 1; the rest, less SPAN / 2, is the offset  (2)

so an access names the tensor whose pointer it was made from, however far it strays. Tensors of one storage keep one
beginning, so that pointers that are equal stay equal. A pointer that a kernel reads from memory, as from a table of
addresses, is one of the machine; it must lie in a tensor that exists.
"""

import functools
import gc
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from triton.runtime import interpreter
from triton.runtime.interpreter import GridExecutor, TensorHandle

from ..errors import OutsideMemory

SPAN, FAR = 1 << 44, 1 << 62
"""Bytes between two storages, and where the first lies: beyond every address of a machine."""
ACCESSES = {
    "create_masked_load": ("a load", 0, 1),
    "create_masked_store": ("a store", 0, 2),
    "create_atomic_rmw": ("an atomic", 1, 3),
    "create_atomic_cas": ("an atomic", 0, None),
}
"""The interpreter's methods that touch memory: the word for it, and which arguments are pointer and mask."""
Addresses = NDArray[np.uint64]


@dataclass
class Storage:
    """The memory of one or several arguments of a launch. Units: bytes."""

    start: int
    size: int
    names: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.names[0] if len(self.names) == 1 else f"{self.names[0]} (the memory of {', '.join(self.names[1:])} too)"

    def place(self, offset: int, width: int) -> str:
        """Where an access lies that is not inside."""
        if offset < 0:
            return f"{-offset} bytes before the {self.size} bytes of {self.name}"
        return f"{offset + width - self.size} bytes past the end of {self.name}, which has {self.size} bytes"


class Launch:
    """The storages of a launch, by their number, and pointers to them."""

    def __init__(self) -> None:
        self.storages: list[Storage] = []
        self.numbers: dict[int, int] = {}
        self.others: list[tuple[int, int]] | None = None

    def add(self, name: str, argument: Any) -> None:
        """An argument of the launch; of a record or a descriptor each tensor in it."""
        if isinstance(argument, tuple):
            fields = getattr(argument, "_fields", None) or range(len(argument))
            for part, inside in zip(fields, argument, strict=True):
                self.add(f"{name}.{part}" if isinstance(part, str) else f"{name}[{part}]", inside)
        elif hasattr(argument, "base"):
            self.add(name, argument.base)
        elif isinstance(argument, torch.Tensor):
            memory = argument.untyped_storage()
            number = self.numbers.setdefault(memory.data_ptr(), len(self.storages))
            if number == len(self.storages):
                self.storages.append(Storage(memory.data_ptr(), memory.nbytes()))
            self.storages[number].names.append(name)

    def pointer(self, argument: Any) -> int:
        """The address that a kernel is given in place of a tensor's own: (1)."""
        memory = getattr(argument, "base", argument).untyped_storage().data_ptr()
        return FAR + (self.numbers[memory] + 1) * SPAN + SPAN // 2 + argument.data_ptr() - memory

    def real(self, addresses: Addresses, live: NDArray[np.bool_], width: int, kind: str) -> Addresses:
        """The addresses of the machine; those that are not live are not checked.

        Raises: OutsideMemory if a live one is in no tensor.
        """
        numbers = addresses // np.uint64(SPAN)  # (2)
        first = numbers.flat[int(live.argmax())]
        own = live & (numbers == first)
        found = self._of_one(addresses, own, int(first) - FAR // SPAN - 1, width, kind)
        if (left := live & ~own).any():
            return np.where(own, found, self.real(addresses, left, width, kind))
        return found

    def _of_one(self, addresses: Addresses, own: NDArray[np.bool_], number: int, width: int, kind: str) -> Addresses:
        """The same of pointers to one storage, or to none of the launch's."""
        if not own.any():
            return addresses
        if not 0 <= number < len(self.storages):
            self._check_of_machine(addresses[own], width, kind)
            return addresses
        storage = self.storages[number]
        offsets = (addresses - np.uint64(FAR + (number + 1) * SPAN + SPAN // 2)).astype(np.int64)
        inside = offsets[own]
        if inside.min() < 0 or inside.max() + width > storage.size:
            wrong = inside[(inside < 0) | (inside + width > storage.size)][0]
            raise _outside(kind, storage.place(int(wrong), width))
        return (offsets + storage.start).astype(np.uint64)

    def _check_of_machine(self, addresses: Addresses, width: int, kind: str) -> None:
        """Of addresses that the kernel has read from memory."""
        if self.others is None:
            tensors = [one for one in gc.get_objects() if issubclass(type(one), torch.Tensor) and one.device.type == "cpu"]
            memories = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in tensors}
            self.others = sorted(memories.items())
        for address in addresses.tolist():
            if not any(start <= address and address + width <= start + size for start, size in self.others):
                raise _outside(kind, f"at {address:#x}, which is in no tensor: a pointer that the kernel has formed or read")


def _outside(kind: str, where: str) -> OutsideMemory:
    program = tuple(interpreter.interpreter_builder.grid_idx)
    return OutsideMemory(f"{kind} by program {program} is {where}; nothing was read or written there. Check its mask")


@contextmanager
def bounded() -> Iterator[None]:
    """Check every access of every kernel that is launched inside the block; blocks may be nested.

    A launch raises OutsideMemory at the first access outside its tensors.
    """
    call, arguments = GridExecutor.__call__, GridExecutor._init_args_hst
    launches: list[Launch] = []

    def checked_call(self: Any, *given: Any, **named: Any) -> Any:
        launches.append(Launch())
        try:
            with _replaced(launches[-1]):
                return call(self, *given, **named)
        except interpreter.InterpreterError as error:
            raise error.__cause__ if isinstance(error.__cause__, OutsideMemory) else error from None
        finally:
            launches.pop()

    def checked_arguments(self: Any, given: Sequence[Any], named: dict[str, Any]) -> Any:
        on_host, named_on_host = arguments(self, given, named)
        for name, argument in [*zip(inspect.getfullargspec(self.fn).args, on_host, strict=False), *named_on_host.items()]:
            launches[-1].add(name, argument)
        return on_host, named_on_host

    GridExecutor.__call__, GridExecutor._init_args_hst = checked_call, checked_arguments
    try:
        yield
    finally:
        GridExecutor.__call__, GridExecutor._init_args_hst = call, arguments


@contextmanager
def _replaced(launch: Launch) -> Iterator[None]:
    """Replace the pointers of a launch, and the methods that use them, inside the block."""
    builder, convert = interpreter.interpreter_builder, interpreter._implicit_cvt
    own = {name: vars(builder).get(name) for name in ACCESSES}

    def converted(argument: Any) -> Any:
        made = convert(argument)
        if hasattr(argument, "data_ptr"):
            made.handle.data = np.array([launch.pointer(argument)], dtype=np.uint64)
        return made

    for name, (kind, pointer, mask) in ACCESSES.items():
        setattr(builder, name, _checked(launch, getattr(builder, name), kind, pointer, mask))
    interpreter._implicit_cvt = converted
    try:
        yield
    finally:
        interpreter._implicit_cvt = convert
        for name, method in own.items():
            delattr(builder, name) if method is None else setattr(builder, name, method)


def _checked(launch: Launch, access: Callable[..., Any], kind: str, pointer: int, mask: int | None) -> Callable[..., Any]:
    @functools.wraps(access)
    def checked(*given: Any, **named: Any) -> Any:
        pointers = given[pointer]
        addresses = np.asarray(pointers.data)
        masked = np.True_ if mask is None else np.asarray(given[mask].data).astype(bool)
        live = np.broadcast_to(masked, addresses.shape)
        width = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
        real = TensorHandle(launch.real(addresses, live, width, kind), pointers.dtype)
        return access(*given[:pointer], real, *given[pointer + 1 :], **named)

    return checked
