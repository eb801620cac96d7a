"""The common interface of the backtracking paths: what they take and what they return."""

from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from .. import tree
from ..errors import AcceptanceError, ParameterError, ShapeMismatch
from ..layers.mixer import Mixer, MixerInputs, MixerState
from ..lengths import check_lengths, first
from ..records import Record, rows
from ..shapes import Array, Lengths, Mask, Parents, Path

K = TypeVar("K")
P = TypeVar("P")


@dataclass(frozen=True)
class Draft(Record):
    """One window: the root and its drafts, as a chain or as a packed tree, one row per draft.

    `lengths` counts the real tokens of each row (None: all). `sequence` gives the sequence that a row continues (None: row r
    continues sequence r; several rows may share one). `parents` makes the window a tree. If a path lags (`refeed`), each row
    begins with the committed tokens that the path lacks, and `lengths` counts them too.

    Raises: LengthError, NotTopological, ParameterError, ShapeMismatch, when a path reads these fields.
    """

    inputs: MixerInputs
    lengths: Lengths | None = None
    sequence: Lengths | None = None
    parents: Parents | None = None

    @property
    def tokens(self) -> int:
        return int(self.inputs.pre.shape[1])

    @property
    def rows(self) -> int:
        return int(self.inputs.pre.shape[0])

    def live(self) -> Mask:
        """Marks the real tokens of each row; padding nodes of a tree are not real."""
        lengths = np.full(self.rows, self.tokens) if self.lengths is None else self.lengths
        check_lengths("draft.lengths", lengths, self.tokens)
        real = first(lengths, self.tokens)
        return real if self.parents is None else real & (self.parents != tree.PADDING)

    def tree(self) -> Parents:
        """The parent of each token; a chain is a tree with one path."""
        if self.parents is None:
            return np.tile(np.arange(-1, self.tokens - 1), (self.rows, 1))
        tree.check_parents(self.parents)
        return self.parents

    def continues(self, sequences: int) -> Lengths:
        """The sequence that each row continues, in 0 .. sequences - 1."""
        if self.sequence is None:
            if self.rows != sequences:
                raise ShapeMismatch(
                    f"the draft has {self.rows} rows for {sequences} sequences; give draft.sequence, the sequence of each row"
                )
            return np.arange(sequences)
        bad = np.flatnonzero((self.sequence < 0) | (self.sequence >= sequences))
        if bad.size:
            raise ParameterError(
                f"draft.sequence[{bad[0]}] is {self.sequence[bad[0]]}, but there are {sequences} sequences; "
                f"give 0 to {sequences - 1}"
            )
        return self.sequence

    def begin(self, state: MixerState) -> MixerState:
        """The state from which each row starts."""
        return rows(state, self.continues(state.M.shape[0]))


@dataclass(frozen=True)
class Accepted(Record):
    """What was accepted of a window, one entry for each sequence.

    `advanced` counts the root and the accepted drafts; 0 means that the sequence had no window (finished, or padding), and
    none of its state changes. `row` is the accepted row of the window (None: row b). `path` lists the accepted nodes of a
    tree, root first (None: the first `advanced` tokens).
    """

    advanced: Lengths
    row: Lengths | None = None
    path: Path | None = None

    def choose(self, draft: Draft, sequences: int, lag: Lengths | None = None) -> tuple[Array, Array]:
        """The accepted row of each sequence, and its accepted tokens as a path over the window, padded with -1.

        `lag` counts the committed tokens at the start of each sequence's rows. They are accepted already; the path begins at
        the root, and its indices are shifted by the lag.

        Raises: AcceptanceError for another number of sequences than the window has, a row of another sequence, more tokens
        than the row holds, or a path that is not a path of the tree; NotTopological.
        """
        if len(self.advanced) != sequences:
            raise AcceptanceError(
                f"advanced has {len(self.advanced)} entries, but the window continues {sequences} "
                "sequences; give one for each"
            )
        chosen = np.zeros(sequences, dtype=np.int64)
        path = np.full((sequences, draft.tokens), -1)
        sequence, live, parents = draft.continues(sequences), draft.live(), draft.tree()
        for b, advanced in enumerate(self.advanced):
            if advanced == 0:
                continue
            r = b if self.row is None else int(self.row[b])
            if not 0 <= r < draft.rows or sequence[r] != b:
                raise AcceptanceError(
                    f"sequence {b} accepted row {r}, but its rows are {np.flatnonzero(sequence == b).tolist()}; "
                    "give accepted.row, one of these for each sequence that advanced"
                )
            behind = 0 if lag is None else int(lag[b])
            _check_advanced(b, int(advanced), int(live[r].sum()) - behind)
            nodes = np.arange(advanced) if self.path is None else self.path[b]
            _check_path(b, int(advanced), nodes, parents[r], live[r])
            chosen[b], path[b, :advanced] = r, behind + nodes[:advanced]
        return chosen, path


def _check_advanced(b: int, advanced: int, held: int) -> None:
    if not 0 <= advanced <= held:
        raise AcceptanceError(f"sequence {b} advanced by {advanced} tokens, but its window holds {held}; give 0 to {held}")


def _check_path(b: int, advanced: int, path: Array, parents: Array, live: Array) -> None:
    nodes = path[path >= 0]
    whole = len(nodes) == advanced and np.all(path[:advanced] >= 0) and np.all(nodes < len(parents))
    if not (whole and nodes[0] == 0 and live[nodes].all() and np.all(parents[nodes[1:]] == nodes[:-1])):
        raise AcceptanceError(
            f"sequence {b} advanced by {advanced}, but its path is {path.tolist()} in the tree {parents.tolist()}; "
            "list that many nodes, root first, each the parent of the next, then -1"
        )


class Backtrack(Protocol[K, P]):
    """A module of this folder, or an object with the same functions."""

    def start(self, state: MixerState) -> K: ...

    def verify(self, kept: K, draft: Draft, mixer: Mixer) -> tuple[Array, P]: ...

    def commit(self, pending: P, accepted: Accepted, mixer: Mixer) -> K: ...

    def restore(self, kept: K, mixer: Mixer) -> MixerState: ...

    def refeed(self, kept: K) -> Lengths: ...
