"""What a window emits: the accepted drafts and one token of the target, which is the next root and not yet in any state."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..backtrack.protocol import Accepted
from ..errors import LengthError


@dataclass(frozen=True)
class Emitted:
    """The emitted tokens, and the path of nodes that enters the state: the root and the accepted drafts, one node per token.

    The run is empty for a row without a window. Raises: LengthError.
    """

    tokens: tuple[int, ...]
    path: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.path):
            raise LengthError(
                f"a run has {len(self.tokens)} tokens and a path of {len(self.path)} nodes; "
                "a window emits its accepted drafts and one more token, and advances by its root and its accepted drafts"
            )

    @property
    def advanced(self) -> int:
        """Tokens that enter the state: the root and the accepted drafts."""
        return len(self.path)

    @property
    def accepted(self) -> int:
        """Accepted drafts."""
        return max(self.advanced - 1, 0)

    def first(self, count: int) -> "Emitted":
        """The run cut to its first `count` tokens, with as many nodes on the path (the last token enters no state)."""
        return Emitted(self.tokens[:count], self.path[:count])


def accepted(runs: Sequence[Emitted], tokens: int) -> Accepted:
    """The runs of a batch in the form that the backtracking paths take, for windows of `tokens` tokens.

    Raises: LengthError for a path longer than the window.
    """
    path = np.full((len(runs), tokens), -1, dtype=np.int64)
    for b, run in enumerate(runs):
        if run.advanced > tokens:
            raise LengthError(f"run {b} advances by {run.advanced}, but the window holds {tokens} tokens")
        path[b, : run.advanced] = run.path
    return Accepted(np.array([run.advanced for run in runs], dtype=np.int64), path=path)
