"""Naive sampling: samples a token of the target at every node and accepts the drafts that match.

    t_n = pick(p_n, u at the position after n);  go to the first child of n with this token    (1)

The random number depends on the position only, so that the output is a function of request, seed and target alone: it equals
that of plain sampled decoding. Rows of one sequence share the random numbers, so the longest run may be taken, as in greedy
acceptance.
Source: SpecInfer (arXiv:2305.09781), section 4.3; SpecExec (arXiv:2406.02532).
"""

from torch import Tensor

from ..engine.sequences import Sequences
from ..engine.window import Proposal, Verdict
from ..operations import Operations
from .sampled import Sampled


class Naive(Sampled):
    """Any drafts: chains, trees, several rows; q is not read."""

    name = "naive"
    several = True

    def __call__(self, proposal: Proposal, logits: Tensor, sequences: Sequences, operations: Operations) -> Verdict:
        return self.as_drawn(proposal, logits, sequences, operations)
