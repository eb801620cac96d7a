"""What the sampling rules share: the target's distributions at all nodes, their random numbers, and the verdict."""

from typing import Any

import torch
from torch import Tensor

from ssmspec_ref.errors import ParameterError, Unsupported

from ..draft import Drafter
from ..engine.sampling import Sampling
from ..engine.sequences import Sequences
from ..engine.window import Proposal, Verdict, Window
from ..operations import Operations
from ..operations.slots import index
from . import Acceptance
from .fused import naive
from .noise import COIN, PICK, check_seed, uniforms
from .processors import ORDERED, Past, needs_of, past, process, rules_of
from .walk import best, broken, cut, walk

LAWS: tuple[str, ...] = ("iid", "without_replacement", "point_mass")


class Sampled(Acceptance):
    """`sampling` is the target's; give the same to the drafter. `seed` and the request's key determine the random numbers.

    Raises: ParameterError for a seed that does not fit 64 bits.
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
        """As `check`, for one proposal. Raises: ParameterError, Unsupported."""
        self.refuse(proposal.law, proposal.window.drafts, proposal.window.parents is not None)
        if "point_mass" not in self.laws:
            check_q(proposal.law, proposal.q)

    def refuse(self, law: str, drafts: int, trees: bool) -> None:
        if law not in self.laws:
            raise ParameterError(
                f"{self.name} got drafts of the law {law!r}, but needs {' or '.join(self.laws)}, and q with it; "
                "let the drafter sample, or use multi_step or naive"
            )
        if trees and not self.trees:
            raise Unsupported(f"{self.name} accepts chains only, but the window is a tree; use multi_step or naive")
        if drafts > 1 and not self.several:
            raise Unsupported(
                f"{self.name} takes one row for each sequence, but there are {drafts}: "
                "choosing the best of several is biased; "
                "merge the rows into a tree, or use naive, whose rows share their picks"
            )

    def law(self, window: Window, logits: Tensor, sequences: Sequences, operations: Operations) -> Tensor:
        """p (b, t, i) fp32 after each node."""
        seen: Past | None = None
        sampling = rules_of(sequences, window.slots, self.sampling)
        if sampling.needs.penalties:
            ancestors = operations.tree_mask(window.tree())[0]
            seen = past(sequences, window.slots, window.tokens, ancestors, logits.shape[-1])
        return process(logits, sampling, seen)

    def coins(self, window: Window, sequences: Sequences) -> Tensor:
        """A uniform for each tested node (b, t)."""
        request, length = self.named(window, sequences)
        nodes = torch.arange(window.tokens.shape[1], device=length.device)
        return uniforms(self.seeds(window, sequences), request, length, nodes, COIN)

    def picks(self, window: Window, sequences: Sequences, operations: Operations) -> Tensor:
        """A uniform for the token after each node (b, t); one for each position."""
        request, length = self.named(window, sequences)
        if window.tokens.shape[1] > 1:
            length = length + operations.tree_mask(window.tree())[1].clamp_min(0)
        return uniforms(self.seeds(window, sequences), request, length, 0, PICK)

    def as_drawn(self, proposal: Proposal, logits: Tensor, sequences: Sequences, operations: Operations) -> Verdict:
        """The run of the tokens that are drawn from p after each node: the rule `naive`, and every rule without drafts."""
        window, rule = proposal.window, operations.accept_sampled
        p = self.law(window, logits, sequences, operations)
        picks, bad = self.picks(window, sequences, operations), self.bad(logits, p, sequences)
        if rule is not None and sequences.same_ends is not None:
            return naive(rule, window, p, picks, bad, sequences)
        tree = window.tokens, window.tree()
        run = self.by_kernel(rule, proposal, *tree, p, None, picks) if rule else walk(*tree, choices(p, picks))
        return cut(*best(*run, window), sequences, window.sequences, bad)

    def bad(self, logits: Tensor, p: Tensor, sequences: Sequences) -> Tensor:
        """The nodes (b, t) without a distribution: all of it is NaN then; but at temperature 0 it is a point mass always."""
        found = p[..., 0].isnan()
        return found | broken(logits) if needs_of(sequences, self.sampling).greedy else found

    def seeds(self, window: Window, sequences: Sequences) -> Tensor | int:
        """The seed of each row (b, 1, 2), or the one of all rows."""
        found = sequences.seeds(index(window.slots), self.seed)
        return found if isinstance(found, int) else found[:, None]

    def named(self, window: Window, sequences: Sequences) -> tuple[Tensor, Tensor]:
        """Request key and length of each row (b, 1)."""
        at = index(window.slots)
        return sequences.request[at][:, None], sequences.length[at][:, None]

    def by_kernel(
        self, rule: Any, proposal: Proposal, tokens: Tensor, parents: Tensor, p: Tensor, coins: Tensor | None, picks: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Emitted tokens and path by `ssmspec_kernels.tokens.accept_sampled`, before `walk.cut` ends the runs.

        The kernel
        assumes that every row sums to one, the torch rule divides by the sum: the results may differ for a coin within V
        2^-24, relative, of its threshold.
        """
        law = "naive" if coins is None else proposal.law
        given = {"q": proposal.q} if law in ("iid", "without_replacement") else {}
        budget = torch.full((len(tokens),), tokens.shape[1] + 1, device=tokens.device)
        run = rule(tokens, parents, p, picks, budget, law=law, coins=coins, **given)
        return run.tokens, run.path

    def decided(
        self, emitted: Tensor, path: Tensor, window: Window, logits: Tensor, p: Tensor, sequences: Sequences
    ) -> Verdict:
        bad = self.bad(logits, p, sequences)
        return cut(*best(emitted, path, window), sequences, window.sequences, bad)


def check_q(law: str, q: Tensor | None) -> None:
    """Raises: ParameterError for an unknown law, or one that lacks q."""
    if law not in LAWS:
        raise ParameterError(f"law is {law!r}; it must be one of {', '.join(LAWS)}")
    if (law != "point_mass") != (q is not None):
        verb = "needs q, the distribution after each node" if q is None else "takes no q"
        raise ParameterError(f"the law {law} {verb}")


def choices(p: Tensor, picks: Tensor) -> Tensor:
    """The target's token after every node (b, t)."""
    wide = p.double()
    return pick(wide, ORDERED.sum(wide), picks.double())


def pick(weights: Tensor, total: Tensor, u: Tensor) -> Tensor:
    """The first token at which the running sum exceeds u total; the last with weight if there is none."""
    some = weights > 0
    passed = (weights.cumsum(-1) > (u * total)[..., None]) & some
    last = weights.shape[-1] - 1 - some.flip(-1).long().argmax(-1)
    return torch.where(passed.any(-1), passed.long().argmax(-1), last)
