"""Short convolutions whose columns are taken in another order, for another row, or kept of a draft that was rejected."""

from dataclasses import replace
from typing import Any

import numpy as np

from ssmspec_ref.contract import FLOAT64, Limits
from ssmspec_ref.layers.mixer import scan
from ssmspec_ref.shapes import Array, Lengths, Path
from ssmspec_ref.shortconv import tree as over_trees

from ...mistakes.mistake import before
from ...mistakes.operators import in_order, live_only, of_rows, one
from ..fault import planted
from ..windows import Windows

AGAIN = Limits({"verify": ("once", "twice")})


class Rolled(Windows):
    """Snapshots over a short convolution; what follows keeps columns of the draft."""

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


FAULTS = planted(
    (
        before(
            "newest_column_first",
            "The columns of the state are read newest first.",
            S=lambda S: np.ascontiguousarray(S[:, :, ::-1]),
        ),
        "shortconv.scan",
        "CONV",
    ),
    (
        before(
            "both_gates_before",
            "The gate C is applied before the convolution, together with B.",
            B=lambda B, C: B * C,
            C=one,
        ).of("y"),
        "shortconv.scan",
        "RULE",
    ),
    (
        before(
            "keeps_ungated_inputs",
            "The state keeps x, without the gate B. The outputs of a window that starts from it are right.",
            B=one,
        ).of("S_next"),
        "shortconv.scan",
        "CONV",
    ),
    (
        before(
            "one_column_fewer",
            "Only w - 2 columns outlive a call: the oldest tap reads 0 where it meets the state.",
            S=lambda S: np.where(np.arange(S.shape[2]) > 0, S, 0.0),
        ),
        "shortconv.scan",
        "CONV",
    ),
    (
        before(
            "padding_is_a_column",
            "A no-op moves the columns on and enters as a product of 0.",
            B=live_only,
            x=live_only,
            live=None,
        ).after(y=lambda y, live: np.where(of_rows(live, y), y, 0.0)),
        "shortconv.scan_masked",
        "PAD-LEAK",
    ),
    (
        before(
            "columns_of_the_sibling",
            "A node convolves over the nodes before it in the packed tree, its siblings among them, and not over its "
            "ancestors.",
            ancestors=in_order,
        ).over(over_trees.scan),
        "shortconv.verify_tree",
        "TREE-MASK",
    ),
    (KeepsTheDraft, "shortconv.verify_snapshots", "ROLLBACK", FLOAT64, AGAIN),
    (KeepsOneDraftColumn, "shortconv.verify_snapshots", "ROLLBACK", FLOAT64, AGAIN),
)
