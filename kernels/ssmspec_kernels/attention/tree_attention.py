"""Grouped-query attention of windows and trees over a cache of keys and values and over themselves, in parts of the cache.

    s_il = scale q_i . K_l     for the slots l < T of the cache, and for the nodes j that i sees         (1)
    m_s  = max s_il,   d_s = sum exp(s_il - m_s),   o_s = sum exp(s_il - m_s) V_l     of a part s        (2)
    m = max_s m_s,   y_i = sum_s exp(m_s - m) o_s / sum_s exp(m_s - m) d_s                               (3)

T slots are committed; slots from T on are unused, and are not read. i sees j if j comes no later (chain), or lies on the path
from the root to i (tree); a node that does not see itself is padding: no node sees it, and its y is 0. Queries and keys
are already rotated to their positions, T + depth. If requested, the window's keys and values are also stored in the slots
T + i (4), from where `kv_compact` moves the accepted ones. A value of the window that is not finite is left out of the
products, where its weight of 0 would give NaN, and makes its channel NaN in the nodes that see it, and in no other.

Part s of a row holds its slots s SPLIT .. (s + 1) SPLIT - 1; the last part is the window. The parts, the blocks inside them
(online softmax), and the order of (3) depend on the slot's index alone: a row has the same bits alone and in any batch.

A program owns one part, one key head, and BLOCK_M rows, each a node with one of the query heads of that key head; a second
launch merges. Tiles of 32 rows and 32 slots fit the registers. Layout: q, y (b, t, h, e), k, v (b, t, g, e),
K, V (s, l, g, e), pools that rows index through `slots`; a row with a negative slot is padding and is skipped. Bound by the
bytes of the cache.
"""

from typing import Annotated, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ssmspec_ref.errors import ParameterError, PrecisionError, ShapeMismatch

from ..launch import check_pool, divides, strides
from ..row import FP32, Ancestors, Axes, Slots, launcher, points, reads, updates, writes
from ..shared.dots import dot_inputs, dot_left
from ..shared.strides import GroupStrides, HeadStrides, MaskStrides, PoolStrides
from ..shared.tree_nodes import real_nodes, seen_nodes
from ..shared.tuning import H200
from .tree_mask import check_nodes


class Parts(NamedTuple):
    """Results of the parts for (3), fp32: o (s, b, h, t, e), m (s, b, h, t), d (s, b, h, t); the window is the last part."""

    o: Annotated[Tensor, updates("part b h t e", FP32, "fp32", "whole")]
    m: Annotated[Tensor, updates("part b h t", FP32, "fp32", "whole")]
    d: Annotated[Tensor, updates("part b h t", FP32, "fp32", "whole")]


def traffic_bytes(
    b: int, t: int, h: int, g: int, e: int, committed: int, parts: int, *, io: int = 2, append: bool = False
) -> int:
    """Bytes that must cross the memory bus: queries, outputs, window, `committed` slots over all rows, and the parts, twice.

    Units: bytes; `io` those of an element. `parts` counts those that hold a slot, over all rows; the windows are added.
    """
    windows = b * t * (2 * h + (4 if append else 2) * g)
    return io * e * (windows + 2 * committed * g) + 8 * (parts + b) * t * h * (e + 2)


def new_parts(b: int, t: int, h: int, e: int, count: int, device: torch.device) -> Parts:
    """Room for `count` parts of the cache and the window."""
    shape = (count + 1, b, h, t)
    o, m, d = (torch.empty(s, dtype=torch.float32, device=device) for s in ((*shape, e), shape, shape))
    return Parts(o, m, d)


