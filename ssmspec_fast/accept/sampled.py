"""What the sampled rules share: the target's laws at all nodes, their noise by name, and the verdict."""

from typing import Any

import torch
from torch import Tensor

from ssmspec_ref.errors import ParameterError, Unsupported

from ..draft import Drafter
from ..operations import Operations
from ..operations.slots import index
from ..sequences import Sequences
from ..window import Proposal, Verdict, Window
from . import Acceptance
from .noise import COIN, PICK, check_seed, uniforms
from .processors import Past, Sampling, past, process
from .walk import best, broken, cut

LAWS: tuple[str, ...] = ("iid", "without_replacement", "point_mass")


class Sampled(Acceptance):
    """`sampling` is the target's; give the same to the drafter. `seed` and the request's number name the noise.

    Raises: ParameterError for a seed that is no number of 64 bits.
    """

    name = "sampled"
    laws: tuple[str, ...] = LAWS
    several = False
    trees = True

    def __init__(self, sampling: Sampling | None = None, seed: int = 0) -> None:
        check_seed(seed)
        self.sampling, self.seed = Sampling() if sampling is None else sampling, seed

    def check(self, drafter: Drafter) -> None:
        self.refuse(drafter.law, drafter.drafts, drafter.trees)

    def check_proposal(self, proposal: Proposal) -> None:
        """As `check`, of one proposal. Raises: ParameterError, Unsupported."""
        self.refuse(proposal.law, proposal.window.drafts, proposal.window.parents is not None)
        if "point_mass" not in self.laws:
            check_q(proposal.law, proposal.q)

    def refuse(self, law: str, drafts: int, trees: bool) -> None:
        if law not in self.laws:
            raise ParameterError(
                f"{self.name} was given drafts of the law {law!r}, but needs {' or '.join(self.laws)}, and q with it; "
                "let the drafter sample, or judge by multi_step or naive"
            )
        if trees and not self.trees:
            raise Unsupported(f"{self.name} judges chains, but a tree came; judge it by multi_step or naive")
        if drafts > 1 and not self.several:
            raise Unsupported(
                f"{self.name} judges one row for each sequence, but {drafts} came: the best of several is biased; "
                "hang the rows into a tree, or judge by naive, whose rows share their picks"
            )

    def law(self, window: Window, logits: Tensor, sequences: Sequences, operations: Operations) -> Tensor:
        """p (b, t, i) fp32 after each node."""
        seen: Past | None = None
        if self.sampling.remembers:
            ancestors = operations.tree_mask(window.tree())[0]
            seen = past(sequences, window.slots, window.tokens, ancestors, logits.shape[-1])
        return process(logits, self.sampling, seen)

    def coins(self, window: Window, sequences: Sequences) -> Tensor:
        """A uniform for each node that is judged (b, t)."""
        request, length = self.named(window, sequences)
        return uniforms(self.seed, request, length, torch.arange(window.tokens.shape[1], device=length.device), COIN)

    def picks(self, window: Window, sequences: Sequences, operations: Operations) -> Tensor:
        """A uniform for the token after each node (b, t); one for each position."""
        request, length = self.named(window, sequences)
        depths = operations.tree_mask(window.tree())[1].clamp_min(0)
        return uniforms(self.seed, request, length + depths, 0, PICK)

    def named(self, window: Window, sequences: Sequences) -> tuple[Tensor, Tensor]:
        """Request and length of each row (b, 1)."""
        at = index(window.slots)
        return sequences.request[at][:, None], sequences.length[at][:, None]

    def by_kernel(
        self, rule: Any, proposal: Proposal, tokens: Tensor, parents: Tensor, p: Tensor, coins: Tensor | None, picks: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Emitted tokens and path by `ssmspec_kernels.accept_sampled`, uncut: what ends a run is `walk.cut`'s.

        The kernel takes every row to sum to one, the torch rule divides by the sum: a coin may fall otherwise where it lies
        within V 2^-24 of its turn, relative.
        """
        law = "naive" if coins is None else proposal.law
        given = {"q": proposal.q} if law in ("iid", "without_replacement") else {}
        budget = torch.full((len(tokens),), tokens.shape[1] + 1, device=tokens.device)
        run = rule(tokens, parents, p, picks, budget, law=law, coins=coins, **given)
        return run.tokens, run.path

    def decided(
        self, emitted: Tensor, path: Tensor, window: Window, logits: Tensor, p: Tensor, sequences: Sequences
    ) -> Verdict:
        bad = broken(logits) | broken(p)
        return cut(*best(emitted, path, window), sequences, window.sequences, bad)


def check_q(law: str, q: Tensor | None) -> None:
    """Raises: ParameterError for a law that is none, or lacks q."""
    if law not in LAWS:
        raise ParameterError(f"law came as {law!r}; give one of {', '.join(LAWS)}")
    if (law != "point_mass") != (q is not None):
        verb = "needs q, the law after each node" if q is None else "takes no q"
        raise ParameterError(f"the law {law} {verb}")
