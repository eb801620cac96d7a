"""No drafts: the window is the root."""

from torch import Tensor

from ..sequences import Sequences
from ..window import Proposal, Window
from . import Drafter


class Nothing(Drafter):
    """For plain decoding."""

    nodes, on_device = 1, True

    def propose(self, sequences: Sequences, slots: Tensor) -> Proposal:
        return Proposal(Window(sequences.roots(slots)[:, None], slots))
