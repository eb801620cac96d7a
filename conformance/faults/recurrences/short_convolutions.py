"""Short convolutions whose columns are taken in another order, for another row, or kept of a draft that was rejected."""

from dataclasses import replace
from typing import Any

import numpy as np

from ssmspec_ref import shortconv
from ssmspec_ref.backtrack import snapshots
from ssmspec_ref.contract import FLOAT64, Adapter, Limits
from ssmspec_ref.layers.mixer import scan
from ssmspec_ref.shapes import Array, Lengths, Mask, Path
from ssmspec_ref.shortconv import tree as over_trees

from ...adapters.reference_parts.windows import Bare
from ..single import Wrong, adapter_of

AGAIN = Limits({"verify": ("once", "twice")})
Runs = tuple[Array, Array]


def newest_column_first(S: Array, window: Any, params: Any) -> Runs:
    """The columns of the state are read newest first."""
    y, S_next = shortconv.scan(np.ascontiguousarray(S[:, :, ::-1]), window, params)
    return y, S_next


def both_gates_before(S: Array, window: Any, params: Any) -> Runs:
    """The gate C is applied before the convolution, together with B."""
    free = replace(window, C=np.ones_like(window.C))
    return shortconv.scan(S, replace(free, B=window.B * window.C), params)[0], shortconv.scan(S, window, params)[1]


def keeps_ungated_inputs(S: Array, window: Any, params: Any) -> Runs:
    """The state keeps x, without the gate B. The outputs of a window that starts from it are right."""
    return shortconv.scan(S, window, params)[0], shortconv.scan(S, replace(window, B=np.ones_like(window.B)), params)[1]


def one_column_fewer(S: Array, window: Any, params: Any) -> Runs:
    """Only w - 2 columns outlive a call: the oldest tap reads 0 where it meets the state."""
    S = S.copy()
    S[:, :, 0] = 0.0
    return shortconv.scan(S, window, params)


def padding_is_a_column(S: Array, window: Any, params: Any, live: Mask) -> Runs:
    """A no-op moves the columns on and enters as a product of 0."""
    dead = np.where(live[:, :, None], window.x, 0.0)
    y, S_next = shortconv.scan(S, replace(window, B=np.where(live[:, :, None], window.B, 0.0), x=dead), params)
    return np.where(live[:, :, None], y, 0.0), S_next


def columns_of_the_sibling(S: Array, window: Any, ancestors: Array, params: Any) -> Array:
    """A node convolves over the nodes before it in the packed tree, its siblings among them, and not over its ancestors."""
    live = np.einsum("btt -> bt", ancestors)
    before = np.tri(ancestors.shape[1], dtype=bool) & live[:, None, :] & live[:, :, None]
    return over_trees.scan(S, window, before, params)


class Rolled(Bare):
    """Snapshots over a short convolution; what follows keeps columns of the draft."""

    def __init__(self, S: Array, params: Any) -> None:
        super().__init__(snapshots, S, params)

    def columns(self, kept: Array, whole: Array, rejected: Array) -> Array:
        """The state of rows that accepted something, from the right one and that after the whole window."""
        raise NotImplementedError

    def commit(self, advanced: Lengths, path: Path) -> None:
        inner: Any = self.inner
        drafts, before = inner.pending.draft, inner.path.restore(inner.kept, inner.mixer)
        whole = scan(before, drafts.inputs, inner.mixer)[1].S if drafts.parents is None else None
        super().commit(advanced, path)
        if whole is not None:
            S = inner.kept.S
            rejected = (advanced > 0) & (advanced < path.shape[1])
            inner.kept = replace(inner.kept, S=np.where(rejected[:, None, None], self.columns(S, whole, rejected), S))


class KeepsTheDraft(Rolled):
    """The columns stay as the whole draft left them; keys and values are rolled back. vllm-project/vllm#44296."""

    def columns(self, kept: Array, whole: Array, rejected: Array) -> Array:
        return whole


class KeepsOneDraftColumn(Rolled):
    """The newest column stays that of the last rejected draft."""

    def columns(self, kept: Array, whole: Array, rejected: Array) -> Array:
        return np.concatenate([kept[:, :, :-1], whole[:, :, -1:]], axis=2)


FAULTS: tuple[Wrong, ...] = (
    (newest_column_first, "shortconv.scan", "CONV"),
    (both_gates_before, "shortconv.scan", "RULE"),
    (keeps_ungated_inputs, "shortconv.scan", "CONV"),
    (one_column_fewer, "shortconv.scan", "CONV"),
    (padding_is_a_column, "shortconv.scan_masked", "PAD-LEAK"),
    (columns_of_the_sibling, "shortconv.verify_tree", "TREE-MASK"),
    (KeepsTheDraft, "shortconv.verify_snapshots", "ROLLBACK", FLOAT64, AGAIN),
    (KeepsOneDraftColumn, "shortconv.verify_snapshots", "ROLLBACK", FLOAT64, AGAIN),
)


def adapter() -> Adapter:
    return adapter_of("short convolutions", FAULTS)
