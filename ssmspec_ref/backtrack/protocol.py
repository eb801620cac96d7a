"""What every backtracking path receives and offers."""

from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from ..errors import AcceptanceError
from ..lengths import chain_path, check_lengths, first
from ..mixer import Mixer, MixerInputs, MixerState
from ..records import Record, rows
from ..shapes import Array, Lengths, Mask, Parents, Path

K = TypeVar("K")
P = TypeVar("P")


@dataclass(frozen=True)
class Draft(Record):
    """One window: the root and its drafts, as a chain or as a packed tree, one row for each draft.

    `lengths` counts the real tokens of each row (None: all); `sequence` names the sequence that a row continues (None: row r
    continues sequence r; several rows may share one); `parents` makes the window a tree.

    Raises: LengthError, NotTopological (by the path that reads them).
    """

    inputs: MixerInputs
    lengths: Lengths | None = None
    sequence: Lengths | None = None
    parents: Parents | None = None

    @property
    def tokens(self) -> int:
        return int(self.inputs.pre.shape[1])

    def live(self) -> Mask:
        """The real tokens of each row."""
        count = self.inputs.pre.shape[0]
        lengths = np.full(count, self.tokens) if self.lengths is None else self.lengths
        check_lengths("draft.lengths", lengths, self.tokens)
        return first(lengths, self.tokens)

    def begin(self, state: MixerState) -> MixerState:
        """The state from which each row starts."""
        if self.sequence is None:
            return state
        check_lengths("draft.sequence", self.sequence, state.M.shape[0] - 1)
        return rows(state, self.sequence)


@dataclass(frozen=True)
class Accepted(Record):
    """What was accepted of a window, one entry for each sequence.

    `advanced` counts the root and the accepted drafts; 0 means that the row took no part (finished, or padding), and nothing
    of it changes. `row` is the row of the window that was accepted (None: row b). `path` lists the accepted nodes of a tree,
    root first (None: the first `advanced` tokens).
    """

    advanced: Lengths
    row: Lengths | None = None
    path: Path | None = None

    def nodes(self, live: Mask) -> Array:
        """The accepted tokens as a path over the window, padded with -1.

        Raises: AcceptanceError for more tokens than the row holds, or a path whose length is not `advanced`.
        """
        if self.row is not None:
            check_lengths("accepted.row", self.row, live.shape[0] - 1)
            live = live[self.row]
        for b, (advanced, length) in enumerate(zip(self.advanced, live.sum(axis=1), strict=True)):
            if not 0 <= advanced <= length:
                raise AcceptanceError(
                    f"sequence {b} advanced by {advanced} tokens, but its window holds {length}; give 0 to {length}"
                )
        if self.path is None:
            return chain_path(self.advanced, live.shape[1])
        for b, path in enumerate(self.path):
            if (path >= 0).sum() != self.advanced[b] or np.any(path[: self.advanced[b]] < 0):
                raise AcceptanceError(
                    f"sequence {b} advanced by {self.advanced[b]}, but its path is {path.tolist()}; "
                    "list that many nodes, root first, then -1"
                )
        return self.path


class Backtrack(Protocol[K, P]):
    """A module of this folder."""

    def start(self, state: MixerState) -> K: ...

    def verify(self, kept: K, draft: Draft, mixer: Mixer) -> tuple[Array, P]: ...

    def commit(self, pending: P, accepted: Accepted, mixer: Mixer) -> K: ...

    def restore(self, kept: K, mixer: Mixer) -> MixerState: ...

    def refeed(self, kept: K) -> Lengths: ...
