"""Drafters: what they see, and what they must give."""

from typing import Protocol

from torch import Tensor

from ..sequences import Sequences
from ..window import Proposal, Verdict


class Drafter(Protocol):
    """Sees the tokens of the sequences, never the target's state. `nodes` is t of every window, the root included.

    One that sets `on_device` proposes by launches alone, of fixed shapes, so that they can be recorded (`graphs`); one whose
    shapes are several names the next one by `choose_shape`.
    """

    nodes: int

    def start(self, sequences: Sequences, slots: Tensor) -> None:
        """Sequences begin in these slots; their prompts are in `sequences`."""
        ...

    def propose(self, sequences: Sequences, slots: Tensor) -> Proposal:
        """A window for each slot, root first; negative slots are padding."""
        ...

    def observe(self, sequences: Sequences, proposal: Proposal, verdict: Verdict) -> None:
        """What became of the last proposal; `sequences` holds the tokens already."""
        ...

    def release(self, slots: Tensor) -> None:
        """Sequences left these slots."""
        ...
