"""Moves the accepted nodes' keys and values to the end of the committed ones: after a tree, in place.

    K[T + m] <- K[T + p_m],  V[T + m] <- V[T + p_m]      m = 0 .. c - 1,  c = |p|     (1)
    T' = T + c                                                                        (2)

T is the committed length of a row, p its accepted path. A rank that is its own source, p_m = m, is not touched: after a chain
nothing moves. Keys need no new rotation: node p_m has depth m, so it is already rotated to position T + m.

A program owns some channels of one head of one row, in all ranks, and reads all of them before it writes any (3): so
no source is lost, whatever the order of the path, and no other program touches its channels. T is not written in place, since
programs of the same row, and the other layers, still read it; (2) is written to its own tensor, or left to `commit_tokens`.

Layout: K, V (s, l, g, e), pools that rows index through `slots`; a row with a negative slot is padding and is skipped. Bound
by the bytes that move, twice.
"""

from typing import Annotated

import triton
import triton.language as tl
from torch import Tensor

from ssmspec_ref.errors import PrecisionError, ShapeMismatch

from ..launch import INDICES, check_pool
from ..row import Axes, Slots, launcher, reads, updates, writes
from ..shared.tuning import H200
from .tree_mask import check_nodes


def traffic_bytes(b: int, t: int, moved: int, g: int, e: int, *, io: int = 2, index: int = 8) -> int:
    """Bytes that must cross the memory bus: `moved` slots of K and V, read and written; paths and lengths.

    Units: bytes; `io` those of an element, `index` those of a node and of a length.
    """
    return 4 * io * moved * g * e + index * (b * t + b)


@launcher
def kv_compact(
    axes: Axes,
    K: Annotated[Tensor, updates("s l g e", size="io")],
    V: Annotated[Tensor, updates("s l g e", size="io")],
    path: Annotated[Tensor, reads("b t", INDICES)],
    length: Annotated[Tensor, reads("s", INDICES)],
    *,
    slots: Slots | None = None,
    advanced_length: Annotated[Tensor, writes("s", INDICES, "")] | None = None,
    block_e: int | None = None,
    num_warps: int = H200["kv_compact"]["warps"],
) -> None:
    """Moves the paths (b, t), padded with -1, after the `length[slot]` committed slots of each row: (1) of the module.

    `advanced_length` (s) receives (2), for the rows of the batch only. What exceeds the cache is not moved.

    Raises: ShapeMismatch, PrecisionError, ParameterError, Unsupported (more than 128 nodes), before anything is written.
    """
    b, t, length_, g, e = (axes[a] for a in "btlge")
    check_nodes(t)
    check_pool(axes["s"], b, slots)
    if V.dtype != K.dtype:
        raise PrecisionError(f"K is {K.dtype} and V is {V.dtype}; a cache has one type")
    if advanced_length is not None and advanced_length.data_ptr() == length.data_ptr():
        raise ShapeMismatch("advanced_length is length itself, which other programs still read; give a tensor of its own")
    rows = triton.next_power_of_2(t)
    tile = block_e or _tile(rows, e)
    _kv_compact_kernel[(triton.cdiv(e, tile), g, b)](
        K, V, path, length, slots, advanced_length, *K.stride()[:3], *V.stride()[:3], *path.stride(),
        T=t, L=length_, E=e, BLOCK_T=rows, BLOCK_E=tile, num_warps=num_warps,
    )  # fmt: skip


def _tile(rows: int, e: int) -> int:
    """Channels of a program: bounded elements of each of keys and of values."""
    return min(triton.next_power_of_2(e), max(16, H200["kv_compact"]["elements"] // rows))


@triton.jit
def _kv_compact_kernel(
    K, V, path, length, slots, advanced_length, stride_K_s, stride_K_l, stride_K_g, stride_V_s, stride_V_l, stride_V_g,
    stride_path_b, stride_path_t,
    T: tl.constexpr, L: tl.constexpr, E: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(2).to(tl.int64)
    g = tl.program_id(1).to(tl.int64)
    slot = b
    if slots is not None:
        slot = tl.load(slots + b).to(tl.int64)
    if slot >= 0:
        start = tl.load(length + slot).to(tl.int64)
        m = tl.arange(0, BLOCK_T).to(tl.int64)
        e = tl.program_id(0) * BLOCK_E + tl.arange(0, BLOCK_E)
        node = tl.load(path + b * stride_path_b + m * stride_path_t, mask=m < T, other=-1).to(tl.int64)
        moves = (node >= 0) & (node != m) & (start + node < L) & (start + m < L)
        inside = moves[:, None] & (e < E)[None, :]
        of_K = K + slot * stride_K_s + g * stride_K_g + e[None, :]
        of_V = V + slot * stride_V_s + g * stride_V_g + e[None, :]
        k = tl.load(of_K + (start + node)[:, None] * stride_K_l, mask=inside, other=0.0)
        v = tl.load(of_V + (start + node)[:, None] * stride_V_l, mask=inside, other=0.0)
        tl.debug_barrier()  # (3)
        tl.store(of_K + (start + m)[:, None] * stride_K_l, k, mask=inside)  # (1)
        tl.store(of_V + (start + m)[:, None] * stride_V_l, v, mask=inside)
        if advanced_length is not None:
            count = tl.sum((node >= 0).to(tl.int64), axis=0)
            first = (g == 0) & (tl.program_id(0) == 0)
            tl.store(advanced_length + slot, (start + count).to(advanced_length.dtype.element_ty), mask=first)  # (2)
