"""Trees of draft tokens: parents in topological order, node 0 the root, -2 padding.

mask[i, j] = 1 iff j lies on the path from the root to i, i included. A padding node has an all-zero row and column.

Which masks have a tree scan
----------------------------
Write anc(i) for row i of the mask. The output at node i must be that of the recurrence over anc(i), in order of index, so
input j reaches it through the decays of the tokens of anc(i) after j. A closed form has only sums over whole rows:

    recurrence    product of a_k over the k of anc(i) with k > j                                       (a)
    closed form   exp(At_i - At_j) = product of a_k over anc(i) / product of a_k over anc(j)           (b)

Each a_k is arbitrary, so (a) = (b) iff each a_k has the same exponent on both sides: [k in anc(i), k > j] =
[k in anc(i)] - [k in anc(j)], that is

    anc(j) = {k in anc(i) : k <= j}    for every j in anc(i)                                           (N)

The delta rule needs the same: its correction u_j was solved over anc(j), and node i must use the same one. So does the
convolution, whose output at j was computed along anc(j). (N) is thus necessary and sufficient for all of them.

(N) says that the ancestor sets below a node nest, each an initial segment of the next. With parent(i) the last strict
ancestor of i, it is the same as

    anc(i) = anc(parent(i)) and i    for every i, where a root has no parent                           (F)

(F) is (N) at j = parent(i). Conversely (N) follows from (F) by induction over i, because every other ancestor of i is one of
parent(i). A nested mask is therefore a forest: trees, several roots that all start from the same state, padding anywhere.
Transitive masks that are not forests fail: in the diamond where 3 sees 0, 1 and 2 while 1 and 2 do not see each other, (b)
lets 1 decay 2 and 2 decay 1, which no order of the tokens does. The paper remarks that an arbitrary mask may be used; this is
true only for forests.

Source: STree, section 3 (mask, equation 2; A_tree, equation 6); the condition is ours.
"""

import numpy as np
from numpy import einsum, exp, take_along_axis, where

from ..checks import checked
from ..errors import NotNested, NotTopological, ShapeMismatch
from ..shapes import Ancestors, Array, Lengths, Mask, Parents

PADDING = -2


@checked
def check_parents(parents: Parents) -> None:
    """Raise NotTopological unless each row is a tree: parents[0] = -1, then 0 <= parents[i] < i, then padding.

    A row without a window is all padding.

    Raises: NotTopological.
    """
    for b, row in enumerate(parents):
        if (row == PADDING).all():
            continue
        if row[0] != -1:
            raise NotTopological(f"row {b}: node 0 has parent {row[0]}; node 0 is the root, so its parent must be -1")
        real = row != PADDING
        size = int(real.sum())
        if not real[:size].all():
            raise NotTopological(
                f"row {b}: there is padding between nodes, parents {row.tolist()}; put padding after the last node"
            )
        for i in range(1, size):
            if not 0 <= row[i] < i:
                raise NotTopological(
                    f"row {b}: node {i} has parent {row[i]}; a parent comes before its child: give 0 to {i - 1}"
                )


@checked
def ancestors(parents: Parents) -> Ancestors:
    """The tree mask: L[0] = e_0 (1), L[i] = L[parent(i)] or e_i (2).

    Raises: NotTopological.
    Source: STree, section 3 (tree mask).
    """
    check_parents(parents)
    rows, nodes = parents.shape
    mask = np.zeros((rows, nodes, nodes), dtype=bool)
    for b in range(rows):
        for i in range(nodes):
            if parents[b, i] == PADDING:
                continue
            if i > 0:
                mask[b, i] = mask[b, parents[b, i]]  # (2)
            mask[b, i, i] = True  # (1) (2)
    return mask


@checked
def depths(parents: Parents) -> Parents:
    """The depth of every node, the root at 0; padding is at -1. Raises: NotTopological."""
    return ancestors(parents).sum(axis=2) - 1


def sizes(parents: Parents) -> Lengths:
    """The number of nodes of each row, without padding."""
    return (parents != PADDING).sum(axis=1)


