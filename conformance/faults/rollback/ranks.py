"""Servers that cut an exported state apart for another number of tensor-parallel ranks, and cut it wrongly.

Each cuts its weights and inputs rightly. All but the last are right for every sequence that stays where it began, and for one
that goes to a server of as many ranks.
"""

from typing import Any

import numpy as np

from ssmspec_ref.contract import FLOAT64
from ssmspec_ref.shapes import Array

from ...adapters.reference_parts.ranks import WAYS, Ranks, parts, pieces, rejoined, sizes
from ..fault import planted


class Moving(Ranks):
    """A server that knows from how many ranks a state comes, and is right if that is its own number."""

    def take(self, slot: int, held: Any) -> None:
        self.other = len(held) != len(self.servers)
        super().take(slot, held)

    def split(self, M: Array) -> list[Array]:
        return self.wrongly(M) if self.other else super().split(M)

    def wrongly(self, M: Array) -> list[Array]:
        return super().split(M)


class ContiguousCut(Moving):
    """A contiguous piece of all channels goes to each rank, as if it were not x, then B, then C. vllm-project/vllm#37638."""

    def wrongly(self, M: Array) -> list[Array]:
        width, last = super().wrongly(M)[0].shape[1], M.shape[1]
        starts = [min(rank * (last // len(self.servers)), last - width) for rank in range(len(self.servers))]
        return [M[:, start : start + width] for start in starts]


class ExchangesBAndC(Moving):
    """x, B, C are read as x, C, B, and q, k, v as k, q, v. Bug class CONV."""

    def wrongly(self, M: Array) -> list[Array]:
        first, second, third = parts(self.layer, M)
        same = first.shape == second.shape
        return super().wrongly(np.concatenate([second, first, third] if same else [first, third, second], axis=1))


class DealsGroupsInTurn(Moving):
    """With more ranks than groups, rank r gets group r % groups instead of r groups // ranks. Bug class GROUP-MAP."""

    def wrongly(self, M: Array) -> list[Array]:
        return pieces(self.layer, M, len(self.servers), axis=1, block_of=lambda rank, blocks, _: rank % blocks)


class ReadsTheFirstRanks(Moving):
    """Group n is read from rank n, although several ranks in a row hold the same group. Bug class GROUP-MAP."""

    def join(self, held: list[Array]) -> Array:
        return rejoined(self.layer, held, owners=lambda count, ranks: range(min(count, ranks)))


class AddsReplicas(Moving):
    """The ranks' pieces are added into zeros, as in a reduction: a group that several hold is counted for each. Bug class
    GROUP-MAP."""

    def join(self, held: list[Array]) -> Array:
        whole = parts(self.layer, super().join(held))
        return np.concatenate(
            [part * max(1, len(held) // count) for (count, _), part in zip(sizes(self.layer), whole, strict=True)], axis=1
        )


class DealsHeadsInTurn(Moving):
    """Heads of the state are dealt to the ranks in turn; those of the convolution are cut right. Bug class SCHED."""

    def heads(self, held: list[Array]) -> list[Array]:
        S, ranks = np.concatenate(held, axis=1), len(self.servers)
        return [S[:, rank::ranks] for rank in range(ranks)] if self.other else np.split(S, ranks, axis=1)


class EveryRankTakesTheFirst(Moving):
    """Every rank reads what is for rank 0, which has the right shape. Bug class SCHED."""

    def heads(self, held: list[Array]) -> list[Array]:
        found = super().heads(held)
        return [found[0]] * len(found) if self.other else found

    def wrongly(self, M: Array) -> list[Array]:
        found = super().wrongly(M)
        return [found[0]] * len(found)


class OneRankFindsThePrefix(Ranks):
    """Only the first rank looks for a saved prefix, the others start from zero. Bug class SCHED."""

    def begin(self, slot: int, tokens: Array) -> int:
        first, *others = self.servers
        for server in others:
            saved, server.saved = server.saved, {}
            server.begin(slot, tokens)
            server.saved = saved
        return first.begin(slot, tokens)


FAULTS = planted(
    *(
        (build, "life.states", bug_class, FLOAT64, WAYS)
        for build, bug_class in (
            (ContiguousCut, "CONV"),
            (ExchangesBAndC, "CONV"),
            (DealsGroupsInTurn, "GROUP-MAP"),
            (ReadsTheFirstRanks, "GROUP-MAP"),
            (AddsReplicas, "GROUP-MAP"),
            (DealsHeadsInTurn, "SCHED"),
            (EveryRankTakesTheFirst, "SCHED"),
            (OneRankFindsThePrefix, "SCHED"),
        )
    )
)
