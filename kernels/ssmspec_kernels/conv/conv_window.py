"""Causal convolution over a window of tokens, after the replay of what was accepted of the previous one.

    ext = [M | v_0 .. v_{J-1}]               v the inputs of the previous window                      (1)
    M_0 = ext[advanced : advanced + w]       along a path of a tree, v in the order of the path       (2)
    M_t = [M_{t-1} without its oldest, u_t]  for a real token, M_{t-1} for a no-op                    (3)
    y_t = act(bias + sum_w weight_w M_t,w)   for a real token, 0 for a no-op                          (4)

A program owns a tile of channels of one row and holds the window in registers, so that a column of the state and an input are
read once. It stores the last M_t, or only M_0 if the new window may still be rejected, or nothing. Layout: M (s, c, w),
oldest first, a pool that rows index through `slots`; a row with a negative slot is padding and is skipped.
Bound by the bytes of the inputs.
"""

from typing import Annotated, Literal, get_args

import torch
import triton
import triton.language as tl
import triton.language.extra.cuda  # griddepcontrol
from torch import Tensor

from ssmspec_ref.errors import ParameterError, Unsupported

from ..launch import AS_WRITTEN, check_pool, overlapped, strides
from ..row import Axes, Live, Slots, launcher, reads
from . import conv_taps as conv
from .conv_taps import accepted_count, check_replay, check_width, filtered, load_columns, load_filters, store_columns, tile

LONGEST = 64
Write = Literal["final", "committed", "none"]


def traffic_bytes(
    b: int, t: int, c: int, w: int, *, state: int = 4, io: int = 2, keep: Write = "final", advanced: int | None = None
) -> int:
    """Bytes that must cross the memory bus for b live rows of t real tokens; parameters are left out.

    The oldest column of M_0 enters no output: it is read only where M_0 may have to be written. `advanced` inputs of a
    previous window were accepted (None: there was none).

    Units: bytes; `state` and `io` are the bytes of an element.
    """
    columns = w - 1 if keep == "none" or advanced is None else w
    replayed = min(advanced or 0, columns)
    written = 0 if keep == "none" else w
    return b * c * ((columns - replayed + written) * state + (replayed + 2 * t) * io)


@launcher
def conv_window(
    axes: Axes,
    M: conv.Window,
    u: conv.Inputs,
    weight: conv.Taps,
    *,
    bias: conv.Bias | None = None,
    activation: bool = True,
    slots: Slots | None = None,
    live: Live | None = None,
    previous: Annotated[Tensor, reads("b j c")] | None = None,
    advanced: conv.Advanced | None = None,
    path: conv.Path | None = None,
    keep: Write = "final",
    out: conv.Outputs | None = None,
    block_c: int | None = None,
    num_warps: int | None = None,
) -> Tensor:
    """The outputs (b, t, c) of a window of inputs u (b, t, c), equations (1) to (4), and in M[slots] the state that `keep`
    selects.

    `live` (b, t) marks the real tokens; a no-op's input is not read. `previous` (b, j, c) are the inputs of the window
    before, of which the first `advanced` (b), or the nodes `path` (b, l) padded with -1, were accepted; a path is not longer
    than the window. `keep` is "final" (the window after all tokens), "committed" (after the accepted ones only) or "none".
    `slots` (b) gives the window of each row (None: row b has slot b). The output of a padding row is not written.

    Raises: ShapeMismatch, PrecisionError, ParameterError, Unsupported (a window of more than 64 tokens), before anything is
    written.
    """
    b, t, c, w = (axes[k] for k in "btcw")
    check_width(w)
    check_pool(axes["s"], b, slots)
    check_replay(previous, advanced, path)
    if keep not in get_args(Write):
        raise ParameterError(f"keep is {keep!r}; give 'final', 'committed' or 'none'")
    if keep == "committed" and previous is None:
        raise ParameterError("keep is 'committed' without previous inputs; give previous, or keep 'final' or 'none'")
    if t > LONGEST:
        raise Unsupported(f"the window holds {t} tokens, and this kernel walks at most {LONGEST}; call conv_packed")
    y = torch.empty_like(u) if out is None else out
    block, warps = tile(c, b)
    block, warps = block_c or block, num_warps or warps
    longest = axes.get("l", 1)
    _conv_window_kernel[(triton.cdiv(c, block), b)](
        M, u, weight, bias, slots, live, previous, advanced, path, y,
        *strides(M, 2), *strides(u, 2), *strides(weight, 2), *strides(live, 2), *strides(previous, 2), *strides(path, 2),
        *strides(y, 2),
        T=t, C=c, W=w, PREVIOUS=axes.get("j", 0), LONGEST=longest, ACTIVATION=activation,
        COMMIT=keep == "committed", FINAL=keep == "final", BLOCK_C=block, BLOCK_W=triton.next_power_of_2(w),
        BLOCK_L=triton.next_power_of_2(longest), num_warps=warps, **AS_WRITTEN, **overlapped(u.device),
    )  # fmt: skip
    return y


