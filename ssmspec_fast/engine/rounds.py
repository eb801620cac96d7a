"""The result of one step on its way to the host: the copy is launched after the step and read when it is needed."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from ..operations.slots import index
from .sequences import Sequences
from .window import Verdict

R = TypeVar("R")


class Outcome(NamedTuple):
    """What a drafter learns of a step: the shape that it chose, the rows of the step, the tokens that the window of each
    slot emitted, and the slots whose sequences have ended."""

    shape: Any
    rows: int
    emitted: dict[int, int]
    ended: tuple[int, ...] = ()


@dataclass(frozen=True)
class Round(Generic[R]):
    """`found` (n, 3 + t), on the host: for each sequence its slot, tokens emitted, whether it has ended, and the tokens.

    `shape` is the drafter's choice for the step.
    """

    running: dict[int, R]
    found: Tensor
    copied: Any = None
    shape: Any = None

    def read(self) -> Iterator[tuple[int, R, list[int] | None, bool]]:
        """Slot, request, emitted tokens (None: not part of the step) and whether it has ended; waits for the step."""
        if self.copied is not None:
            self.copied.synchronize()
        said = {slot: (tokens[:advanced], bool(ended)) for slot, advanced, ended, *tokens in self.found.tolist()}
        ended = {slot: over for slot, (_, over) in said.items()}
        for slot, request in self.running.items():
            yield slot, request, said[slot][0] if slot in said else None, ended.get(slot, True)


def launched(running: dict[int, R], verdict: Verdict, sequences: Sequences, shape: Any = None) -> Round[R]:
    """A step in progress. A running sequence that was not part of it had already ended."""
    over = sequences.ended[index(verdict.slots)]
    cursors = torch.stack([verdict.slots, verdict.run.advanced, over.long()], dim=1)
    found = torch.cat([cursors, verdict.run.tokens.long()], dim=1)
    if not found.is_cuda:
        return Round(dict(running), found, None, shape)
    host = torch.empty(found.shape, dtype=found.dtype, pin_memory=True)
    host.copy_(found, non_blocking=True)
    copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
    copied.record()
    return Round(dict(running), host, copied, shape)