@launcher
def tree_attention(
    axes: Axes,
    q: Annotated[Tensor, reads("b t h e")],
    k: Annotated[Tensor, reads("b t g e")],
    v: Annotated[Tensor, reads("b t g e")],
    K: Annotated[Tensor, updates("s l g e", size="io")],
    V: Annotated[Tensor, updates("s l g e", size="io")],
    length: Annotated[Tensor, points("s")],
    *,
    ancestors: Ancestors | None = None,
    scale: float | None = None,
    append: bool = False,
    slots: Slots | None = None,
    out: Annotated[Tensor, writes("b t h e")] | None = None,
    parts: Parts | None = None,
    split: int | None = None,
    block_m: int | None = None,
    block_l: int = H200["tree_attention"]["block_l"],
    num_warps: int = H200["tree_attention"]["warps"],
    num_stages: int = H200["tree_attention"]["stages"],
) -> Tensor:
    """The outputs (b, t, h, e) of windows of up to 128 nodes: equations (1) to (3) of the module.

    `length[slot]` slots are committed. `ancestors` (b, t, t) makes the window a tree. `append` writes (4); what exceeds the
    cache is dropped. `split` slots make a part; bits are comparable between calls with the same `split` and `block_l`.

    Raises: ShapeMismatch, PrecisionError, ParameterError, Unsupported (more nodes), before anything is written.
    """
    b, t, h, g, e, cache = (axes[a] for a in "bthgel")
    if axes.get("j", t) != t:
        raise ShapeMismatch(f"ancestors has {t} rows and {axes['j']} columns; give one of each for every node")
    check_nodes(t)
    divides(g, h)
    check_pool(axes["s"], b, slots)
    if not q.dtype == k.dtype == v.dtype == K.dtype == V.dtype:
        types = ", ".join(str(x.dtype) for x in (q, k, v, K, V))
        raise PrecisionError(f"q, k, v, K, V are {types}; a matrix product takes one type")
    scale = e**-0.5 if scale is None else scale
    if not scale > 0:
        raise ParameterError(f"scale is {scale}; give scale > 0, or None for e^-1/2")
    split = _split(cache, block_l) if split is None else split
    if split <= 0 or split % block_l:
        raise ParameterError(f"split is {split}; give a multiple of the block of {block_l} slots")
    count = triton.cdiv(cache, split)
    if axes.get("part", count + 1) != count + 1:
        raise ShapeMismatch(f"parts holds {axes['part']} parts, but {count + 1} are needed; make it with new_parts")
    of = new_parts(b, t, h, e, count, q.device) if parts is None else parts
    y = torch.empty_like(q) if out is None else out
    each, block_e = h // g, max(16, triton.next_power_of_2(e))
    row = H200["tree_attention"]
    block_m = block_m or min(row["block_m"], max(16, triton.next_power_of_2(t * each)))
    _attend_kernel[(triton.cdiv(t * each, block_m) * (count + 1), g, b)](
        q, k, v, K, V, length, ancestors, slots, *of,
        HeadStrides(*strides(q, 3)), GroupStrides(*strides(k, 3)), GroupStrides(*strides(v, 3)),
        PoolStrides(*strides(K, 3)), PoolStrides(*strides(V, 3)), MaskStrides(*strides(ancestors, 3)),
        scale, count, split, b, T=t, H=h, E=e, L=cache, EACH=each, APPEND=append,
        BLOCK_M=block_m, BLOCK_L=block_l, BLOCK_E=block_e, num_warps=num_warps, num_stages=num_stages,
    )  # fmt: skip
    _merge_kernel[(triton.cdiv(t, row["merged_nodes"]), h, b)](
        *of, length, ancestors, slots, y, HeadStrides(*strides(y, 3)), MaskStrides(*strides(ancestors, 3)), count, split, b,
        T=t, H=h, E=e, L=cache, BLOCK_T=row["merged_nodes"], BLOCK_E=block_e, num_warps=num_warps,
    )  # fmt: skip
    return y


def _split(cache: int, block_l: int) -> int:
    """Slots of a part: few parts, each of many slots."""
    row = H200["tree_attention"]
    return block_l * triton.cdiv(max(row["part_slots"], triton.cdiv(cache, row["parts"])), block_l)


