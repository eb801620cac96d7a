"""No drafts: the window is the root."""

from torch import Tensor

from ..sequences import Sequences
from ..window import Proposal, Verdict, Window


class Nothing:
    """For plain decoding."""

    nodes, on_device = 1, True

    def start(self, sequences: Sequences, slots: Tensor) -> None: ...

    def propose(self, sequences: Sequences, slots: Tensor) -> Proposal:
        return Proposal(Window(sequences.roots(slots)[:, None], slots))

    def observe(self, sequences: Sequences, proposal: Proposal, verdict: Verdict) -> None: ...

    def release(self, slots: Tensor) -> None: ...
