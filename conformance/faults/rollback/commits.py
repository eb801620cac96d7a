"""The window of the convolution, committed or read at the wrong inputs, over the reference's."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ssmspec_ref import conv, tree
from ssmspec_ref.contract import Adapter, NumericContract
from ssmspec_ref.shapes import Array
from ssmspec_ref.tree import paths as tree_paths

from ..single import single

FP32 = NumericContract()


def first_column(M: Array, u: Array, advanced: Array) -> Array:
    """The window starts at column 0 of the extended window, as if only the root had been accepted.
    vllm-project/vllm#40738."""
    return conv.commit(M, u, np.minimum(advanced, 1)).astype(np.float32)


def last_column(M: Array, u: Array, advanced: Array) -> Array:
    """The window ends at the last draft, however many were accepted. vllm-project/vllm#50272."""
    return conv.commit(M, u, np.where(advanced > 0, u.shape[1], 0)).astype(np.float32)


def zero_is_all(M: Array, u: Array, advanced: Array) -> Array:
    """A row without a window uses index -1, the last column. NVIDIA/TensorRT-LLM, bug class ACCEPT-IDX."""
    return conv.commit(M, u, np.where(advanced > 0, advanced, u.shape[1])).astype(np.float32)


def narrow_window(M: Array, u: Array, advanced: Array) -> Array:
    """The oldest input is not moved."""
    M_next = conv.commit(M, u, advanced).astype(np.float32)
    M_next[:, :, 0] = M[:, :, 0]
    return M_next


def partly_accepted(u: Array, advanced: Array) -> Array:
    """Rows (b 1 1) of which some inputs are accepted and some are not."""
    return ((advanced > 0) & (advanced < u.shape[1]))[:, None, None]


def partial_stays(M: Array, u: Array, advanced: Array) -> Array:
    """After a partly accepted window the window of the convolution is not updated. ekryski/mlx-swift-lm#218."""
    return np.where(partly_accepted(u, advanced), M, conv.commit(M, u, advanced)).astype(np.float32)


def taps_by_channels(M: Array, u: Array, advanced: Array) -> Array:
    """After a partial acceptance the restored window has taps and channels exchanged. sgl-project/sglang#26888."""
    M_next = conv.commit(M, u, advanced)
    other = M_next.swapaxes(1, 2).reshape(M.shape)
    return np.where(partly_accepted(u, advanced), other, M_next).astype(np.float32)


def first_nodes(M: Array, u: Array, path: Array) -> Array:
    """The first nodes of a tree are committed, as many as the path has. sgl-project/sglang#27463."""
    return conv.commit(M, u, (path >= 0).sum(axis=1)).astype(np.float32)


def rows_before(M: Array, u: Array, parents: Array, params: Any) -> Array:
    """The window of a node is the rows before it, not its ancestors. sgl-project/sglang#11133."""
    return conv.scan(M, np.where(parents[:, :, None] == tree.PADDING, 0.0, u), params)[0].astype(np.float32)


def grandparents(M: Array, u: Array, parents: Array, params: Any) -> Array:
    """A node whose parent is not the previous node is attached to its grandparent."""
    moved = parents.copy()
    for b, row in enumerate(parents):
        for node, parent in enumerate(row):
            if 0 < parent < node - 1:
                moved[b, node] = row[parent]
    seen = tree.ancestors(moved)
    return tree_paths.scan(lambda state, path: conv.scan(state, path, params), M, u, seen).astype(np.float32)


def four_taps(M: Array, u: Array, params: Any) -> tuple[Array, Array]:
    """Only the last four taps of a filter are applied, and a wider one is not refused. sgl-project/sglang#38622."""
    taps = np.arange(params.weight.shape[1])
    y, M_next = conv.scan(M, u, replace(params, weight=np.where(taps >= taps.size - 4, params.weight, 0.0)))
    return y.astype(np.float32), M_next.astype(np.float32)


def no_bias(M: Array, u: Array, params: Any) -> tuple[Array, Array]:
    """The bias is accepted but not added. tile-ai/tilelang-ascend#926."""
    y, M_next = conv.scan(M, u, type(params)(params.weight, None, params.activation))
    return y.astype(np.float32), M_next.astype(np.float32)


FAULTS: dict[str, tuple[tuple[Callable[..., Any], str], ...]] = {
    "conv.commit": (
        (first_column, "CONV"),
        (last_column, "ROLLBACK"),
        (zero_is_all, "ACCEPT-IDX"),
        (narrow_window, "CONV"),
        (partial_stays, "ROLLBACK"),
        (taps_by_channels, "CONV"),
    ),
    "conv.commit_path": ((first_nodes, "TREE-COMMIT"),),
    "conv.verify_tree": ((rows_before, "CONV"), (grandparents, "TREE-TOPO")),
    "conv.scan": ((no_bias, "VARIANT"), (four_taps, "CONV")),
}
"""The operation of each, and its bug class."""


subject = partial(single, contract=FP32)


def adapter() -> Adapter:
    return Adapter("faulty commits", "1", tuple(subject(o, run) for o, runs in FAULTS.items() for run, _ in runs))
