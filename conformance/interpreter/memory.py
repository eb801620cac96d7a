"""Every global access of an interpreted kernel: bytes by tensor, accesses outside a tensor, races between programs.

A load, store or atomic of an interpreted kernel goes through one of four methods of one object, which receive absolute
addresses and a mask. These are wrapped while `watch` is active; the kernel is not changed.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from triton.runtime import interpreter

LOADS, STORES, ATOMICS = "load", "store", "atomic"


@dataclass
class Access:
    """The accesses to one tensor by one kind of operation. Units: bytes."""

    requested: int = 0
    addresses: set[int] = field(default_factory=set)

    @property
    def distinct(self) -> int:
        """The bytes accessed at least once, which must cross the memory bus even with perfect caches."""
        return len(self.addresses)


@dataclass
class Memory:
    """The accesses of the kernels launched inside `watch`."""

    accesses: dict[tuple[str, str], Access] = field(default_factory=dict)
    outside: list[str] = field(default_factory=list)
    races: list[str] = field(default_factory=list)

    def loaded(self, name: str) -> Access:
        return self.accesses.get((LOADS, name), Access())

    def stored(self, name: str) -> Access:
        return self.accesses.get((STORES, name), Access())

    def distinct_bytes(self) -> int:
        """Bytes read at least once plus bytes written at least once, over all tensors."""
        return sum(access.distinct for access in self.accesses.values())


@contextmanager
def watch(**tensors: Tensor) -> Iterator[Memory]:
    """Record every access to the given tensors; an access to other memory counts as `outside`.

    A race is an address written by one program of a launch and read or written by another.
    """
    memory = Memory()
    ranges = [(name, t.untyped_storage().data_ptr(), t.untyped_storage().nbytes()) for name, t in tensors.items()]
    uses: dict[int, _Use] = {}
    builder = interpreter.interpreter_builder
    wrapped = ("create_masked_load", "create_masked_store", "create_atomic_rmw", "create_atomic_cas", "set_grid_dim")
    originals = {name: getattr(builder, name) for name in wrapped}

    def note(kind: str, pointers: Any, mask: NDArray[np.bool_] | None) -> None:
        size = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
        addresses = np.asarray(pointers.data)
        live = np.ones(addresses.shape, bool) if mask is None else np.broadcast_to(mask, addresses.shape).astype(bool)
        for name, start, own in _shares(ranges, addresses, live, size, kind, memory):
            access = memory.accesses.setdefault((kind, name), Access())
            access.requested += own.size * size
            for first in own.tolist():
                access.addresses.update(range(first, first + size))
                if kind != ATOMICS:
                    use = uses.setdefault(first, _Use())
                    _races(kind, f"{name}+{first - start}", tuple(builder.grid_idx), use, memory)

    def around(kind: str, name: str, pointer: int, mask: int | None) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            note(kind, args[pointer], None if mask is None else args[mask].data)
            return originals[name](*args, **kwargs)

        return call

    def new_launch(*grid: int) -> None:
        uses.clear()  # launches of one stream run one after the other
        originals["set_grid_dim"](*grid)

    builder.set_grid_dim = new_launch
    builder.create_masked_load = around(LOADS, wrapped[0], 0, 1)
    builder.create_masked_store = around(STORES, wrapped[1], 0, 2)
    builder.create_atomic_rmw = around(ATOMICS, wrapped[2], 1, 3)
    builder.create_atomic_cas = around(ATOMICS, wrapped[3], 0, None)
    try:
        yield memory
    finally:
        for name in wrapped:
            delattr(builder, name)


def _shares(
    ranges: list[tuple[str, int, int]],
    addresses: NDArray[np.uint64],
    live: NDArray[np.bool_],
    size: int,
    kind: str,
    memory: Memory,
) -> Iterator[tuple[str, int, NDArray[np.uint64]]]:
    """The live addresses of a block, grouped by the tensor that owns them.

    Pointers chosen by a select may point into several tensors, but along one axis of the block every line is in one tensor.
    If this holds for no axis, the block has run from one tensor into another.
    """
    left, owners, shares = live, [], []
    for name, start, length in ranges:
        share = left & (start <= addresses) & (addresses < start + length)
        if share.any():
            own = addresses[share]
            if (past := int(own.max()) + size - start - length) > 0:
                memory.outside.append(f"{kind} of {name} runs {past} bytes past its end")
            yield name, start, own
            owners.append(name)
            shares.append(share)
            left = left & ~share
    if len(shares) > 1 and not any(_in_one(shares, axis) for axis in range(addresses.ndim)):
        memory.outside.append(f"{kind} of {owners[0]} runs on into {', '.join(owners[1:])}")
    if left.any():
        low = int(addresses[left].min())
        memory.outside.append(f"{kind} at {low:#x} lies in no named tensor")
        yield "?", low, addresses[left]


def _in_one(shares: list[NDArray[np.bool_]], axis: int) -> bool:
    """Whether each line of addresses along an axis belongs to one share."""
    lines = sum(share.any(axis=axis).astype(int) for share in shares)
    return shares[0].shape[axis] > 1 and int(np.max(lines)) <= 1


@dataclass
class _Use:
    """Which programs accessed an address in this launch: its writer, and its readers while there are at most two."""

    writer: Any = None
    readers: set[Any] = field(default_factory=set)


def _races(kind: str, where: str, program: Any, use: _Use, memory: Memory) -> None:
    others = {use.writer} if kind == LOADS else {use.writer, *use.readers}
    strangers = others - {None, program}
    if strangers:
        memory.races.append(f"{kind} of {where} by program {program}, which program {min(strangers)} uses too")
    if kind == STORES:
        use.writer = program
    elif len(use.readers) < 2:
        use.readers.add(program)
