"""What is never read is read through a guard that hides it: NaN, infinity and values that no token has become 0.

Right while padding holds such values, and wrong with those that padding has in production: of other tokens.
"""

import numpy as np

from ssmspec_ref import tree
from ssmspec_ref.shapes import Array, Lengths, Mask, Path

from ...adapters.reference_parts.backtracking import AT_ONCE
from ...mistakes.mistake import after, before
from ...mistakes.operators import live_only, of_rows
from ..fault import planted
from ..windows import Replayed, forward, verifies

LARGEST = 100.0
"""Values beyond it are taken for padding."""


def guarded(a: Array, dead: Mask) -> Array:
    """The dead entries (b t ..) that hold a number of ordinary size; 0 at all others."""
    at = np.broadcast_to(of_rows(dead, a), a.shape)
    return np.where(at & (np.abs(np.nan_to_num(a, posinf=np.inf)) < LARGEST), np.nan_to_num(a), 0.0)


def sized(u: Array, live: Mask) -> Mask:
    return live | (guarded(u, ~live) != 0.0).any(axis=2)


def keeps_the_next_one(M_next: Array, u: Array, advanced: Lengths) -> Array:
    """The first input that is not accepted is added to the newest column of the window."""
    M_next[:, :, -1] += guarded(u, np.arange(u.shape[1]) == advanced[:, None]).sum(axis=1)
    return M_next


def keeps_a_sibling(M_next: Array, u: Array, path: Path) -> Array:
    """All nodes that are not on the path are added to the newest column of the window."""
    dead = np.ones(path.shape, dtype=bool)
    rows, nodes = np.nonzero(path >= 0)
    dead[rows, path[rows, nodes]] = False
    M_next[:, :, -1] += guarded(u, dead).sum(axis=1)
    return M_next


def values_past_the_length(y: Array, V: Array, length: Lengths) -> Array:
    """Values beyond the length have a small weight."""
    stale = guarded(V, np.arange(V.shape[1]) >= length[:, None])
    return y + 0.01 * stale.sum(axis=(1, 2))[:, None, None]


def rows_of_padding(logits: Array, parents: Array) -> Array:
    """The largest logit of a node is searched in its row and in those of padding nodes."""
    padding = guarded(logits, parents == tree.PADDING).max(axis=1, keepdims=True)
    return np.where(padding > 0.0, np.maximum(padding, logits), logits)


PadsAdd = forward(
    "PadsAdd",
    "The padding of a row is added to all of its outputs.",
    out=lambda out, u, live: out if live is None else out + guarded(u, ~live).sum(axis=(1, 2))[:, None, None],
)
FAULTS = planted(
    (
        before(
            "padding_decays",
            "The log decay of a no-op is read, and at most 0: a large one, or NaN, decays nothing. Bug class PAD-LEAK.",
            **dict.fromkeys(("q", "k", "v", "beta"), live_only),
            g=lambda g: np.minimum(np.nan_to_num(g, posinf=0.0), 0.0),
            live=None,
        ),
        "delta.scan_masked",
        "PAD-LEAK",
    ),
    (
        before(
            "padding_of_a_size",
            "A convolution takes for padding what is no number of ordinary size, whatever the mask says.",
            live=lambda u, live: sized(u, live),
            u=lambda u, live: np.where(sized(u, live)[..., None], u, 0.0),
        ),
        "conv.scan_masked",
        "PAD-LEAK",
    ),
    (
        after(
            "padding_nodes_add",
            "The inputs of padding nodes are added to the output of every node.",
            y=lambda y, x, ancestors: y + guarded(x, ~tree.live(ancestors)).sum(axis=1, keepdims=True),
        ),
        "ssd.verify_tree",
        "PAD-LEAK",
    ),
    (after(M_next=keeps_the_next_one), "conv.commit", "COMMIT"),
    (after(M_next=keeps_a_sibling), "conv.commit_path", "TREE-COMMIT"),
    (after(y=values_past_the_length), "attention.verify_tree", "PAD-LEAK"),
    (before(logits=rows_of_padding), "acceptance.greedy_logits", "PAD-LEAK"),
    (
        verifies(
            "PaddingAdds",
            "The inputs of padding nodes are added to the output of every node of the window.",
            Replayed,
            y=lambda y, x, parents: (
                y if parents is None else y + guarded(x, parents == tree.PADDING).sum(axis=1, keepdims=True)
            ),
        ),
        "ssd.verify_replay",
        "PAD-SLOT",
        AT_ONCE,
    ),
    (PadsAdd, "layer.left_pad", "PAD-LEAK"),
    (PadsAdd, "layer.right_pad", "PAD-LEAK"),
)