@triton.jit
def _fold(high, total, acc, q_r, K_l, V_l, visible, scale):
    """Adds one block of slots or nodes: the online form of (2). A row that has seen nothing keeps m = -inf, d = 0, o = 0."""
    s = tl.where(visible, scale * dot_inputs(q_r, tl.trans(K_l)), float("-inf"))  # (1)
    above = tl.maximum(high, tl.max(s, axis=1))
    finite = tl.where(above == float("-inf"), 0.0, above)
    p = tl.exp(s - finite[:, None])
    shrink = tl.exp(high - finite)
    return above, shrink * total + tl.sum(p, axis=1), shrink[:, None] * acc + dot_left(p, V_l)


@triton.jit
def _finite(x):
    """x with 0 for values that are not finite, and a mask that is 1 there, otherwise 0."""
    f = x.to(tl.float32)
    lost = (f - f) != 0
    return tl.where(lost, 0.0, f).to(x.dtype), lost.to(tl.int32)


@triton.jit
def _nodes(ancestors, b, i, j, in_r, stride_anc, T: tl.constexpr):
    """Which nodes j of the window are real, and which of them each node i sees."""
    real = j < T
    visible = (j[None, :] <= i[:, None]) & real[None, :]
    if ancestors is not None:
        of_row = ancestors + b * stride_anc.b
        real = real_nodes(of_row, j, real, stride_anc)
        visible = seen_nodes(of_row, i, j, in_r, j < T, stride_anc) & real[None, :]
    return real, visible


