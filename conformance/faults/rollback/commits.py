"""The window of the convolution, committed or read at the wrong inputs, over the reference's."""

from typing import Any

import numpy as np

from ssmspec_ref import conv, tree
from ssmspec_ref.shapes import Array

from ...mistakes.mistake import after, before
from ...mistakes.operators import at_most
from ..fault import FP32, planted


def narrow_window(M: Array, M_next: Array) -> Array:
    """The oldest input is not moved."""
    M_next[:, :, 0] = M[:, :, 0]
    return M_next


def partly_accepted(u: Array, advanced: Array) -> Array:
    """Rows (b 1 1) of which some inputs are accepted and some are not."""
    return ((advanced > 0) & (advanced < u.shape[1]))[:, None, None]


def partial_stays(M: Array, M_next: Array, u: Array, advanced: Array) -> Array:
    """After a partly accepted window the window of the convolution is not updated. ekryski/mlx-swift-lm#218."""
    return np.where(partly_accepted(u, advanced), M, M_next)


def taps_by_channels(M: Array, M_next: Array, u: Array, advanced: Array) -> Array:
    """After a partial acceptance the restored window has taps and channels exchanged. sgl-project/sglang#26888."""
    return np.where(partly_accepted(u, advanced), M_next.swapaxes(1, 2).reshape(M.shape), M_next)


def first_nodes(M: Array, u: Array, path: Array) -> Array:
    """The first nodes of a tree are committed, as many as the path has. sgl-project/sglang#27463."""
    return conv.commit(M, u, (path >= 0).sum(axis=1)).astype(np.float32)


def rows_before(M: Array, u: Array, parents: Array, params: Any) -> Array:
    """The window of a node is the rows before it, not its ancestors. sgl-project/sglang#11133."""
    return conv.scan(M, np.where(parents[:, :, None] == tree.PADDING, 0.0, u), params)[0].astype(np.float32)


def grandparents(parents: Array) -> Array:
    """A node whose parent is not the previous node is attached to its grandparent."""
    moved = parents.copy()
    for b, row in enumerate(parents):
        for node, parent in enumerate(row):
            if 0 < parent < node - 1:
                moved[b, node] = row[parent]
    return moved


def last_four(weight: Array) -> Array:
    taps = np.arange(weight.shape[1])
    return np.where(taps >= taps.size - 4, weight, 0.0)


FAULTS = planted(
    *(
        (run, operation, bug_class, FP32)
        for run, operation, bug_class in (
            (
                before(
                    "first_column",
                    "The window starts at column 0 of the extended window, as if only the root had been accepted. "
                    "vllm-project/vllm#40738.",
                    advanced=at_most(1),
                ),
                "conv.commit",
                "CONV",
            ),
            (
                before(
                    "last_column",
                    "The window ends at the last draft, however many were accepted. vllm-project/vllm#50272.",
                    advanced=lambda advanced, u: np.where(advanced > 0, u.shape[1], 0),
                ),
                "conv.commit",
                "ROLLBACK",
            ),
            (
                before(
                    "zero_is_all",
                    "A row without a window uses index -1, the last column. NVIDIA/TensorRT-LLM, bug class ACCEPT-IDX.",
                    advanced=lambda advanced, u: np.where(advanced > 0, advanced, u.shape[1]),
                ),
                "conv.commit",
                "ACCEPT-IDX",
            ),
            (after(M_next=narrow_window), "conv.commit", "CONV"),
            (after(M_next=partial_stays), "conv.commit", "ROLLBACK"),
            (after(M_next=taps_by_channels), "conv.commit", "CONV"),
            (first_nodes, "conv.commit_path", "TREE-COMMIT"),
            (rows_before, "conv.verify_tree", "CONV"),
            (before(parents=grandparents), "conv.verify_tree", "TREE-TOPO"),
            (
                before("no_bias", "The bias is accepted but not added. tile-ai/tilelang-ascend#926.", bias=None),
                "conv.scan",
                "VARIANT",
            ),
            (
                before(
                    "four_taps",
                    "Only the last four taps of a filter are applied, and a wider one is not refused. "
                    "sgl-project/sglang#38622.",
                    weight=last_four,
                ),
                "conv.scan",
                "CONV",
            ),
        )
    )
)
