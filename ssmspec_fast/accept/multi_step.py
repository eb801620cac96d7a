"""Multi-step speculative sampling on the device: descends a tree by random coins, then draws a last token from the residual.

At node n, with p after it, q the draft distribution after it, and children x_1, x_2, .. in the order of their draw:

    p_1 = p;  accept x_m iff u q_m(x_m) < p_m(x_m)                                (1)
    rejected: p_{m+1} = norm((p_m - q_m)+);  if that is zero everywhere, p_m stays      (2)
    none accepted: emit the first i with u' < p_m(0) + .. + p_m(i)                (3)

law                    q_m
iid                    q: children drawn independently; on a chain this is rejection sampling
without_replacement    q without x_1 .. x_{m-1}, renormalised
point_mass             the point mass at x_m: deterministic children

With r = (p - l q)+, S = sum r, W = the mass of q outside the drawn tokens, p_m = r / S and q_m = q / W, so that

    (1)  u q(x) S < r(x) W,    (2)  l <- l + S / W                                (4)

in float64, where u q is exact; the distributions are the fp32 rows divided by their own sums. One pass over the nodes: a
parent precedes its children, so that a child of the reached node is still to come.
Source: SpecInfer (arXiv:2305.09781), section 4.3; the forms of (4) as in `ssmspec_kernels.tokens.accept_sampled`.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ..engine.sequences import Sequences
from ..engine.window import Proposal, Verdict
from ..operations import Operations
from .processors import ORDERED
from .sampled import LAWS, Sampled, check_q, pick


class MultiStep(Sampled):
    """Trees and chains, under the law that their drafter names.

    Raises: ParameterError (a law without q), Unsupported (several rows for one sequence: merge them into a tree).
    """

    name = "multi_step"
    laws = LAWS
    divides = True

    def __call__(self, proposal: Proposal, logits: Tensor, sequences: Sequences, operations: Operations) -> Verdict:
        window = proposal.window
        if window.tokens.shape[1] == 1:  # nothing is tested: neither coins nor a law of drafts is needed
            return self.as_drawn(proposal, logits, sequences, operations)
        self.check_proposal(proposal)
        p = self.law(window, logits, sequences, operations)
        noise = self.coins(window, sequences), self.picks(window, sequences, operations)
        rule = operations.accept_sampled
        tree = window.tokens, window.tree()
        found = (
            self.by_kernel(rule, proposal, *tree, p, *noise) if rule else judge(*tree, p, proposal.q, *noise, proposal.law)
        )
        return self.decided(*found, window, logits, p, sequences)


class Left(NamedTuple):
    """The residual at a node: its p and q, l, r, S, W, and the tokens drawn there."""

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
    """Emitted tokens and path (b, t), -1 after them: (1) to (3)."""
    check_q(law, q)
    rule = RULES[law]
    rows, t = torch.arange(len(tokens), device=tokens.device), tokens.shape[1]
    on = parents[:, 0] == -1
    node, count = torch.zeros_like(rows), on.long()
    path, emitted = torch.full_like(tokens, -1), torch.full_like(tokens, -1)
    path[:, 0] = torch.where(on, 0, -1)
    left = fresh(p, q, 0)
    for i in range(1, t):
        here = on & (parents[:, i] == node)
        tested, stands = rule.verdict(left, tokens[:, i], coins[:, i].double(), here)
        path[rows, count.clamp_max(t - 1)] = torch.where(stands, i, path[rows, count.clamp_max(t - 1)])
        emitted[rows, (count - 1).clamp_min(0)] = torch.where(stands, tokens[:, i], emitted[rows, (count - 1).clamp_min(0)])
        node, count = torch.where(stands, i, node), count + stands
        left = choose(stands, fresh(p, q, i), rule.rejected(left, tokens[:, i], tested & ~stands))
    last = pick(left.r, left.S, picks[rows, node].double())  # (3)
    at = (count - 1).clamp_min(0)
    emitted[rows, at] = torch.where(on, last, -1)
    return emitted, path


def fresh(p: Tensor, q: Tensor | None, node: int) -> Left:
    """The values before the first child of a node."""
    wide = p[:, node].double()
    law = wide if q is None else q[:, node].double()
    total = ORDERED.sum(wide)
    one = total if q is None else ORDERED.sum(law)
    return Left(wide, law, torch.zeros_like(total), wide, total, one, torch.zeros_like(wide, dtype=torch.bool))


def independent(left: Left, token: Tensor, coin: Tensor, here: Tensor) -> tuple[Tensor, Tensor]:
    """Whether the child is tested, and whether it is accepted (1). A child with probability 0 under its law is skipped."""
    r, q = weight(left.r, token), weight(left.q, token)
    tested = here & (q > 0)
    return tested, tested & (coin * q * left.S < r * left.W)


def without_replacement(left: Left, token: Tensor, coin: Tensor, here: Tensor) -> tuple[Tensor, Tensor]:
    """As `independent`; a token that was drawn before is skipped too."""
    return independent(left, token, coin, here & ~left.drawn.gather(1, place(left, token))[:, 0])


def certain(left: Left, token: Tensor, coin: Tensor, here: Tensor) -> tuple[Tensor, Tensor]:
    """As `independent`, for a point mass."""
    return here, here & (coin * left.S < weight(left.r, token))


def less_q(left: Left, token: Tensor, rows: Tensor) -> Left:
    """After the rejection of a child, in these rows (2); q stays."""
    return rejected(left, token, rows, left.l + left.S / left.W, left.W)


def less_q_renormalised(left: Left, token: Tensor, rows: Tensor) -> Left:
    """As `less_q`; the token is removed from q."""
    drawn = left.drawn.scatter(1, place(left, token), True)
    return rejected(left, token, rows, left.l + left.S / left.W, ORDERED.sum(torch.where(drawn, 0.0, left.q)))


def less_token(left: Left, token: Tensor, rows: Tensor) -> Left:
    """As `less_q`, for a point mass: the token is removed from p."""
    return settled(left, token, rows, left.l, left.W, left.r.scatter(1, place(left, token), 0.0))


def rejected(left: Left, token: Tensor, rows: Tensor, l: Tensor, W: Tensor) -> Left:
    """The update (4)."""
    return settled(left, token, rows, l, W, (left.p - l[:, None] * left.q).clamp_min(0.0))


def settled(left: Left, token: Tensor, rows: Tensor, l: Tensor, W: Tensor, r: Tensor) -> Left:
    """The residual after a rejection; if it is zero, p and q stay."""
    S = ORDERED.sum(r)
    kept = choose(S > 0, left._replace(l=l, r=r, S=S), left)
    return choose(rows, kept._replace(W=W, drawn=left.drawn.scatter(1, place(left, token), True)), left)


def place(left: Left, token: Tensor) -> Tensor:
    """The index of a token's weight (b, 1); any valid index for padding."""
    return token.clamp(0, left.p.shape[1] - 1)[:, None]


def weight(of: Tensor, token: Tensor) -> Tensor:
    """The weight of a token (b,); 0 for padding."""
    known = (token >= 0) & (token < of.shape[1])
    return torch.where(known, of.gather(1, token.clamp(0, of.shape[1] - 1)[:, None])[:, 0], 0.0)


class Law(NamedTuple):
    """How children are tested (1), and the residual after a rejection (2)."""

    verdict: Callable[[Left, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
    rejected: Callable[[Left, Tensor, Tensor], Left]


RULES = {
    "iid": Law(independent, less_q),
    "without_replacement": Law(without_replacement, less_q_renormalised),
    "point_mass": Law(certain, less_token),
}


def choose(rows: Tensor, one: Left, other: Left) -> Left:
    """`one` in these rows, `other` elsewhere."""
    return Left(*(torch.where(rows if a.dim() == 1 else rows[:, None], a, b) for a, b in zip(one, other, strict=True)))
