"""Grouped-query attention of long prompts over a cache of keys and values: packed sequences, each seeing its own past.

    s_il = scale q_i . K_l            for the slots l <= T + i of the sequence, i its own count of tokens      (1)
    m'   = max(m, max_l s_il)         block of slots by block (online softmax)                                 (2)
    p_il = exp(s_il - m')                                                                                      (3)
    d'   = exp(m - m') d + sum_l p_il,   o' = exp(m - m') o + sum_l p_il V_l,   y_i = o / d at the end         (4)

T slots were committed before the run, followed by the rotated keys and the values of its tokens. So a prompt may come in
pieces, or after a cached prefix. Slots after a block's last token are not read. A value that is
not finite makes its channel NaN in the tokens that see it, and in no other: if only some tokens of a block see a block of
slots, such a value is left out of the products, where its weight of 0 would give NaN.

If the device supports it (sm_90) and p is rounded, the blocks that all tokens see are loaded by descriptors (TMA), which
need no address computation.

Layout: q, y (t, h, e), all sequences in one run; K, V (s, l, g, e), pools that sequences reach through `slots`; query head h
reads key head h // (h / g). Scores and sums are fp32; p stays fp32 (`dots`), or is rounded to bf16 for its product with V
(`contract.Products`). Bound by the products.
"""

import math
from typing import Annotated

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from ssmspec_ref.errors import ParameterError, PrecisionError

from ..contract import Products, rounds
from ..launch import check_pool, divides, overlaps, strides
from ..row import Axes, Bounds, Slots, launcher, points, reads, writes
from ..shared.dots import dot_inputs, dot_onto
from ..shared.packed_chunks import check_packed, chunk_place, most_chunks
from ..shared.strides import PackedHeadStrides, PoolStrides
from ..shared.tuning import H200


def traffic_bytes(tokens: int, slots: int, h: int, g: int, e: int, *, io: int = 2) -> int:
    """Bytes that must cross the memory bus: queries, outputs, and `slots` slots of keys and of values over all sequences.

    Units: bytes; `io` is the bytes of an element.
    """
    return 2 * io * e * (tokens * h + slots * g)


@launcher
def causal_attention(
    axes: Axes,
    q: Annotated[Tensor, reads("t h e")],
    K: Annotated[Tensor, reads("s l g e")],
    V: Annotated[Tensor, reads("s l g e")],
    bounds: Bounds,
    *,
    length: Annotated[Tensor, points("s")] | None = None,
    scale: float | None = None,
    slots: Slots | None = None,
    out: Annotated[Tensor, writes("t h e")] | None = None,
    products: Products = "fp32",
    descriptors: bool | None = None,
    block_t: int = H200["causal_attention"]["block_t"],
    block_l: int = H200["causal_attention"]["block_l"],
    num_warps: int = H200["causal_attention"]["warps"],
    num_stages: int | None = None,
) -> Tensor:
    """The outputs (t, h, e) of a packed run of queries: equations (1) to (4).

    Sequence b has the tokens bounds[b] .. bounds[b + 1] - 1; bounds never decrease, and an empty sequence repeats one. Tokens
    outside, and those of a sequence with a negative slot, are neither read nor written. `length` (s) counts the committed
    slots T of each sequence of the pool (None: none); nothing beyond the end of the cache is read. `products` "bf16" rounds
    p, as torch does. `descriptors` (None: if the device supports it) loads whole blocks by TMA; it needs rounded products,
    and rows of K and V that start at multiples of 16 bytes.

    Raises: ShapeMismatch, PrecisionError, ParameterError, before anything is written.
    """
    t, h, g, e = (axes[a] for a in "thge")
    sequences = check_packed(axes, block_t)
    divides(g, h)
    check_pool(axes["s"], sequences, slots)
    if not q.dtype == K.dtype == V.dtype:
        raise PrecisionError(f"q, K, V are {q.dtype}, {K.dtype}, {V.dtype}; a matrix product takes one type")
    rounded = rounds(products, q.dtype)
    scale = e**-0.5 if scale is None else scale
    if not scale > 0:
        raise ParameterError(f"scale is {scale}; give scale > 0, or None for e^-1/2")
    y = torch.empty_like(q) if out is None else out
    row = H200["causal_attention"]
    num_stages = num_stages or row["stages_rounded" if rounded else "stages"]
    block_e = max(16, triton.next_power_of_2(e))
    near = rounded and (overlaps(q.device) if descriptors is None else descriptors) and _aligned(K) and _aligned(V)
    blocks = [TensorDescriptor.from_tensor(pool, [1, block_l, 1, block_e]) if near else None for pool in (K, V)]
    _causal_attention_kernel[(h, most_chunks(t, sequences, block_t))](
        q, K, V, *blocks, bounds, length, slots, y, PackedHeadStrides(*strides(q, 2)), PoolStrides(*strides(K, 3)),
        PoolStrides(*strides(V, 3)), PackedHeadStrides(*strides(y, 2)), t, sequences, scale * math.log2(math.e),
        E=e, L=axes["l"], HEADS_PER_KEY=h // g, ROUND=rounded, BLOCK_T=block_t, BLOCK_L=block_l,
        EDGE=min(block_l, row["edge"]), BLOCK_E=block_e, BLOCK_B=triton.next_power_of_2(sequences),
        STAGES=num_stages, num_warps=num_warps, num_stages=num_stages,
    )  # fmt: skip
    return y


