"""Commit by replay for the short convolution: the accepted products of a window enter the columns of all layers.

    ext = [S | u_0 .. u_{T-1}],  u = B x                                                      (1)
    S'  = ext[advanced : advanced + w - 1]       along a path, u in the order of the path      (2)

The window was verified from S, which was only read (`shortconv_scan`, `shortconv_tree`). Accepted are the first `advanced`
tokens, or the nodes of a path. Of several drafts of a sequence, `rows` selects the accepted one. A program owns a tile of
channels of one row of one layer; it reads the w - 1 columns of (2), from the state or as products, and writes w - 1. A row
that accepted nothing is neither read nor written. Layout: S (i, s, d, w - 1), layer by layer, rows through `slots`; a row
with a negative slot is padding and is skipped. Bound by the bytes of the states.
Source: as `ssmspec_ref.backtrack.activation_replay`.
"""

from collections.abc import Sequence
from typing import Annotated

import triton
import triton.language as tl
from torch import Tensor

from ssmspec_ref.errors import ShapeMismatch

from ..conv.conv_taps import Advanced, Path, accepted_count, check_replay, check_width, load_columns, store_columns, tile
from ..launch import check_pool, strides
from ..row import Axes, Slots, launcher, points, reads, updates
from ..shared.tuning import H200


def traffic_bytes(advanced: Sequence[int], layers: int, d: int, w: int, *, state: int = 4, io: int = 2) -> int:
    """Bytes that must cross the memory bus for live rows that accepted `advanced` tokens; cursors and paths are left out.

    Units: bytes; `state` and `io` are the bytes of an element.
    """
    kept = w - 1
    replayed = [min(accepted, kept) for accepted in advanced if accepted]
    return layers * d * sum((2 * kept - new) * state + 2 * new * io for new in replayed)


@launcher
def shortconv_commit(
    axes: Axes,
    S: Annotated[Tensor, updates("i s d q")],
    B: Annotated[Tensor, reads("i m t d")],
    x: Annotated[Tensor, reads("i m t d")],
    *,
    advanced: Advanced | None = None,
    path: Path | None = None,
    rows: Annotated[Tensor, points("b")] | None = None,
    slots: Slots | None = None,
    block_d: int | None = None,
    num_warps: int | None = None,
) -> None:
    """Advances the columns S[:, slots] of all layers, in place, by the accepted ones of a window's inputs B, x (i, m, t, d).

    Accepted are the first `advanced` (b), or the nodes `path` (b, l) padded with -1. `rows` (b) gives the row of the inputs
    for each row (None: row b uses row b). Only one row may use a slot.

    Raises: ShapeMismatch, PrecisionError, ParameterError, before anything is written.
    """
    check_replay(x, advanced, path)
    i, b, t, d, kept, longest = axes["i"], axes["b"], axes["t"], axes["d"], axes["q"], axes.get("l", 1)
    check_width(kept + 1)
    check_pool(axes["s"], b, slots)
    if rows is None and axes["m"] != b:
        raise ShapeMismatch(f"the inputs have {axes['m']} rows for {b} sequences; give rows, or a row for each")
    block, warps = tile(d, b)
    block, warps = block_d or block, num_warps or warps
    _shortconv_commit_kernel[(triton.cdiv(d, block), b, i)](
        S, B, x, advanced, path, rows, slots, None, None, *strides(S, 3), *strides(B, 3), *strides(x, 3), *strides(path, 2),
        t, D=d, KEPT=kept, LONGEST=longest, BLOCK_D=block, BLOCK_W=triton.next_power_of_2(kept),
        BLOCK_L=triton.next_power_of_2(longest), num_warps=warps,
    )  # fmt: skip


def commit_run(
    S: Tensor, B: Tensor, x: Tensor, bounds: Tensor, slots: Tensor | None, fresh: Tensor | None, block: int
) -> None:
    """The last columns of every sequence of a packed run B, x (t, d), which starts at bounds[b]; the arguments are already
    checked."""
    d, kept = S.shape[1:]
    _shortconv_commit_kernel[(triton.cdiv(d, block), bounds.shape[0] - 1, 1)](
        S, B, x, None, None, None, slots, bounds, fresh, 0, *strides(S, 2), 0, 0, B.stride(0), 0, 0, x.stride(0), 0, 0,
        x.shape[0], D=d, KEPT=kept, LONGEST=1, BLOCK_D=block, BLOCK_W=triton.next_power_of_2(kept), BLOCK_L=1,
        num_warps=H200["conv_packed"]["commit_warps"],
    )  # fmt: skip


@triton.jit
def _shortconv_commit_kernel(
    S, B, x, advanced, path, taken_rows, slots, bounds, fresh, stride_S_i, stride_S_s, stride_S_d, stride_B_i, stride_B_m,
    stride_B_t, stride_x_i, stride_x_m, stride_x_t, stride_path_b, stride_path_l, tokens,
    D: tl.constexpr, KEPT: tl.constexpr, LONGEST: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_W: tl.constexpr,
    BLOCK_L: tl.constexpr,
):  # fmt: skip
    layer, b = tl.program_id(2).to(tl.int64), tl.program_id(1).to(tl.int64)
    slot, m = b, b
    if slots is not None:
        slot = tl.load(slots + b).to(tl.int64)
    if taken_rows is not None:
        m = tl.load(taken_rows + b).to(tl.int64)
    if slot >= 0:
        d = tl.program_id(0).to(tl.int64) * BLOCK_D + tl.arange(0, BLOCK_D)
        inside = d < D
        state = S + layer * stride_S_i + slot * stride_S_s
        at_B, at_x = B + layer * stride_B_i + m * stride_B_m, x + layer * stride_x_i + m * stride_x_m
        nodes = None if path is None else path + b * stride_path_b
        if bounds is not None:
            begin = tl.load(bounds + b).to(tl.int64)
            first = tl.load(bounds + b + 1).to(tl.int64) - begin
            at_B += begin * stride_B_t
            at_x += begin * stride_x_t
            end = tl.minimum(first, tokens - begin)
        else:
            first = accepted_count(advanced, nodes, b, tokens, stride_path_l, LONGEST, BLOCK_L)
            end = tokens
        held, moves = True, first > 0
        if fresh is not None:
            held = tl.load(fresh + b) == 0
            moves = moves | (held == 0)
        if moves:
            window = load_columns(
                state, at_x, nodes, first, end, held, d, inside, stride_S_d, stride_x_t, stride_path_l, KEPT, 0, at_B,
                stride_B_t,
            )  # (2)  # fmt: skip
            store_columns(state, window, d, inside, stride_S_d, KEPT, BLOCK_D, BLOCK_W)
