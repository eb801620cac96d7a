"""Check the memory accesses of a user's kernels: in Triton's interpreter every access is compared with the given tensors."""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ..errors import OutsideMemory

ADDRESS = re.compile(r"at (0x[0-9a-f]+) lies in no named tensor")
NEAR = 1 << 16
"""An access within this many bytes after a tensor's end is attributed to that tensor."""
SHOWN = 3
"""Accesses to list in the message."""


@contextmanager
def guarded(**tensors: Any) -> Iterator[None]:
    """Launch kernels in this block. Give every tensor that they may access, by name. On a GPU nothing is checked.

    Raises: OutsideMemory after an access outside these tensors, or if two programs of a launch use one address and one of
    them writes it.
    """
    if os.environ.get("TRITON_INTERPRET") != "1":
        yield
        return
    from .memory import watch

    with watch(**{name: tensor for name, tensor in tensors.items() if tensor is not None}) as memory:
        yield
    ends = {
        name: t.untyped_storage().data_ptr() + t.untyped_storage().nbytes() for name, t in tensors.items() if t is not None
    }
    outside = [ADDRESS.sub(lambda found: _place(int(found[1], 16), ends), said) for said in memory.outside]
    wrong = [*dict.fromkeys(outside), *dict.fromkeys(memory.races)]
    if wrong:
        more = f"; and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
        raise OutsideMemory(f"the kernel accesses memory wrongly: {'; '.join(wrong[:SHOWN])}{more}; check its masks")


def _place(address: int, ends: Mapping[str, int]) -> str:
    """The position of an address, relative to the end of the nearest tensor before it."""
    past = {name: address - end for name, end in ends.items() if 0 <= address - end < NEAR}
    name = min(past, key=lambda one: past[one], default="")
    return f"{past[name]} bytes past the end of {name}" if name else "in no named tensor"
