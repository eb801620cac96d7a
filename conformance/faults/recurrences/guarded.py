"""What is never read is read through a guard that hides it: NaN, infinity and values that no token has become 0.

Right while padding holds such values, and wrong with those that padding has in production: of other tokens.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from ssmspec_ref import conv, delta, tree
from ssmspec_ref.backtrack import activation_replay
from ssmspec_ref.contract import FLOAT64, Adapter
from ssmspec_ref.records import each
from ssmspec_ref.shapes import Ancestors, Array, Lengths, Mask, Parents, Path

from ...adapters.reference_parts import attention
from ...adapters.reference_parts.acceptance import Runs, accept_logits
from ...adapters.reference_parts.backtracking import AT_ONCE
from ...adapters.reference_parts.windows import Bare
from ..single import Wrong, adapter_of
from ..whole_layers.layers import Right

LARGEST = 100.0
"""Values beyond it are taken for padding."""


def guarded(a: Array, dead: Mask) -> Array:
    """The dead entries (b t ..) that hold a number of ordinary size; 0 at all others."""
    at = np.broadcast_to(dead.reshape(dead.shape + (1,) * (a.ndim - 2)), a.shape)
    return np.where(at & (np.abs(np.nan_to_num(a, posinf=np.inf)) < LARGEST), np.nan_to_num(a), 0.0)


def padding_decays(S: Array, window: Any, params: Any, live: Mask) -> tuple[Array, Array]:
    """The log decay of a no-op is read, and at most 0: a large one, or NaN, decays nothing. Bug class PAD-LEAK."""
    g = np.minimum(np.nan_to_num(window.g, posinf=0.0), 0.0)
    silent = each(lambda a: np.where(live.reshape(live.shape + (1,) * (a.ndim - 2)), a, 0.0), window)
    return delta.scan(S, replace(silent, g=g), params)


def padding_of_a_size(M: Array, u: Array, live: Mask, params: Any) -> tuple[Array, Array]:
    """A convolution takes for padding what is no number of ordinary size, whatever the mask says."""
    real = live | (guarded(u, ~live) != 0.0).any(axis=2)
    y, M_next = conv.scan_masked(M, np.where(real[..., None], u, 0.0), real, params)
    return y, M_next


def padding_nodes_add(S: Array, window: Any, ancestors: Ancestors, params: Any) -> Array:
    """The inputs of padding nodes are added to the output of every node."""
    from ...suite.recurrences import RECURRENCES

    (y,) = RECURRENCES["ssd"].along_paths(S, window, ancestors, params)
    return y + guarded(window.x, ~tree.live(ancestors)).sum(axis=1, keepdims=True)


def keeps_the_next_one(M: Array, u: Array, advanced: Lengths) -> Array:
    """The first input that is not accepted is added to the newest column of the window."""
    after = conv.commit(M, u, advanced)
    tokens = np.arange(u.shape[1])
    after[:, :, -1] += guarded(u, tokens == advanced[:, None]).sum(axis=1)
    return after


def keeps_a_sibling(M: Array, u: Array, path: Path) -> Array:
    """All nodes that are not on the path are added to the newest column of the window."""
    after = conv.commit_path(M, u, path)
    dead = np.ones(path.shape, dtype=bool)
    rows, nodes = np.nonzero(path >= 0)
    dead[rows, path[rows, nodes]] = False
    after[:, :, -1] += guarded(u, dead).sum(axis=1)
    return after


def values_past_the_length(
    K: Array, V: Array, length: Lengths, q: Array, k: Array, v: Array, ancestors: Ancestors, scale: Any
) -> Array:
    """Values beyond the length have a small weight."""
    y = attention.verify_tree(K, V, length, q, k, v, ancestors, scale)
    stale = guarded(V, np.arange(V.shape[1]) >= length[:, None])
    return y + 0.01 * stale.sum(axis=(1, 2))[:, None, None]


def rows_of_padding(tokens: Array, parents: Array, logits: Array, budget: Array, eos: tuple[int, ...]) -> Runs:
    """The largest logit of a node is searched in its row and in those of padding nodes."""
    padding = guarded(logits, parents == tree.PADDING).max(axis=1, keepdims=True)
    return accept_logits(tokens, parents, np.where(padding > 0.0, np.maximum(padding, logits), logits), budget, eos)


class PaddingAdds(Bare):
    """The inputs of padding nodes are added to the output of every node of the window."""

    def __init__(self, S: Array, params: Any) -> None:
        super().__init__(activation_replay, S, params)

    def verify(self, window: Any, parents: Parents | None = None) -> Array:
        y = super().verify(window, parents)
        if parents is None:
            return y
        return y + guarded(window.x, parents == tree.PADDING).sum(axis=1, keepdims=True)


class PadsAdd(Right):
    """The padding of a row is added to all of its outputs."""

    def forward(self, u: Array, live: Any = None) -> Array:
        out = super().forward(u, live)
        return out if live is None else out + guarded(u, ~live).sum(axis=(1, 2))[:, None, None]


FAULTS: tuple[Wrong, ...] = (
    (padding_decays, "delta.scan_masked", "PAD-LEAK", FLOAT64),
    (padding_of_a_size, "conv.scan_masked", "PAD-LEAK", FLOAT64),
    (padding_nodes_add, "ssd.verify_tree", "PAD-LEAK", FLOAT64),
    (keeps_the_next_one, "conv.commit", "COMMIT", FLOAT64),
    (keeps_a_sibling, "conv.commit_path", "TREE-COMMIT", FLOAT64),
    (values_past_the_length, "attention.verify_tree", "PAD-LEAK", FLOAT64),
    (rows_of_padding, "acceptance.greedy_logits", "PAD-LEAK", FLOAT64),
    (PaddingAdds, "ssd.verify_replay", "PAD-SLOT", AT_ONCE),
    (PadsAdd, "layer.left_pad", "PAD-LEAK", FLOAT64),
    (PadsAdd, "layer.right_pad", "PAD-LEAK", FLOAT64),
)
"""Each with its operation, its bug class, and what it declares."""


def adapter() -> Adapter:
    return adapter_of("guards", FAULTS)
