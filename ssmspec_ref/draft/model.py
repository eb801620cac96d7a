"""The interface of a drafting model: one token per row in, a distribution per row out, a state that can be copied."""

from typing import Protocol, TypeVar

import numpy as np

from ..shapes import Array, Indices, RowProbs

S = TypeVar("S")


class DraftModel(Protocol[S]):
    """A recurrent or cached model whose state holds `rows` sequences; `step` and `rows` never write to their arguments."""

    def step(self, state: S, tokens: Indices) -> tuple[RowProbs, S]:
        """The distribution of the next token of each row, and the state after `tokens`."""
        ...

    def rows(self, state: S, index: Indices) -> S:
        """The states of the rows `index`, in that order; a row may occur more than once."""
        ...


def top(p: Array, count: int) -> Array:
    """The `count` most probable tokens, most probable first, the lowest index first on ties."""
    return np.argsort(-p, kind="stable")[:count]
