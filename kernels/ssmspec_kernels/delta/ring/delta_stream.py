"""A tile (k, v) of the state of a replay buffer for the delta rule: whole in registers, or some rows of k at a time.

A streamed tile is read twice if a row flushes: computing the outputs needs no registers for it, and

    S_0' = left S_0 + K^T U        K the held keys (l), U (l, v) the weighted writes of each                 (1)

is written in a second pass, which the level-2 cache should serve.
"""

import triton
import triton.language as tl

from ...shared.dots import dot_cut_right, dot_right, split3
from .delta_ring import place


@triton.jit
def load_tile(at, inside, WHOLE: tl.constexpr):
    """A tile of the state, zeros outside."""
    if WHOLE:
        return tl.load(at).to(tl.float32)
    return tl.load(at, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def store_tile(at, state, inside, WHOLE: tl.constexpr):
    if WHOLE:
        tl.store(at, state.to(at.dtype.element_ty))
    else:
        tl.store(at, state.to(at.dtype.element_ty), mask=inside)


@triton.jit
def fold_stream(
    at_head, row_stride, left, keys, first, past, stride_l, U, k, u, K: tl.constexpr, ROWS: tl.constexpr,
    CAPACITY: tl.constexpr, SPLIT: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """(1), ROWS of k at a time, over the entries from `first` on that are `past`; `keys` points to those of the group.

    If `k` is given, a pointer, k u^T of a token that is not an entry is added too.
    """
    r, at_l = tl.arange(0, ROWS), place(first + tl.arange(0, U.shape[0]), CAPACITY)
    hi, mid, lo = split3(U)
    at_r = at_head + r[:, None].to(tl.int64) * row_stride
    for _ in tl.range(0, K // ROWS, num_stages=STAGES):
        part = tl.load(at_r).to(tl.float32)
        if k is not None:
            k_r = tl.load(k + r).to(tl.float32)
        keys_r = tl.trans(tl.load(keys + at_l[:, None] * stride_l + r[None, :], mask=past[:, None], other=0.0))
        part = left * part
        if k is not None:
            part += k_r[:, None] * u[None, :]
        if SPLIT:
            part = dot_cut_right(part, keys_r, hi, mid, lo)
        else:
            part += dot_right(keys_r, U)
        tl.store(at_r, part.to(at_r.dtype.element_ty))
        r += ROWS
        at_r += ROWS * row_stride
