"""Greedy acceptance: a draft stands as long as it is what the target would have chosen."""

from torch import Tensor

from ..operations import Operations
from ..sequences import Sequences
from ..window import Proposal, Verdict
from . import Acceptance
from .fused import greedy
from .walk import best, broken, cut, walk


class Greedy(Acceptance):
    """The most likely token at every node, the lowest of equals."""

    name = "greedy"

    def __call__(self, proposal: Proposal, logits: Tensor, sequences: Sequences, operations: Operations) -> Verdict:
        window, rule = proposal.window, operations.accept_greedy
        if rule is not None and not sequences.stop:
            return greedy(rule, window, logits, sequences)
        emitted, path = walk(window.tokens, window.tree(), logits.argmax(-1))
        return cut(*best(emitted, path, window), sequences, window.sequences, broken(logits))
