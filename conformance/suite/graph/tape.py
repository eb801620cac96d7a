"""CUDA graphs' rehearsal on a CPU: the operations of a run written down, and run again over the same tensors.

As a graph does, a replay keeps what the host decided, and fills the tensors of the recording: what is not written down, such
as a number that was read on the host, does not happen again. What cannot be captured is refused while it is recorded. A
kernel that Triton's interpreter runs is written down as one operation, with its arguments.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

T = TypeVar("T")
WARM = 2
"""Runs before a recording: the first compiles, the second checks that nothing is left to compile."""
WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "unique", "repeat_interleave.Tensor")
ROOM = ("empty", "new_empty", "empty_like", "empty_strided", "detach", "lift_fresh")
"""Operations that launch nothing."""


class Uncapturable(RuntimeError):
    """An operation that waits for the host, or whose shape follows from data."""


def waits(name: str, args: Any) -> bool:
    """Whether an operation needs a value on the host."""
    indices = args[1] if name.startswith(("aten.index.", "aten.index_put")) else ()
    masked = any(isinstance(x, torch.Tensor) and x.dtype == torch.bool for x in indices)
    return masked or any(name.startswith(f"aten.{wait}") for wait in WAITS)


def is_view(function: Any) -> bool:
    """Whether the result shares the memory of an argument, unwritten."""
    returns = function._schema.returns
    return bool(returns) and all(r.alias_info is not None and not r.alias_info.is_write for r in returns)


class Tape(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Operations that write, with their arguments and results."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.done: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = str(function), kwargs or {}
        if waits(name, args):
            raise Uncapturable(f"{name} waits for the host, which no captured graph can do; compute on the device instead")
        found = function(*args, **kwargs)
        if not is_view(function) and name.split(".")[1] not in ROOM:
            self.done.append((function, args, kwargs, found))
        return found

    def replay(self) -> None:
        for function, args, kwargs, found in self.done:
            again = function(*args, **kwargs)
            for old, new in zip(tree_leaves(found), tree_leaves(again), strict=True):
                if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


@contextmanager
def kernels_on(tape: Tape) -> Iterator[None]:
    """Each kernel that Triton's interpreter runs is an operation of the tape; what the interpreter does inside is not."""
    if "triton.runtime.interpreter" not in sys.modules:
        yield
        return
    from triton.runtime.interpreter import GridExecutor

    run = GridExecutor.__call__

    def recorded(self: Any, *given: Any, **named: Any) -> None:
        def launch(*given: Any, **named: Any) -> None:
            with _disable_current_modes():
                run(self, *given, **named)

        launch(*given, **named)
        tape.done.append((launch, given, named, None))

    GridExecutor.__call__ = recorded
    try:
        yield
    finally:
        GridExecutor.__call__ = run


class TapeRecorder:
    """`launches` counts the operations of each recording."""

    def __init__(self) -> None:
        self.launches: list[int] = []

    def __call__(self, run: Callable[[], T]) -> tuple[T, Callable[[], None]]:
        for _ in range(WARM):
            run()
        with Tape() as tape, kernels_on(tape):
            found = run()
        self.launches.append(len(tape.done))
        return found, tape.replay
