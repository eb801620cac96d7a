"""Greedy acceptance: a draft is accepted while it is the token that the target would have chosen."""

from torch import Tensor

from ssmspec_ref.errors import ParameterError

from ..engine.requests import Settings
from ..engine.sequences import Sequences
from ..engine.window import Proposal, Verdict
from ..operations import Operations
from . import Acceptance
from .fused import greedy
from .walk import best, broken, cut, walk


class Greedy(Acceptance):
    """Chooses the most likely token at every node, the lowest of equals."""

    name = "greedy"

    def takes(self, settings: Settings) -> None:
        """Raises: ParameterError for a request that samples."""
        asked = settings.sampling
        if asked is not None and (asked.temperature != 0 or asked.remembers):
            raise ParameterError(
                f"the engine accepts greedily and does not sample, but {asked} is set; "
                "build it with the acceptance multi-step "
                "or naive, which also take the temperature 0"
            )

    def __call__(self, proposal: Proposal, logits: Tensor, sequences: Sequences, operations: Operations) -> Verdict:
        window, rule = proposal.window, operations.accept_greedy
        if rule is not None and sequences.same_ends is not None:
            return greedy(rule, window, logits, sequences)
        emitted, path = walk(window.tokens, window.tree(), logits.argmax(-1))
        return cut(*best(emitted, path, window), sequences, window.sequences, broken(logits))