@checked
def unrolled(parents: Parents) -> tuple[Lengths, Lengths]:
    """The states and the tokens of each row's tree if every leaf becomes a separate sequence with its whole path.

    states = the number of leaves (1)    tokens = sum over the leaves of depth + 1 (2)

    A packed tree needs one state and as many tokens as it has nodes. The paper prints 90 tokens for the full binary tree of 5
    layers; its 16 leaves with 5 tokens each make 80, in line with 8 x 4 = 32 and 32 x 6 = 192 in the rows above and below it.

    Raises: NotTopological.
    Source: STree, figure 3 (left).
    """
    mask = ancestors(parents)
    leaf = mask.sum(axis=1) == 1  # the ancestor of itself alone
    return leaf.sum(axis=1), (leaf * mask.sum(axis=2)).sum(axis=1)  # (1) (2)


@checked
def check_nested(ancestors: Ancestors) -> None:
    """Raise unless the mask satisfies (F) of the module, hence (N); a node without ancestors is padding.

    Raises: ShapeMismatch, NotTopological (a node sees a later one), NotNested (names the two nodes).
    """
    nodes = ancestors.shape[1]
    if ancestors.shape[2] != nodes:
        raise ShapeMismatch(f"the mask has {nodes} rows and {ancestors.shape[2]} columns; give one of each for every node")
    for b, i, j in np.argwhere(np.triu(ancestors, 1)):
        raise NotTopological(
            f"row {b}: node {i} sees node {j}, which comes later; order the nodes so that parents come first"
        )
    itself = einsum("btt -> bt", ancestors)
    for b, i in np.argwhere(ancestors.any(axis=2) & ~itself):
        raise NotNested(
            f"row {b}: node {i} sees other nodes but not itself; set mask[{i}, {i}], or clear its row for padding"
        )
    last, own = _last(ancestors), itself[:, :, None] & np.eye(nodes, dtype=bool)
    above = take_along_axis(ancestors, np.maximum(last, 0)[:, :, None], axis=1) & (last >= 0)[:, :, None]
    for b, i, k in np.argwhere(ancestors != (above | own)):  # (F)
        j = last[b, i]
        raise NotNested(
            f"row {b}: node {i} sees node {j}, but only one of them sees node {k}; "
            f"{j} must see exactly what {i} sees up to {j}: make the mask a forest, or unroll it into separate rows"
        )


def _last(ancestors: Ancestors) -> Parents:
    """The last strict ancestor of every node, -1 if there is none."""
    return where(np.tril(ancestors, -1), np.arange(ancestors.shape[1]), -1).max(axis=2)


def live(ancestors: Ancestors) -> Mask:
    """The nodes that are not padding."""
    return einsum("btt -> bt", ancestors).copy()


@checked
def parents(ancestors: Ancestors) -> Parents:
    """The last strict ancestor of every node: -1 for a root, -2 for padding.

    Raises: ShapeMismatch, NotTopological, NotNested.
    """
    check_nested(ancestors)
    return where(live(ancestors), _last(ancestors), PADDING)


def decays(ancestors: Ancestors, log_a: Array) -> tuple[Array, Array]:
    """The decay at node i of the initial state, and of the input of its ancestor j.

    At_i = sum_j L_ij log a_j (1)    exp(At_i) (2)    exp(At_i - At_j) where L_ij, else 0 (3)

    `log_a` is (b j ..), with any further axes: heads, channels, states; the results are (b t ..) and (b t j ..).

    The mask is applied before exp. For an ancestor the exponent is a sum of log decays, at most 0; for any other node it may
    be as large as a whole path's decay, so that exp overflows, and 0 * inf is NaN. The node's own input has exponent 0: it is
    not decayed.

    Units: log_a is a finite natural logarithm. With strong decays the difference (3) has an absolute error of about u |At|,
    u = 2^-53, however small it is.

    Source: STree, section 3, equation 6 and the two lines below it.
    """
    At = einsum("btj, bj... -> bt...", ancestors, log_a)  # (1)
    from_state = exp(At)  # (2)
    seen = ancestors.reshape(ancestors.shape + (1,) * (log_a.ndim - 2))
    between = exp(where(seen, At[:, :, None] - At[:, None], -np.inf))  # (3)
    return from_state, between
