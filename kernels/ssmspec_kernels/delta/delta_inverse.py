"""The inverse of I + A for A strictly lower triangular, (16 n, 16 n), n = 2, 4 or 8: blocks of 16, joined pairwise.

    X_b = (I + A_bb)^-1            forward substitution, 15 steps for all blocks of 16 at once           (1)
    (I + A)^-1 = [ X_1  0 ; -X_2 A_21 X_1  X_2 ]          two blocks of one size give one of twice the size (2)

Substitution takes a step per row; a product of whole matrices takes nine bf16 products, each after a fence
(docs/explanation/tuning.md). So 16 rows are substituted, and blocks joined by products of their own size, those of 16 and
32 in fp32, those of 64 as in `dots`.
Source: Higham, Accuracy and Stability of Numerical Algorithms, section 14.2.2: as stable as substitution, unlike powers of A.
"""

import triton
import triton.language as tl

from ..shared.dots import dot_both


@triton.jit
def inverted(A, SPLIT: tl.constexpr):
    """(I + A)^-1."""
    BLOCKS: tl.constexpr = A.shape[0] // 16
    t, n = tl.arange(0, 16), tl.arange(0, BLOCKS)
    on_diagonal = n[:, None, None, None] == n[None, None, :, None]
    own = tl.sum(tl.where(on_diagonal, tl.reshape(A, (BLOCKS, 16, BLOCKS, 16)), 0.0), axis=2)
    X = tl.where(t[None, :, None] == t[None, None, :], 1.0, 0.0) + tl.zeros([BLOCKS, 16, 16], tl.float32)
    for i in range(15):
        column = tl.sum(tl.where((t == i)[None, None, :], own, 0.0), axis=2)
        row = tl.sum(tl.where((t == i)[None, :, None], X, 0.0), axis=1)
        X -= column[:, :, None] * row[:, None, :]  # (1)
    X = _joined(X, A, SPLIT)
    if BLOCKS > 2:
        X = _joined(X, A, SPLIT)
    if BLOCKS > 4:
        X = _joined(X, A, SPLIT)
    return tl.reshape(X, A.shape)


@triton.jit
def _joined(X, A, SPLIT: tl.constexpr):
    """The blocks (n, 2 m, 2 m) on the diagonal of (I + A)^-1 from those of half the size, (2 n, m, m): (2)."""
    n: tl.constexpr = X.shape[0] // 2
    m: tl.constexpr = X.shape[1]
    block = tl.arange(0, A.shape[0]) // m
    below = (block % 2 == 1)[:, None] & (block[:, None] - 1 == block[None, :])
    A_21 = tl.sum(tl.reshape(tl.where(below, A, 0.0), (n, 2, m, 2 * n, m)), axis=3)
    A_21 = tl.sum(A_21, axis=1)
    half = tl.arange(0, 2)
    X = tl.reshape(X, (n, 2, m, m))
    is_first = (half == 0)[None, :, None, None]
    X_1, X_2 = tl.sum(tl.where(is_first, X, 0.0), axis=1), tl.sum(tl.where(is_first, 0.0, X), axis=1)
    if n == 1:
        A_21, X_1, X_2 = tl.reshape(A_21, (m, m)), tl.reshape(X_1, (m, m)), tl.reshape(X_2, (m, m))
    if m < 64:
        low = tl.dot(X_2, tl.dot(A_21, X_1, input_precision="ieee"), input_precision="ieee")
    else:
        low = dot_both(X_2, dot_both(A_21, X_1, SPLIT), SPLIT)
    low = tl.reshape(low, (n, 1, m, 1, m))
    row, column = half[None, :, None, None, None], half[None, None, None, :, None]
    whole = tl.where(row == column, X[:, :, :, None, :], tl.where(row > column, -low, 0.0))
    return tl.reshape(whole, (n, 2 * m, 2 * m))
