"""Commits inputs to the convolution's window, without computing outputs.

    ext = [M | u_0 .. u_{T-1}]               u the inputs of a window, or those of one sequence of a packed run   (1)
    M'  = ext[advanced : advanced + w]       along a path of a tree, u in the order of the path                   (2)

A program owns a tile of channels of one row: it reads the w columns of (2), from the state or from the inputs, and writes w.
Layout: M (s, c, w), oldest first, a pool that rows index through `slots`; a row with a negative slot is padding and is
skipped.
Bound by the bytes of the state.
"""

import triton
import triton.language as tl
from torch import Tensor

from ..launch import check_pool, strides
from ..row import Axes, Slots, launcher
from ..shared.tuning import H200
from . import conv_taps as conv
from .conv_taps import accepted_count, check_replay, check_width, load_columns, store_columns, tile


def traffic_bytes(b: int, c: int, w: int, advanced: int, *, state: int = 4, io: int = 2) -> int:
    """Bytes that must cross the memory bus for b live rows that advance equally far.

    Units: bytes; `state` and `io` are the bytes of an element.
    """
    replayed = min(advanced, w)
    return b * c * ((2 * w - replayed) * state + replayed * io)


@launcher
def conv_commit(
    axes: Axes,
    M: conv.Window,
    u: conv.Inputs,
    *,
    advanced: conv.Advanced | None = None,
    path: conv.Path | None = None,
    slots: Slots | None = None,
    block_c: int | None = None,
    num_warps: int | None = None,
) -> None:
    """Advances the windows M[slots], in place, by the accepted ones of the inputs u (b, t, c): equations (1) and (2).

    The first `advanced` (b) inputs are accepted, or the nodes `path` (b, l) padded with -1. `slots` (b) gives the window of
    each row
    (None: row b has slot b).

    Raises: ShapeMismatch, PrecisionError, ParameterError, before anything is written.
    """
    b, t, c, w = (axes[k] for k in "btcw")
    check_width(w)
    check_pool(axes["s"], b, slots)
    check_replay(u, advanced, path)
    block, warps = tile(c, b)
    block, warps = block_c or block, num_warps or warps
    longest = axes.get("l", 1)
    conv_commit_kernel[(triton.cdiv(c, block), b)](
        M, u, advanced, path, slots, None, None, *strides(M, 2), *strides(u, 2), *strides(path, 2),
        t, C=c, W=w, LONGEST=longest, BLOCK_C=block, BLOCK_W=triton.next_power_of_2(w),
        BLOCK_L=triton.next_power_of_2(longest), num_warps=warps,
    )  # fmt: skip


def commit_packed(M: Tensor, u: Tensor, bounds: Tensor, slots: Tensor | None, fresh: Tensor | None, block: int) -> None:
    """`conv_commit` of every sequence of a packed run u (t, c), which starts at bounds[b]; the arguments are already
    checked."""
    c, w = M.shape[1:]
    conv_commit_kernel[(triton.cdiv(c, block), bounds.shape[0] - 1)](
        M, u, None, None, slots, bounds, fresh, *strides(M, 2), 0, u.stride(0), 0, 0,
        u.shape[0], C=c, W=w, LONGEST=1, BLOCK_C=block, BLOCK_W=triton.next_power_of_2(w), BLOCK_L=1,
        num_warps=H200["conv_packed"]["commit_warps"],
    )  # fmt: skip


@triton.jit
def conv_commit_kernel(
    M, u, advanced, path, slots, bounds, fresh, stride_M_s, stride_M_c, stride_u_b, stride_u_t, stride_path_b, stride_path_l,
    tokens,
    C: tl.constexpr, W: tl.constexpr, LONGEST: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_W: tl.constexpr,
    BLOCK_L: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(1).to(tl.int64)
    slot = b
    if slots is not None:
        slot = tl.load(slots + b).to(tl.int64)
    if slot >= 0:
        c = tl.program_id(0).to(tl.int64) * BLOCK_C + tl.arange(0, BLOCK_C)
        inside = c < C
        has_state = True
        if fresh is not None:
            has_state = tl.load(fresh + b) == 0
        state = M + slot * stride_M_s
        inputs = u + b * stride_u_b
        nodes = None if path is None else path + b * stride_path_b
        if bounds is not None:
            begin = tl.load(bounds + b).to(tl.int64)
            first = tl.load(bounds + b + 1).to(tl.int64) - begin
            inputs += begin * stride_u_t
            end = tl.minimum(first, tokens - begin)
        else:
            first = accepted_count(advanced, nodes, b, tokens, stride_path_l, LONGEST, BLOCK_L)
            end = tokens
        window = load_columns(
            state, inputs, nodes, first, end, has_state, c, inside, stride_M_c, stride_u_t, stride_path_l, W, 0
        )  # (2)
        store_columns(state, window, c, inside, stride_M_c, W, BLOCK_C, BLOCK_W)
