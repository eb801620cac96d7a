"""No drafts: the window is the root."""

from torch import Tensor

from ..engine.sequences import Sequences
from ..engine.window import Proposal, Window
from . import Drafter


class Nothing(Drafter):
    """Proposes nothing: for plain decoding."""

    nodes, on_device = 1, True

    def propose(self, sequences: Sequences, slots: Tensor) -> Proposal:
        return Proposal(Window(sequences.roots(slots)[:, None], slots))
