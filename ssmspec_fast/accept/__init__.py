"""Acceptance rules: what a target makes of a proposal, cut where the sequence ends."""

from typing import Protocol

from torch import Tensor

from ..operations import Operations
from ..sequences import Sequences
from ..window import Proposal, Verdict


class Acceptance(Protocol):
    """Sees the logits at every node, what was proposed and by which law, and the row's own tokens."""

    def __call__(self, proposal: Proposal, logits: Tensor, sequences: Sequences, operations: Operations) -> Verdict: ...
