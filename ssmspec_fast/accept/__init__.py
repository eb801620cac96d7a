"""Acceptance rules: which tokens of a proposal the target accepts, cut where the sequence ends."""

from abc import ABC, abstractmethod

from torch import Tensor

from ..draft import Drafter
from ..engine.requests import Settings
from ..engine.sequences import Sequences
from ..engine.window import Proposal, Verdict
from ..operations import Operations


class Acceptance(ABC):
    """Reads the logits at every node, the proposal with its distribution, and the row's own tokens."""

    name: str
    divides = False
    """Whether it divides by the drafts' distribution, so that the drafter must draw from it."""

    @abstractmethod
    def __call__(self, proposal: Proposal, logits: Tensor, sequences: Sequences, operations: Operations) -> Verdict: ...

    def check(self, drafter: Drafter) -> None:  # noqa: B027
        """Checks that this rule can verify a drafter's proposals. Raises: ParameterError, Unsupported."""

    def takes(self, settings: Settings) -> None:  # noqa: B027
        """Checks that this rule supports a request's settings. Raises: ParameterError."""
