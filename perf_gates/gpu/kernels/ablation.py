"""Joint attainment without two optimisations of Snakes and Ladders: table 2.

    chunk scan    the windows use a prompt's kernel instead of the fused scan                         (1)
    eager copy    the states are copied into a row for each draft, in launches outside the graph        (2)

Without (2) the copies are in the graph. Our own joint attainment reads a state in place and copies nothing.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

TRITON = "ssmspec_fast.operations"


def operations(ablated: str) -> Any:
    """The operations of the engine, with the recurrence ablated as named. Raises: ValueError for another name."""
    names = ablated.split(", ")
    if not set(names) <= {"chunk scan", "eager copy"}:
        raise ValueError(f"ablated is {ablated!r}; give chunk scan, eager copy, or both")
    found = import_module(f"{TRITON}.triton_ops").TritonOperations()
    found.recurrences["ssd"] = Copied(found.recurrences["ssd"], "chunk scan" in names, "eager copy" in names)
    return found


class Copied:
    """A recurrence whose windows are scanned over copies of the states; everything else is the inner one's."""

    commit = None
    """None: otherwise the states would advance after the verdict, and no window would be scanned here."""

    def __init__(self, inner: Any, chunks: bool, eager: bool) -> None:
        self.inner, self.chunks, self.eager = inner, chunks, eager
        self.copies: dict[int, tuple[Tensor, Tensor, Tensor]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["inner"], name)

    def scan(
        self, S: Tensor, inputs: Any, params: Any, *, slots: Tensor, live: Tensor | None = None, write_state: bool = True
    ) -> Tensor:
        """The scan that only gives outputs is changed; the one that advances the state is not."""
        given = {"slots": slots, "live": live, "write_state": write_state}
        if write_state:
            found: Tensor = self.inner.scan(S, inputs, params, **given)
            return found
        held = self.copied(S, slots)
        rows = torch.arange(len(slots), device=S.device)
        if not self.chunks:
            y: Tensor = self.inner.scan(held, inputs, params, **given | {"slots": rows})
            return y
        b, t = inputs.x.shape[:2]
        run = import_module(f"{TRITON}.slots").each(inputs, lambda x: x.reshape(1, b * t, *x.shape[2:]))
        bounds = torch.arange(0, b * t + 1, t, device=S.device, dtype=torch.int32)
        packed: Tensor = self.inner.packed(held, run, params, bounds, slots=rows)  # (1)
        return packed.view(b, t, *packed.shape[2:])

    def copied(self, S: Tensor, slots: Tensor) -> Tensor:
        """A row for each draft, filled here, or by `copy`, as (2) requires."""
        if S.data_ptr() not in self.copies:
            self.copies[S.data_ptr()] = S, torch.empty((len(slots), *S.shape[1:]), device=S.device, dtype=S.dtype), slots
        held = self.copies[S.data_ptr()][1]
        if not self.eager:
            torch.index_select(S, 0, slots.clamp_min(0), out=held)
        return held

    def copy(self) -> None:
        """(2)."""
        for S, held, slots in self.copies.values():
            torch.index_select(S, 0, slots.clamp_min(0), out=held)


def with_copies(made: Any, step: Callable[[], object]) -> Callable[[], object]:
    """A step after the copies that it reads."""
    if not made.recurrences["ssd"].eager:
        return step

    def both() -> None:
        made.recurrences["ssd"].copy()
        step()

    return both
