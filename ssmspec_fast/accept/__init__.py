"""Acceptance rules: what a target makes of a proposal, cut where the sequence ends."""

from abc import ABC, abstractmethod

from torch import Tensor

from ..draft import Drafter
from ..operations import Operations
from ..sequences import Sequences
from ..window import Proposal, Verdict


class Acceptance(ABC):
    """Sees the logits at every node, what was proposed and by which law, and the row's own tokens."""

    name: str
    divides = False
    """Whether it divides by the law of the drafts, so that a drafter is to draw them from it."""

    @abstractmethod
    def __call__(self, proposal: Proposal, logits: Tensor, sequences: Sequences, operations: Operations) -> Verdict: ...

    def check(self, drafter: Drafter) -> None:  # noqa: B027
        """Whether this rule can judge what a drafter proposes. Raises: ParameterError, Unsupported."""