@triton.jit
def _conv_window_kernel(
    M, u, weight, bias, slots, live, previous, advanced, path, y,
    stride_M_s, stride_M_c, stride_u_b, stride_u_t, stride_weight_c, stride_weight_w, stride_live_b, stride_live_t,
    stride_previous_b, stride_previous_t, stride_path_b, stride_path_l, stride_y_b, stride_y_t,
    T: tl.constexpr, C: tl.constexpr, W: tl.constexpr, PREVIOUS: tl.constexpr, LONGEST: tl.constexpr,
    ACTIVATION: tl.constexpr, COMMIT: tl.constexpr, FINAL: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_W: tl.constexpr,
    BLOCK_L: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """COMMIT: the window after the replay is stored; FINAL: the one after the tokens is."""
    if OVERLAP:  # the next launch may start once the last of these programs runs
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    b = tl.program_id(1).to(tl.int64)
    slot = b
    if slots is not None:
        slot = tl.load(slots + b).to(tl.int64)
    # The filters do not depend on the slot, and are loaded before it is known.
    c = tl.program_id(0).to(tl.int64) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = c < C
    taps, shift = load_filters(weight, bias, c, inside, stride_weight_c, stride_weight_w, W)
    if slot >= 0:
        state = M + slot * stride_M_s
        if previous is None:
            window = load_columns(state, None, None, 0, 0, True, c, inside, stride_M_c, 0, 0, W, 1)
        else:
            nodes = None if path is None else path + b * stride_path_b
            first = accepted_count(advanced, nodes, b, PREVIOUS, stride_path_l, LONGEST, BLOCK_L)
            window = load_columns(
                state, previous + b * stride_previous_b, nodes, first, PREVIOUS, True, c, inside,
                stride_M_c, stride_previous_t, stride_path_l, W, 0 if COMMIT or FINAL else 1,
            )  # (2)  # fmt: skip
        if COMMIT:
            store_columns(state, window, c, inside, stride_M_c, W, BLOCK_C, BLOCK_W)
        moved = 0
        for t in tl.static_range(T):
            at = tl.cast(t, tl.int64)
            u_at = u + b * stride_u_b + at * stride_u_t + c
            y_at = y + b * stride_y_b + at * stride_y_t + c
            if live is None:
                window = window[1:]
                window += (tl.load(u_at, mask=inside, other=0.0).to(tl.float32),)  # (3)
                y_t = filtered(window, taps, shift, W, ACTIVATION)  # (4)
            else:
                real = tl.load(live + b * stride_live_b + at * stride_live_t) != 0
                u_t = tl.load(u_at, mask=inside & real, other=0.0).to(tl.float32)
                moved += real.to(tl.int32)
                after = ()
                for k in tl.static_range(W - 1):
                    after += (tl.where(real, window[k + 1], window[k]),)  # type: ignore[assignment]
                after += (tl.where(real, u_t, window[W - 1]),)  # type: ignore[assignment]
                window = after  # (3)
                y_t = tl.where(real, filtered(window, taps, shift, W, ACTIVATION), 0.0)  # (4)
            tl.store(y_at, y_t.to(y.dtype.element_ty), mask=inside)
        if FINAL:
            if live is None or previous is not None:
                store_columns(state, window, c, inside, stride_M_c, W, BLOCK_C, BLOCK_W)
            else:  # all are no-ops: nothing moves, and the oldest column was not read
                store_columns(state, window, c, inside & (moved > 0), stride_M_c, W, BLOCK_C, BLOCK_W)
