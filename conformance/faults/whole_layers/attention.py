"""Attention that reads the wrong slots or heads, and compaction that loses what it moves, over the dense form."""

import numpy as np

from ssmspec_ref.shapes import Ancestors, Array, Lengths, Path

from ...adapters.reference_parts.attention import verify_tree
from ...mistakes.mistake import after, before
from ...mistakes.operators import at_most, in_order
from ..fault import planted


def tiled_heads(
    K: Array, V: Array, length: Lengths, q: Array, k: Array, v: Array, ancestors: Ancestors, scale: float | None
) -> Array:
    """Query head h reads key head h mod g. Bug class GROUP-MAP."""
    h, g = q.shape[2], k.shape[2]
    order = np.argsort(np.arange(h) % g, kind="stable")
    y = verify_tree(K, V, length, q[:, :, order], k, v, ancestors, scale)
    return y[:, :, np.argsort(order)]


def overwrites(K: Array, V: Array, length: Lengths, path: Path) -> tuple[Array, Array]:
    """Slots are moved in place in descending order: a source is overwritten before it is read."""
    K, V = K.copy(), V.copy()
    for b, T in enumerate(length):
        for rank in range(int((path[b] >= 0).sum()) - 1, -1, -1):
            K[b, T + rank], V[b, T + rank] = K[b, T + path[b, rank]], V[b, T + path[b, rank]]
    return K, V


def one_length(length: Lengths, K: Array, path: Path) -> Lengths:
    """Every row is moved to after the first row's length. Bug class SLOT-SCOPE."""
    return np.minimum(np.full_like(length, length[0]), K.shape[1] - path.shape[1])


FAULTS = planted(
    *(
        (run, "attention.verify_tree", bug_class)
        for run, bug_class in (
            (
                before(
                    "sees_siblings",
                    "The mask of a chain: a node reads all nodes before it.",
                    ancestors=in_order,
                ),
                "TREE-MASK",
            ),
            (
                before(
                    "one_slot_more",
                    "A dead slot after the committed ones is read.",
                    length=lambda length, K: np.minimum(length + 1, K.shape[1] - 1),
                ),
                "INDEX",
            ),
            (tiled_heads, "GROUP-MAP"),
            (before("other_scale", "The given scale is not used.", scale=None), "VARIANT"),
            (before("sixty_four_slots", "Slots after the first block of 64 are not read.", length=at_most(64)), "INDEX"),
        )
    ),
    *(
        (run, "attention.compact", bug_class)
        for run, bug_class in (
            (overwrites, "TREE-COMMIT"),
            (
                after("moves_keys_only", "Only keys are moved, not values.", V_next=lambda V: V.copy()),
                "TREE-COMMIT",
            ),
            (before(length=one_length), "SLOT-SCOPE"),
        )
    ),
)