@triton.jit
def _attend_kernel(
    q, k, v, K, V, length, ancestors, slots, o_s, m_s, d_s,
    stride_q, stride_k, stride_v, stride_K, stride_V, stride_anc, scale, count, split, rows,
    T: tl.constexpr, H: tl.constexpr, E: tl.constexpr, L: tl.constexpr, EACH: tl.constexpr, APPEND: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_L: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(2).to(tl.int64)
    g = tl.program_id(1).to(tl.int64)
    part = (tl.program_id(0) % (count + 1)).to(tl.int64)
    first = tl.program_id(0) // (count + 1) * BLOCK_M
    slot = b if slots is None else tl.load(slots + b).to(tl.int64)
    start = part * split
    end = start
    if slot >= 0:
        end = tl.minimum(tl.load(length + slot).to(tl.int64), L)
    if (slot >= 0) & ((part == count) | (start < end)):
        r = first + tl.arange(0, BLOCK_M).to(tl.int64)
        e = tl.arange(0, BLOCK_E)
        i, h = r // EACH, g * EACH + r % EACH
        of_q = q + b * stride_q.b + i[:, None] * stride_q.t + h[:, None] * stride_q.h + e[None, :]
        in_r, in_e = i < T, e < E
        alive = in_r
        if ancestors is not None:
            alive = real_nodes(ancestors + b * stride_anc.b, i, in_r, stride_anc)
        q_r = tl.load(of_q, mask=alive[:, None] & in_e[None, :], other=0.0)
        of_K = K + slot * stride_K.s + g * stride_K.g + e[None, :]
        of_V = V + slot * stride_V.s + g * stride_V.g + e[None, :]
        high = tl.full([BLOCK_M], float("-inf"), tl.float32)
        total = tl.zeros([BLOCK_M], tl.float32)
        acc = tl.zeros([BLOCK_M, BLOCK_E], tl.float32)
        if part < count:
            for l0 in range(start, tl.minimum(start + split, end), BLOCK_L):
                l = l0 + tl.arange(0, BLOCK_L).to(tl.int64)
                there = (l < end)[:, None] & in_e[None, :]
                K_l = tl.load(of_K + l[:, None] * stride_K.l, mask=there, other=0.0)
                V_l = tl.load(of_V + l[:, None] * stride_V.l, mask=there, other=0.0)
                high, total, acc = _fold(high, total, acc, q_r, K_l, V_l, (l < end)[None, :], scale)
        else:
            for j0 in range(0, T, BLOCK_L):
                j = j0 + tl.arange(0, BLOCK_L).to(tl.int64)
                real, visible = _nodes(ancestors, b, i, j, in_r, stride_anc, T)
                there = real[:, None] & in_e[None, :]
                at_k = k + b * stride_k.b + j[:, None] * stride_k.t + g * stride_k.g + e[None, :]
                at_v = v + b * stride_v.b + j[:, None] * stride_v.t + g * stride_v.g + e[None, :]
                k_j = tl.load(at_k, mask=there, other=0.0)
                v_j = tl.load(at_v, mask=there, other=0.0)
                known, lost = _finite(v_j)
                high, total, acc = _fold(high, total, acc, q_r, k_j, known, visible, scale)
                if tl.max(tl.max(lost, axis=1), axis=0) > 0:
                    meets = tl.dot(visible.to(tl.bfloat16), lost.to(tl.bfloat16))
                    acc = tl.where(meets > 0, float("nan"), acc)
                if APPEND:
                    fits = there & ((end + j < L) & (first == 0))[:, None]
                    tl.store(of_K + (end + j)[:, None] * stride_K.l, k_j, mask=fits)  # (4)
                    tl.store(of_V + (end + j)[:, None] * stride_V.l, v_j, mask=fits)
        at_s = ((part * rows + b) * H + h) * T + i
        tl.store(m_s + at_s, high, mask=in_r)  # (2)
        tl.store(d_s + at_s, total, mask=in_r)
        tl.store(o_s + at_s[:, None] * E + e[None, :], acc, mask=in_r[:, None] & in_e[None, :])


@triton.jit
def _merge_kernel(
    o_s, m_s, d_s, length, ancestors, slots, y, stride_y, stride_anc, count, split, rows,
    T: tl.constexpr, H: tl.constexpr, E: tl.constexpr, L: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(2).to(tl.int64)
    h = tl.program_id(1).to(tl.int64)
    slot = b
    if slots is not None:
        slot = tl.load(slots + b).to(tl.int64)
    if slot >= 0:
        i = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T).to(tl.int64)
        e = tl.arange(0, BLOCK_E)
        real, in_e = i < T, e < E
        end = tl.minimum(tl.load(length + slot).to(tl.int64), L)
        parts = (end + split - 1) // split
        high = tl.full([BLOCK_T], float("-inf"), tl.float32)
        total = tl.zeros([BLOCK_T], tl.float32)
        acc = tl.zeros([BLOCK_T, BLOCK_E], tl.float32)
        for turn in range(parts + 1):
            part = tl.where(turn < parts, turn, count).to(tl.int64)
            at = ((part * rows + b) * H + h) * T + i
            m = tl.load(m_s + at, mask=real, other=float("-inf"))
            d = tl.load(d_s + at, mask=real, other=0.0)
            o = tl.load(o_s + at[:, None] * E + e[None, :], mask=real[:, None] & in_e[None, :], other=0.0)
            above = tl.maximum(high, m)
            finite = tl.where(above == float("-inf"), 0.0, above)
            shrink, weight = tl.exp(high - finite), tl.exp(m - finite)
            total = shrink * total + weight * d
            acc = shrink[:, None] * acc + weight[:, None] * o  # (3)
            high = above
        value = acc / total[:, None]
        if ancestors is not None:
            itself = real_nodes(ancestors + b * stride_anc.b, i, real, stride_anc)
            value = tl.where(itself[:, None], value, 0.0)
        at_y = y + b * stride_y.b + i[:, None] * stride_y.t + h * stride_y.h + e[None, :]
        tl.store(at_y, value.to(y.dtype.element_ty), mask=real[:, None] & in_e[None, :])
