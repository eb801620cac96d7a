"""What is never read is multiplied by zero instead of skipped: right while it is finite."""

from typing import Any

import numpy as np

from ssmspec_ref import conv, ssd, tree
from ssmspec_ref.backtrack import activation_replay
from ssmspec_ref.backtrack import tree as tree_path
from ssmspec_ref.contract import FLOAT64, Adapter
from ssmspec_ref.layers.mixer import Mixer, MixerInputs, MixerState
from ssmspec_ref.records import each
from ssmspec_ref.shapes import Ancestors, Array, Lengths, Mask, Parents, Path

from ...adapters.reference_parts import attention
from ...adapters.reference_parts.acceptance import Runs, accept_sampled
from ...adapters.reference_parts.backtracking import AT_ONCE, Backtracking
from ...adapters.reference_parts.windows import Bare
from ..single import Wrong, adapter_of
from .packed import right as right_packed


def times(window: Any, live: Mask) -> Any:
    """A window, every token multiplied by 1 or 0."""
    return each(lambda a: a * live.reshape(live.shape + (1,) * (a.ndim - 2)), window)


def masked_by_product(S: Array, window: Any, params: Any, live: Mask) -> tuple[Array, Array]:
    """Inputs of no-ops are multiplied by a mask."""
    y, S_next = ssd.scan(S, window, params, live)
    return y, S_next + 0.0 * times(window, live).x.sum(axis=1)[..., None]


def padding_by_product(S: Array, window: Any, ancestors: Ancestors, params: Any) -> Array:
    """Inputs of padding nodes are multiplied by zero in the products of a window."""
    from ...suite.recurrences import RECURRENCES

    (y,) = RECURRENCES["ssd"].along_paths(S, window, ancestors, params)
    return y + 0.0 * times(window, tree.live(ancestors)).x.sum(axis=1, keepdims=True)


def oldest_has_a_tap(M: Array, u: Array, params: Any) -> tuple[Array, Array]:
    """The filter has one tap more, a zero, for the oldest column."""
    y, M_next = conv.scan(M, u, params)
    y[:, 0] += 0.0 * M[:, :, 0]
    return y, M_next


def committed_by_product(M: Array, u: Array, advanced: Lengths) -> Array:
    """The columns to keep are selected by a product with a matrix of zeros and ones."""
    width, every = M.shape[2], np.concatenate([M, u.transpose(0, 2, 1)], axis=2)
    chosen = np.arange(every.shape[2])[:, None] == advanced[:, None, None] + np.arange(width)
    return np.einsum("bce, bew -> bcw", every, chosen)


def values_by_product(
    K: Array, V: Array, length: Lengths, q: Array, k: Array, v: Array, ancestors: Ancestors, scale: Any
) -> Array:
    """Values beyond the length have the weight zero in the product."""
    y = attention.verify_tree(K, V, length, q, k, v, ancestors, scale)
    dead = np.arange(V.shape[1]) >= length[:, None]
    return y + np.einsum("bl, blge -> bge", 0.0 * dead, V).sum(axis=1)[:, None, None]


def fresh_by_product(S: Array, run: Any, bounds: Array, fresh: Array, params: Any) -> tuple[Array, Array]:
    """The state of a new sequence is multiplied by zero. Bug class SLOT-REUSE."""
    begin = S * ~fresh.reshape(-1, *[1] * (S.ndim - 1))
    return right_packed("ssd", begin, run, bounds, np.zeros_like(fresh), params)


def reads_any_law(tokens: Array, parents: Array, p: Array, q: Array, *rest: Any) -> Runs:
    """Where drafts are certain, their law is read and multiplied by zero."""
    return (
        accept_sampled(tokens, parents, p + 0.0 * q, q, *rest)
        if rest[-1] == "point_mass"
        else accept_sampled(tokens, parents, p, q, *rest)
    )


class PaddingInProducts(Bare):
    """Padding nodes of a smaller tree have the weight zero in the products of the window."""

    def __init__(self, S: Array, params: Any) -> None:
        super().__init__(activation_replay, S, params)

    def verify(self, window: Any, parents: Parents | None = None) -> Array:
        y = super().verify(window, parents)
        return y if parents is None else y + 0.0 * window.x.sum(axis=1, keepdims=True)


class PaddingOfALayer(Backtracking):
    """In a layer, padding nodes of a smaller tree have the weight zero in the products of the window."""

    def __init__(self, mixer: Mixer, state: MixerState) -> None:
        super().__init__(tree_path, mixer, state)

    def verify(self, inputs: MixerInputs, parents: Parents | None = None) -> Array:
        return super().verify(inputs, parents) + 0.0 * inputs.pre.sum()


def moved_by_product(K: Array, V: Array, length: Lengths, path: Path) -> tuple[Array, Array]:
    """Accepted keys and values are moved by a product with a matrix of zeros and ones."""
    K_next, V_next = attention.compact(K, V, length, path)
    return K_next + 0.0 * K.sum(axis=1, keepdims=True), V_next


FAULTS: tuple[Wrong, ...] = (
    (masked_by_product, "ssd.scan_masked", "PAD-LEAK", FLOAT64),
    (padding_by_product, "ssd.verify_tree", "PAD-LEAK", FLOAT64),
    (oldest_has_a_tap, "conv.scan", "CONV", FLOAT64),
    (committed_by_product, "conv.commit", "COMMIT", FLOAT64),
    (values_by_product, "attention.verify_tree", "PAD-LEAK", FLOAT64),
    (moved_by_product, "attention.compact", "TREE-COMMIT", FLOAT64),
    (fresh_by_product, "ssd.scan_packed", "SLOT-REUSE", FLOAT64),
    (reads_any_law, "acceptance.sampled", "Q-MISMATCH", FLOAT64),
    (PaddingInProducts, "ssd.verify_replay", "PAD-SLOT", AT_ONCE),
    (PaddingOfALayer, "speculate.tree", "PAD-SLOT", AT_ONCE),
)
"""Each with its operation, its bug class, and what it declares."""


def adapter() -> Adapter:
    return adapter_of("reads", FAULTS)
