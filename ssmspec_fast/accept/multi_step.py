"""Multi-step speculative sampling on the device: down a tree by coins, and a last token from what is left.

At node n, with p after it, q the draft law after it, and children x_1, x_2, .. in the order of their draw:

    p_1 = p;  accept x_m iff u q_m(x_m) < p_m(x_m)                                (1)
    rejected: p_{m+1} = norm((p_m - q_m)+);  where nothing is left, p_m stays     (2)
    none accepted: emit the first i with u' < p_m(0) + .. + p_m(i)                (3)

law                    q_m
iid                    q: children drawn independently; on a chain this is rejection sampling
without_replacement    q without x_1 .. x_{m-1}, renormalised
point_mass             the point mass at x_m: children that were certain

With r = (p - l q)+, S = sum r, W = the mass of q off the drawn tokens, p_m = r / S and q_m = q / W, so that

    (1)  u q(x) S < r(x) W,    (2)  l <- l + S / W                                (4)

in float64, where u q is exact; the laws are those of the fp32 rows, divided by their own sums. One pass over the nodes: a
parent precedes its children, so that a child of the node reached is still to come.
Source: SpecInfer (arXiv:2305.09781), section 4.3; the forms of (4) as in `ssmspec_kernels.accept_sampled`.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from ..operations import Operations
from ..sequences import Sequences
from ..window import Proposal, Verdict
from .processors import ORDERED
from .sampled import LAWS, Sampled, check_q


class MultiStep(Sampled):
    """Trees and chains, under the law that their drafter names.

    Raises: ParameterError (a law without q), Unsupported (several rows for one sequence: hang them into a tree).
    """

    name = "multi_step"
    laws = LAWS
    divides = True

    def __call__(self, proposal: Proposal, logits: Tensor, sequences: Sequences, operations: Operations) -> Verdict:
        self.check_proposal(proposal)
        window = proposal.window
        p = self.law(window, logits, sequences, operations)
        noise = self.coins(window, sequences), self.picks(window, sequences, operations)
        rule = operations.accept_sampled
        tree = window.tokens, window.tree()
        found = (
            self.by_kernel(rule, proposal, *tree, p, *noise) if rule else judge(*tree, p, proposal.q, *noise, proposal.law)
        )
        return self.decided(*found, window, logits, p, sequences)


class Left(NamedTuple):
    """What a node has left: its p and q, l, r, S, W, and the tokens drawn there."""

    p: Tensor
    q: Tensor
    l: Tensor
    r: Tensor
    S: Tensor
    W: Tensor
    drawn: Tensor


def judge(
    tokens: Tensor, parents: Tensor, p: Tensor, q: Tensor | None, coins: Tensor, picks: Tensor, law: str
) -> tuple[Tensor, Tensor]:
    """Emitted tokens and path (b, t), -1 behind them: (1) to (3)."""
    check_q(law, q)
    rows, t = torch.arange(len(tokens), device=tokens.device), tokens.shape[1]
    on = parents[:, 0] == -1
    node, count = torch.zeros_like(rows), on.long()
    path, emitted = torch.full_like(tokens, -1), torch.full_like(tokens, -1)
    path[:, 0] = torch.where(on, 0, -1)
    left = fresh(p, q, 0)
    for i in range(1, t):
        here = on & (parents[:, i] == node)
        tested, stands = verdict(left, tokens[:, i], coins[:, i].double(), here, law)
        path[rows, count.clamp_max(t - 1)] = torch.where(stands, i, path[rows, count.clamp_max(t - 1)])
        emitted[rows, (count - 1).clamp_min(0)] = torch.where(stands, tokens[:, i], emitted[rows, (count - 1).clamp_min(0)])
        node, count = torch.where(stands, i, node), count + stands
        left = choose(stands, fresh(p, q, i), rejected(left, tokens[:, i], tested & ~stands, law))
    last = pick(left.r, left.S, picks[rows, node].double())  # (3)
    at = (count - 1).clamp_min(0)
    emitted[rows, at] = torch.where(on, last, -1)
    return emitted, path


def fresh(p: Tensor, q: Tensor | None, node: int) -> Left:
    """Before the first child of a node."""
    wide = p[:, node].double()
    law = wide if q is None else q[:, node].double()
    total = ORDERED.sum(wide)
    one = total if q is None else ORDERED.sum(law)
    return Left(wide, law, torch.zeros_like(total), wide, total, one, torch.zeros_like(wide, dtype=torch.bool))


def verdict(left: Left, token: Tensor, coin: Tensor, here: Tensor, law: str) -> tuple[Tensor, Tensor]:
    """Whether the child is judged, and whether it stands (1). A child that its law excludes is passed over."""
    known = (token >= 0) & (token < left.p.shape[1])
    x = token.clamp(0, left.p.shape[1] - 1)[:, None]
    r = torch.where(known, left.r.gather(1, x)[:, 0], 0.0)
    if law == "point_mass":
        return here, here & (coin * left.S < r)
    q = torch.where(known, left.q.gather(1, x)[:, 0], 0.0)
    tested = here & (q > 0)
    if law == "without_replacement":
        tested = tested & ~left.drawn.gather(1, x)[:, 0]
    return tested, tested & (coin * q * left.S < r * left.W)


def rejected(left: Left, token: Tensor, rows: Tensor, law: str) -> Left:
    """After the rejection of a child, in these rows (2)."""
    x = token.clamp(0, left.p.shape[1] - 1)[:, None]
    drawn = left.drawn.scatter(1, x, True)
    if law == "point_mass":
        l, W, r = left.l, left.W, left.r.scatter(1, x, 0.0)
    else:
        l = left.l + left.S / left.W
        W = ORDERED.sum(torch.where(drawn, 0.0, left.q)) if law == "without_replacement" else left.W
        r = (left.p - l[:, None] * left.q).clamp_min(0.0)
    S = ORDERED.sum(r)
    kept = choose(S > 0, left._replace(l=l, r=r, S=S), left)
    return choose(rows, kept._replace(W=W, drawn=drawn), left)


def choose(rows: Tensor, one: Left, other: Left) -> Left:
    """One in these rows, the other elsewhere."""
    return Left(*(torch.where(rows if a.dim() == 1 else rows[:, None], a, b) for a, b in zip(one, other, strict=True)))


def pick(weights: Tensor, total: Tensor, u: Tensor) -> Tensor:
    """The first token at which the running sum passes u total, the last with weight where none does (3)."""
    some = weights > 0
    passed = (weights.cumsum(-1) > (u * total)[..., None]) & some
    last = weights.shape[-1] - 1 - some.flip(-1).long().argmax(-1)
    return torch.where(passed.any(-1), passed.long().argmax(-1), last)
