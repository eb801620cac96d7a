"""Drafting and acceptance that do not belong together, or whose random numbers are not fresh."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ssmspec_ref.shapes import Array

from ...adapters.reference_parts.sampled_runs import Generated, Sampler
from ..fault import planted

BLOCK = 64


class DraftsOfAnotherTemperature(Sampler):
    """Drafts are drawn at a lower temperature than that of the q that the ratio reads. Bug class Q-MISMATCH."""

    def draft(self, last: Array) -> Array:
        return self.drawn(self.q[last] ** 1.5)


class LikeliestDraft(Sampler):
    """The likeliest token is drafted, and accepted as if it was drawn. Bug class Q-MISMATCH."""

    def draft(self, last: Array) -> Array:
        return np.asarray(self.q[last].argmax(axis=1))


class OneNumberForDraftAndCoin(Sampler):
    """The number that drew a draft also decides whether it is accepted. Bug class RNG."""

    def draft(self, last: Array) -> Array:
        drafted = super().draft(last)
        self.numbers.append(self.last)
        return drafted

    def window(self, last: Array, drafts: int) -> tuple[Array, Array]:
        self.numbers: list[Array] = []
        return super().window(last, drafts)

    def uniform(self, rows: int) -> Array:
        self.last = super().uniform(rows)
        return self.last

    def accepts(self, last: Array, token: Array) -> Array:
        return np.asarray(self.numbers.pop(0) * self.q[last, token] < self.p[last, token])


class RejectedFromTheTarget(Sampler):
    """After a rejection the token is drawn from the target, not from what is left of it. Bug class ACCEPT-RULE."""

    def after_rejection(self, last: Array) -> Array:
        return self.drawn(self.p[last])


class BonusAfterTheRoot(Sampler):
    """The token after a run that is accepted whole is drawn from the law after the root. Bug class P-MISMATCH."""

    def bonus(self, chain: list[Array]) -> Array:
        return self.drawn(self.p[chain[0]])


class BlocksShareNumbers(Sampler):
    """Numbers are drawn for one block of rows, and every block reads them. Bug class RNG."""

    def uniform(self, rows: int) -> Array:
        return np.resize(super().uniform(BLOCK), rows)


class SeedIsNotRead(Sampler):
    """Every call begins with the same numbers; its seed is ignored. Bug class RNG."""

    def __init__(self, p: Array, q: Array, seed: int) -> None:
        super().__init__(p, q, 0)


def generating(build: type[Sampler]) -> Callable[..., Any]:
    def sampled(p: Array, q: Array, roots: Array, count: int, drafts: int, seed: int) -> Generated:
        return build(p, q, seed).generate(roots, count, drafts)

    sampled.__name__, sampled.__doc__ = build.__name__, build.__doc__
    return sampled


FAULTS = planted(
    *(
        (generating(build), "generate.sampled", bug_class)
        for build, bug_class in (
            (DraftsOfAnotherTemperature, "Q-MISMATCH"),
            (LikeliestDraft, "Q-MISMATCH"),
            (OneNumberForDraftAndCoin, "RNG"),
            (RejectedFromTheTarget, "ACCEPT-RULE"),
            (BonusAfterTheRoot, "P-MISMATCH"),
            (BlocksShareNumbers, "RNG"),
            (SeedIsNotRead, "RNG"),
        )
    )
)
