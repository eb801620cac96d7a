"""Attention that reads the wrong slots or heads, and compaction that loses what it moves, over the dense form."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ssmspec_ref.contract import Adapter
from ssmspec_ref.shapes import Ancestors, Array, Lengths, Path

from ...adapters.reference_parts.attention import compact, verify_tree
from ..single import single


def sees_siblings(
    K: Array, V: Array, length: Lengths, q: Array, k: Array, v: Array, ancestors: Ancestors, scale: Any
) -> Array:
    """The mask of a chain: a node reads all nodes before it."""
    live = np.einsum("btt -> bt", ancestors)
    chain = np.tri(q.shape[1], dtype=bool) & live[:, :, None] & live[:, None]
    return verify_tree(K, V, length, q, k, v, chain, scale)


def one_slot_more(
    K: Array, V: Array, length: Lengths, q: Array, k: Array, v: Array, ancestors: Ancestors, scale: Any
) -> Array:
    """A dead slot after the committed ones is read."""
    return verify_tree(K, V, np.minimum(length + 1, K.shape[1] - 1), q, k, v, ancestors, scale)


def tiled_heads(K: Array, V: Array, length: Lengths, q: Array, k: Array, v: Array, ancestors: Ancestors, scale: Any) -> Array:
    """Query head h reads key head h mod g. Bug class GROUP-MAP."""
    h, g = q.shape[2], k.shape[2]
    order = np.argsort(np.arange(h) % g, kind="stable")
    y = verify_tree(K, V, length, q[:, :, order], k, v, ancestors, scale)
    return y[:, :, np.argsort(order)]


def other_scale(K: Array, V: Array, length: Lengths, q: Array, k: Array, v: Array, ancestors: Ancestors, scale: Any) -> Array:
    """The given scale is not used."""
    return verify_tree(K, V, length, q, k, v, ancestors, None)


def sixty_four_slots(
    K: Array, V: Array, length: Lengths, q: Array, k: Array, v: Array, ancestors: Ancestors, scale: Any
) -> Array:
    """Slots after the first block of 64 are not read."""
    return verify_tree(K, V, np.minimum(length, 64), q, k, v, ancestors, scale)


def overwrites(K: Array, V: Array, length: Lengths, path: Path) -> tuple[Array, Array]:
    """Slots are moved in place in descending order: a source is overwritten before it is read."""
    K, V = K.copy(), V.copy()
    for b, T in enumerate(length):
        for rank in range(int((path[b] >= 0).sum()) - 1, -1, -1):
            K[b, T + rank], V[b, T + rank] = K[b, T + path[b, rank]], V[b, T + path[b, rank]]
    return K, V


def moves_keys_only(K: Array, V: Array, length: Lengths, path: Path) -> tuple[Array, Array]:
    """Only keys are moved, not values."""
    return compact(K, V, length, path)[0], V.copy()


def one_length(K: Array, V: Array, length: Lengths, path: Path) -> tuple[Array, Array]:
    """Every row is moved to after the first row's length. Bug class SLOT-SCOPE."""
    room = K.shape[1] - path.shape[1]
    return compact(K, V, np.minimum(np.full_like(length, length[0]), room), path)


WRONG: dict[str, tuple[Callable[..., Any], ...]] = {
    "attention.verify_tree": (sees_siblings, one_slot_more, tiled_heads, other_scale, sixty_four_slots),
    "attention.compact": (overwrites, moves_keys_only, one_length),
}


def adapter() -> Adapter:
    return Adapter("faulty attention", "1", tuple(single(name, run) for name, runs in WRONG.items() for run in runs))