def _aligned(pool: Tensor) -> bool:
    """Whether its rows are dense and start at multiples of 16 bytes, as a descriptor requires."""
    apart = [step * pool.element_size() for step in pool.stride()[:-1]]
    return pool.stride(-1) == 1 and pool.data_ptr() % 16 == 0 and all(offset > 0 and offset % 16 == 0 for offset in apart)


@triton.jit
def _fold(high, total, acc, q_t, K_l, V_l, visible, scale, MASKED: tl.constexpr, ROUND: tl.constexpr):
    """Adds one block of slots: (1) to (4), in base 2, `scale` with the factor log2(e)."""
    s, factor = dot_inputs(q_t, tl.trans(K_l)), scale
    if not ROUND:  # p is not rounded: exactly 1 for the largest score, which one fused operation with `scale` would not give
        s, factor = s * scale, 1.0
    if MASKED:
        s = tl.where(visible, s, float("-inf"))  # (1)
    above = tl.maximum(high, tl.max(s, axis=1) * factor)  # (2)
    p = tl.exp2(s * factor - above[:, None])  # (3)
    shrink = tl.exp2(high - above)
    acc = shrink[:, None] * acc
    acc = tl.dot(p.to(V_l.dtype), V_l, acc=acc, out_dtype=tl.float32) if ROUND else dot_onto(acc, p, V_l)
    return above, shrink * total + tl.sum(p, axis=1), acc  # (4)


@triton.jit
def _lost(x):
    """Where x is not finite."""
    f = x.to(tl.float32)
    return (f - f) != 0


@triton.jit
def _poison(at_y, whole, at_V, stride_V_l, last, first, seen, edge, in_e, EDGE: tl.constexpr):
    """Stores NaN in the channels of the tokens that see a value that is not finite, among the slots first .. seen - 1."""
    tl.debug_barrier()  # the stored values are overwritten
    for l0 in range(first, seen, EDGE):
        l = l0 + edge
        there = (l < seen)[:, None] & in_e[None, :]
        lost = _lost(tl.load(at_V + l[:, None] * stride_V_l, mask=there, other=0.0))
        sees = tl.where(l[None, :] <= last[:, None], 1.0, 0.0).to(tl.bfloat16)
        meets = tl.dot(sees, tl.where(lost, 1.0, 0.0).to(tl.bfloat16))
        tl.store(at_y, tl.full(whole.shape, float("nan"), at_y.dtype.element_ty), mask=whole & (meets > 0))


