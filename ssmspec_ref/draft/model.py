"""What a drafting model must offer: one token for each row in, the law of the next token out, a state that can be copied."""

from typing import Protocol, TypeVar

import numpy as np

from ..shapes import Array, Indices, RowProbs

S = TypeVar("S")


class DraftModel(Protocol[S]):
    """A recurrent or cached model with a state of `rows` sequences; `step` and `rows` never write their arguments."""

    def step(self, state: S, tokens: Indices) -> tuple[RowProbs, S]:
        """The law of the next token of each row, and the state after `tokens`."""
        ...

    def rows(self, state: S, index: Indices) -> S:
        """The states of the rows `index`, in that order; a row may be taken more than once."""
        ...


def top(p: Array, count: int) -> Array:
    """The `count` most probable tokens, most probable first, the lowest index first among equals."""
    return np.argsort(-p, kind="stable")[:count]
