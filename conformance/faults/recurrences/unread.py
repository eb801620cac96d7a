"""What is never read is multiplied by zero instead of skipped: right while it is finite."""

import numpy as np

from ssmspec_ref import tree
from ssmspec_ref.backtrack import tree as tree_path
from ssmspec_ref.layers.mixer import Mixer, MixerInputs, MixerState
from ssmspec_ref.shapes import Array, Lengths, Parents

from ...adapters.reference_parts.backtracking import AT_ONCE, Backtracking
from ...mistakes.mistake import after, before
from ...mistakes.operators import of_rows, zero
from ..fault import planted
from ..windows import Replayed, verifies


def oldest_has_a_tap(y: Array, M: Array) -> Array:
    """The filter has one tap more, a zero, for the oldest column."""
    y[:, 0] += 0.0 * M[:, :, 0]
    return y


def committed_by_product(M: Array, u: Array, advanced: Lengths) -> Array:
    """The columns to keep are selected by a product with a matrix of zeros and ones."""
    width, every = M.shape[2], np.concatenate([M, u.transpose(0, 2, 1)], axis=2)
    chosen = np.arange(every.shape[2])[:, None] == advanced[:, None, None] + np.arange(width)
    return np.einsum("bce, bew -> bcw", every, chosen)


def values_by_product(y: Array, V: Array, length: Lengths) -> Array:
    """Values beyond the length have the weight zero in the product."""
    dead = np.arange(V.shape[1]) >= length[:, None]
    return y + np.einsum("bl, blge -> bge", 0.0 * dead, V).sum(axis=1)[:, None, None]


class PaddingOfALayer(Backtracking):
    """In a layer, padding nodes of a smaller tree have the weight zero in the products of the window."""

    def __init__(self, mixer: Mixer, state: MixerState) -> None:
        super().__init__(tree_path, mixer, state)

    def verify(self, inputs: MixerInputs, parents: Parents | None = None) -> Array:
        return super().verify(inputs, parents) + 0.0 * inputs.pre.sum()


FAULTS = planted(
    (
        after(
            "masked_by_product",
            "Inputs of no-ops are multiplied by a mask.",
            S_next=lambda S_next, x, live: S_next + 0.0 * (x * of_rows(live, x)).sum(axis=1)[..., None],
        ),
        "ssd.scan_masked",
        "PAD-LEAK",
    ),
    (
        after(
            "padding_by_product",
            "Inputs of padding nodes are multiplied by zero in the products of a window.",
            y=lambda y, x, ancestors: y + 0.0 * (x * of_rows(tree.live(ancestors), x)).sum(axis=1, keepdims=True),
        ),
        "ssd.verify_tree",
        "PAD-LEAK",
    ),
    (after(y=oldest_has_a_tap), "conv.scan", "CONV"),
    (committed_by_product, "conv.commit", "COMMIT"),
    (after(y=values_by_product), "attention.verify_tree", "PAD-LEAK"),
    (
        after(
            "moved_by_product",
            "Accepted keys and values are moved by a product with a matrix of zeros and ones.",
            K_next=lambda K_next, K: K_next + 0.0 * K.sum(axis=1, keepdims=True),
        ),
        "attention.compact",
        "TREE-COMMIT",
    ),
    (
        before(
            "fresh_by_product",
            "The state of a new sequence is multiplied by zero. Bug class SLOT-REUSE.",
            S=lambda S, fresh: S * ~of_rows(fresh, S),
            fresh=zero,
        ),
        "ssd.scan_packed",
        "SLOT-REUSE",
    ),
    (
        before(
            "reads_any_law",
            "Where drafts are certain, their law is read and multiplied by zero.",
            p=lambda p, q, law: p + 0.0 * q if law == "point_mass" else p,
        ),
        "acceptance.sampled",
        "Q-MISMATCH",
    ),
    (
        verifies(
            "PaddingInProducts",
            "Padding nodes of a smaller tree have the weight zero in the products of the window.",
            Replayed,
            y=lambda y, x, parents: y if parents is None else y + 0.0 * x.sum(axis=1, keepdims=True),
        ),
        "ssd.verify_replay",
        "PAD-SLOT",
        AT_ONCE,
    ),
    (PaddingOfALayer, "speculate.tree", "PAD-SLOT", AT_ONCE),
)
