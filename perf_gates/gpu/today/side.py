"""One implementation of a piece of work: what it launches, and how far its first launch is from float64.

    used      largest error over its bound: outputs, and states where the work writes them; above 1 the bound is broken
    outputs   |y - y64| / |y64| over the judged rows and heads (2-norms), and the same for states

The bound is that of the contract that describes the arithmetic of the side. All sides of a work have the same inputs: they
are drawn from one seed. Each side starts from its own states, which are read before its first launch.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from perf_gates.gpu.clock import copies_for
from perf_gates.gpu.judge.call import launcher
from perf_gates.gpu.output_guard import numbered, own_outputs
from ssmspec_ref import error_bounds as eb
from ssmspec_ref.backtrack.replay_buffer import ReplayBuffer
from ssmspec_ref.contract import NumericContract
from ssmspec_ref.error_bounds.arithmetic import Approx
from ssmspec_ref.shapes import Array

ADVANCED = 4
"""Tokens that are accepted of a window."""
ROOM = 40 * 2**30
"""Most bytes of the rotating states of a side."""
TRITON = NumericContract(io="bf16", exp="ex2", softplus="log")
"""The arithmetic of other projects' Triton kernels: fp32, outputs in bf16, exp by powers of two, log(1 + e^x)."""
FAST = NumericContract(io="bf16", exp="ex2", softplus="log", ftz=True)
"""The same in CUDA with fast functions."""

Pairs = tuple[Approx, Approx | None]
"""Outputs, and states where the work writes any, in float64 with their bounds."""


@dataclass(frozen=True)
class Error:
    """How far a side is from float64; `states` is None where none are compared."""

    used: float
    outputs: float
    states: float | None
    contract: str


@dataclass
class Side:
    """`launch` works on the i-th of the rotating states, into the i-th output; `kernels` launches of the GPU each time.

    `start` reads the states of the judged rows before the first launch, as arguments of `expected`; `outputs` and `states`
    read what it wrote.
    """

    launch: Callable[[int], object]
    written: dict[str, Tensor]
    pools: list[Tensor]
    start: Callable[[], tuple[Array, ...]]
    expected: Callable[..., Pairs]
    outputs: Callable[[], Array]
    states: Callable[[], Array] | None
    contract: NumericContract
    kernels: int = 1
    cycle: list[Callable[[], object]] = field(default_factory=list)
    """What is recorded in turn where steps differ: `steps` launches for each output, and small ones that are not counted."""
    steps: int = 1

    @property
    def counted(self) -> int:
        """How many launches share the time of what is recorded."""
        return self.steps * len(self.written)

    def launches(self) -> list[Callable[[], object]]:
        return self.cycle or [lambda i=i: self.launch(i) for i in range(len(self.written))]  # type: ignore[misc]

    def error(self) -> Error:
        """Makes the first launch, and compares it."""
        began = self.start()
        self.launch(0)
        y, S = self.expected(*began)
        pairs = [(self.outputs(), y)]
        if self.states is not None and S is not None:
            pairs.append((self.states(), S))
        used = [eb.compare(found, pair.value, pair.error).utilisation for found, pair in pairs]
        far = [apart(found, pair.value) for found, pair in pairs]
        return Error(max(used), far[0], far[1] if len(far) > 1 else None, str(self.contract))


def apart(found: Array, wanted: Array) -> float:
    """The relative difference; infinite if a number is not finite."""
    if not np.isfinite(found).all():
        return float("inf")
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def ours(io: str = "bf16", **changes: Any) -> NumericContract:
    """The contract that our kernels declare."""
    from perf_gates.gpu.judge.call import declared

    return declared(io=io, **changes)


def copies_of(bytes_: int, states: int) -> int:
    """How many sets of states a side rotates through, within the room for states of this many bytes each."""
    return max(2, min(copies_for(bytes_), ROOM // states))


def blank(like: Tensor, copies: int) -> tuple[dict[str, Tensor], list[Tensor]]:
    """An unwritten output for each launch: by name, and in order."""
    written = own_outputs(like, numbered(copies))
    return written, [*written.values()]


def slots_of(copies: int, batch: int, device: str, each: int = 1) -> Tensor:
    """Slots (copies, batch, each); slot 0 is nobody's, since some engines take it for padding."""
    return 1 + torch.arange(copies * batch * each, device=device, dtype=torch.int32).view(copies, batch, each)


def flush_cycle(tokens: int, capacity: int) -> list[int]:
    """The entries of a ring at each step between two flushes, the last of which flushes."""
    held = np.arange(ADVANCED, capacity + 1, ADVANCED)
    last = int(ReplayBuffer(capacity, tokens).due(held).argmax())
    return [int(entries) for entries in held[: last + 1]]


def bytes_of(name: str, *sizes: int, **more: Any) -> int:
    """The traffic of a launcher of ours."""
    return int(launcher(name, "traffic_bytes")(*sizes, **more))
