"""Drafters: what they see, what they must give, and what an engine may ask of them besides."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from ..sequences import Sequences
from ..window import Proposal, Verdict

if TYPE_CHECKING:
    from ..decoder import Decoder
    from ..model import Model


class Drafter(ABC):
    """Sees the tokens of the sequences, never the target's state. A drafter gives `nodes` and `propose`; all else that stands
    here holds for one that keeps nothing, proposes one chain of one shape for each sequence, and needs the host.

    nodes      t of every window, the root included
    law        how drafts are drawn, as `Proposal.law`
    drafts     rows of a sequence
    trees      whether windows are trees
    on_device  whether it proposes by launches alone, of fixed shapes, so that they can be recorded (`graphs`)
    follows    whether it keeps something that follows what is accepted, and so must see every window
    """

    nodes: int
    law = "point_mass"
    drafts = 1
    trees = False
    on_device = False
    follows = False

    @property
    def held(self) -> int:
        """The bytes of its own states and caches."""
        return 0

    def check(self, model: "Model") -> None:  # noqa: B027
        """Whether it can serve this target. Raises: what it cannot."""

    def attach(self, decoder: "Decoder") -> None:  # noqa: B027
        """The target's decoder: for one that drafts from what the target's head read."""

    def start(self, sequences: Sequences, slots: Tensor) -> None:  # noqa: B027
        """Sequences begin in these slots; their prompts are in `sequences`."""

    @abstractmethod
    def propose(self, sequences: Sequences, slots: Tensor) -> Proposal:
        """A window for each slot, root first; negative slots are padding."""

    def observe(self, sequences: Sequences, proposal: Proposal, verdict: Verdict) -> None:  # noqa: B027
        """What became of the last proposal; `sequences` holds the tokens already."""

    def release(self, slots: Tensor) -> None:  # noqa: B027
        """Sequences left these slots."""

    def choose_shape(self, rows: int) -> int | None:
        """The number of the next window's shape, for so many rows; None where there is one shape."""
        return None

    def every_shape(self) -> Iterable[int | None]:
        """Each shape in turn, chosen, to be recorded before a request comes; none where they are recorded as they come."""
        return (None,)

    def read_round(self, shape: int | None, advanced: Sequence[int]) -> None:  # noqa: B027
        """What the windows of one step emitted, a step late."""