@triton.jit
def _causal_attention_kernel(
    q, K, V, blocks_K, blocks_V, bounds, length, slots, y, stride_q, stride_K, stride_V, stride_y, tokens, sequences, scale,
    E: tl.constexpr, L: tl.constexpr, HEADS_PER_KEY: tl.constexpr, ROUND: tl.constexpr, BLOCK_T: tl.constexpr,
    BLOCK_L: tl.constexpr, EDGE: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_B: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    # The longest rows start first, so that the last programs are short.
    c, h = tl.num_programs(1) - 1 - tl.program_id(1).to(tl.int64), tl.program_id(0).to(tl.int64)
    b, start, end = chunk_place(bounds, c, sequences, tokens, BLOCK_T, BLOCK_B)
    slot = b
    if slots is not None:
        slot = tl.load(slots + b, mask=b >= 0, other=-1).to(tl.int64)
    if slot >= 0:
        t = start + tl.arange(0, BLOCK_T)
        e = tl.arange(0, BLOCK_E)
        real, in_e = t < end, (e < E) | (E == BLOCK_E)
        q_t = tl.load(
            q + t[:, None] * stride_q.t + h * stride_q.h + e[None, :], mask=real[:, None] & in_e[None, :], other=0.0
        )
        last = t - tl.maximum(tl.load(bounds + b).to(tl.int64), 0)
        if length is not None:
            last += tl.load(length + slot).to(tl.int64)
        seen = tl.minimum(tl.max(tl.where(real, last, -1), axis=0) + 1, L)
        by_all = tl.minimum(tl.min(last, axis=0) + 1, L) // BLOCK_L * BLOCK_L
        at_K = K + slot * stride_K.s + (h // HEADS_PER_KEY) * stride_K.g + e[None, :]
        at_V = V + slot * stride_V.s + (h // HEADS_PER_KEY) * stride_V.g + e[None, :]
        high = tl.full([BLOCK_T], float("-inf"), tl.float32)
        total = tl.zeros([BLOCK_T], tl.float32)
        acc = tl.zeros([BLOCK_T, BLOCK_E], tl.float32)
        i = tl.arange(0, BLOCK_L).to(tl.int64)
        for l0 in tl.range(0, by_all, BLOCK_L, num_stages=STAGES):
            there = in_e[None, :] & (i >= 0)[:, None]
            if blocks_K is None:
                K_l = tl.load(at_K + (l0 + i)[:, None] * stride_K.l, mask=there, other=0.0)
                V_l = tl.load(at_V + (l0 + i)[:, None] * stride_V.l, mask=there, other=0.0)
            else:
                place = [slot.to(tl.int32), tl.cast(l0, tl.int32), (h // HEADS_PER_KEY).to(tl.int32), 0]
                K_l = tl.reshape(blocks_K.load(place), (BLOCK_L, BLOCK_E))
                V_l = tl.reshape(blocks_V.load(place), (BLOCK_L, BLOCK_E))
            high, total, acc = _fold(high, total, acc, q_t, K_l, V_l, there, scale, False, ROUND)
        poisoned = 0
        edge = tl.arange(0, EDGE).to(tl.int64)
        for l0 in tl.range(by_all, seen, EDGE, num_stages=1 if blocks_K is None else 2):
            l = l0 + edge
            there = (l < seen)[:, None] & in_e[None, :]
            K_l = tl.load(at_K + l[:, None] * stride_K.l, mask=there, other=0.0)
            V_l = tl.load(at_V + l[:, None] * stride_V.l, mask=there, other=0.0)
            lost = _lost(V_l)
            V_l = tl.where(lost, tl.zeros_like(V_l), V_l)
            visible = l[None, :] <= last[:, None]
            high, total, acc = _fold(high, total, acc, q_t, K_l, V_l, visible, scale, True, ROUND)
            poisoned = tl.maximum(poisoned, tl.max(tl.max(lost.to(tl.int32), axis=1), axis=0))
        at_y = y + t[:, None] * stride_y.t + h * stride_y.h + e[None, :]
        whole = real[:, None] & in_e[None, :]
        tl.store(at_y, (acc / total[:, None]).to(y.dtype.element_ty), mask=whole)
        if poisoned > 0:
            _poison(at_y, whole, at_V, stride_V.l, last, by_all, seen, edge, in_e, EDGE)
