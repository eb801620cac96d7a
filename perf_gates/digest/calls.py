"""A call on tensors without data, as text: its launches, and between them every operator of torch and every wait.

    launch      as `launches` writes it                                                                                   (1)
    operator    name and arguments; but not of a view, or of memory that is not written: they run nothing on the GPU      (2)
    wait        a synchronisation, or a tensor that is read on the host                                                   (3)
    inputs      of each memory that the call meets, how it was drawn before: its operators, and what was copied to it     (4)

In the case of a part each graph that is timed is a call; what runs around them draws its inputs.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from hashlib import sha256
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime.jit import JITFunction

from ..static.capture import Launch, launching
from .launches import Tensors, described
from .texts import digest

READS = ("cpu", "item", "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__", "equal", "nonzero")
WAITS: dict[Any, tuple[str, ...]] = {
    torch.cuda: ("synchronize",),
    torch.cuda.Stream: ("synchronize", "wait_stream", "wait_event", "record_event"),
    torch.cuda.Event: ("synchronize", "wait", "record"),
}


class Call:
    """What one call did, in order, and the numbers of the memory that it met."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Launch | None]] = []
        self.tensors = Tensors()
        self.drawn: list[str] = []

    def digest(self, code: Callable[[Launch, int], str], capability: int) -> str:
        """(1) to (3). Not inside the block that is recorded: Triton makes other tensors there."""
        return digest("\n".join(text + (code(launch, capability) if launch else "") for text, launch in self.events))

    @property
    def inputs(self) -> str:
        """(4)"""
        return digest("\n".join(self.drawn))


class Calls:
    """The calls of a block; `now` is the one that runs, at first that of the whole block."""

    def __init__(self) -> None:
        self.now = Call()
        self.history: dict[int, str] = {}
        """How each memory was drawn or written, by its address."""
        self.kept: list[Tensor] = []  # an address belongs to one memory while that lives

    @contextmanager
    def call(self) -> Iterator[Call]:
        """What the block runs is a separate call."""
        outer, self.now = self.now, Call()
        try:
            yield self.now
        finally:
            self.now = outer

    def launched(self, kernel: JITFunction, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        launch = Launch(kernel, args, options, grid)
        self.now.events.append((described(launch, self.number), launch))

    def ran(self, name: str, *values: Any) -> None:
        self.now.events.append((f"{name}{[self.told(value, self.number) for value in values]}", None))

    def wrote(self, found: Any, name: str, *values: Any) -> None:
        """An operator with its results: they are drawn by it, from what its arguments were drawn by."""
        made = digest(f"{name}{[self.told(value, self.drawn) for value in values]}")
        for tensor in tensors(found):
            self.kept.append(tensor)
            self.history[address(tensor)] = made

    def number(self, tensor: Tensor) -> str:
        call = self.now
        if address(tensor) not in call.tensors.numbers:
            call.drawn.append(self.drawn(tensor))
        return call.tensors.told(tensor)

    def drawn(self, tensor: Tensor) -> str:
        return f"{tuple(tensor.shape)} {tensor.stride()} {tensor.dtype} {self.history.get(address(tensor), '')}"

    def told(self, value: Any, how: Callable[[Tensor], str]) -> str:
        if isinstance(value, Tensor):
            return how(value) if value.is_meta else f"{tuple(value.shape)} {value.dtype} {content(value)}"
        if isinstance(value, torch._C.Generator):  # `torch.Generator` is another class on such a device
            return f"a generator from {value.initial_seed()}"
        if isinstance(value, list | tuple):
            return str([self.told(part, how) for part in value])
        if isinstance(value, dict):
            return str([(name, self.told(part, how)) for name, part in sorted(value.items())])
        return repr(value)


def address(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def content(tensor: Tensor) -> str:
    """A hash of a tensor on the host."""
    return sha256(tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()).hexdigest()[:16]


def tensors(values: Any) -> Iterator[Tensor]:
    """Those of the device among values."""
    if isinstance(values, Tensor) and values.is_meta:
        yield values
    elif isinstance(values, list | tuple | dict):
        for value in values.values() if isinstance(values, dict) else values:
            yield from tensors(value)


class Operators(TorchDispatchMode):
    """Records operators that run on the device."""

    def __init__(self, calls: Calls) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls = calls

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: torch's compiler, whose import takes seconds, compiles nothing here."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        found, name = func(*args, **kwargs), str(func)
        if "empty" not in name and not func.is_view and [*tensors((args, kwargs, found))]:
            self.calls.ran(name, *args, kwargs)
            self.calls.wrote(found, name, *args, kwargs)
        return found


class Reads(TorchFunctionMode):
    """Records what is read on the host, and numbers that become a tensor of the device."""

    def __init__(self, calls: Calls) -> None:
        super().__init__()
        self.calls = calls

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in READS and [*tensors(args)]:
            self.calls.ran(f"read by {name}", *args)
        found = func(*args, **(kwargs or {}))
        if func in (torch.tensor, torch.as_tensor):
            self.calls.wrote(found, name, args[0])
        return found


@contextmanager
def calls() -> Iterator[Calls]:
    """Records the calls of a block on tensors of a device that has no data (`static.on_device`)."""
    found = Calls()
    with ExitStack() as stack:
        for of, names in WAITS.items():
            for name in names:
                stack.enter_context(mock.patch.object(of, name, waiting(found, f"{of.__name__}.{name}")))
        stack.enter_context(launching(lambda kernel, *args, **options: found.launched(kernel, *args, **options)))
        stack.enter_context(Reads(found))
        stack.enter_context(Operators(found))
        yield found


def waiting(found: Calls, name: str) -> Callable[..., None]:
    return lambda *args, **options: found.ran(name)
