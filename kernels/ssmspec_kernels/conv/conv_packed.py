"""Causal convolution over several sequences, their tokens one after the other in one run.

    ext = [M | u_begin .. u_end]                the window and the inputs of one sequence              (1)
    y_t = act(bias + sum_i weight_i ext_t+1+i)  t counted from the first token of the sequence         (2)
    M'  = the last w of ext                                                                            (3)

A program owns tokens and channels of the run; a token finds its sequence by counting the boundaries before it. (3)
is a second launch (`conv_commit`), because M may be overwritten only after all programs of its sequence have read it. The
short convolution's prompts are the same kernel.
Layout: M (s, c, w), oldest first, a pool that sequences index through `slots`; one with a negative slot is padding, skipped.
Bound by the bytes of the inputs.
"""

from typing import Annotated, Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..launch import AS_WRITTEN, strides
from ..row import Axes, Bounds, Fresh, Slots, launcher, reads, writes
from ..shared.functions import silu
from ..shared.tuning import H200
from .conv_commit import commit_packed
from .conv_taps import Bias, Taps, Window, check_bounds, check_width, load_product


def traffic_bytes(
    tokens: int, sequences: int, c: int, w: int, *, state: int = 4, io: int = 2, write_state: bool = True
) -> int:
    """Bytes that must cross the memory bus for live sequences of w tokens or more; parameters are left out.

    Units: bytes; `state` and `io` are the bytes of an element.
    """
    return c * (2 * tokens * io + sequences * (w - 1 + (w if write_state else 0)) * state)


@launcher
def conv_packed(
    axes: Axes,
    M: Window,
    u: Annotated[Tensor, reads("t c", layout="dense")],
    bounds: Bounds,
    weight: Taps,
    *,
    bias: Bias | None = None,
    activation: bool = True,
    slots: Slots | None = None,
    fresh: Fresh | None = None,
    write_state: bool = True,
    out: Annotated[Tensor, writes("t c")] | None = None,
    block_t: int = H200["conv_packed"]["block_t"],
    block_c: int = H200["conv_packed"]["block_c"],
    num_warps: int = H200["conv_packed"]["warps"],
) -> Tensor:
    """The outputs (t, c) of a packed run u (t, c), and in M[slots] the window after each sequence: equations (1) to (3).

    Sequence b has the tokens bounds[b] .. bounds[b + 1] - 1; bounds never decrease, and an empty sequence repeats one. Tokens
    outside, and those of a sequence with a negative slot, are neither read nor written. A sequence that is `fresh` (b)
    starts from zeros, whatever its slot holds.

    Raises: ShapeMismatch, PrecisionError, ParameterError, before anything is written.
    """
    y = torch.empty_like(u) if out is None else out
    check_width(axes["w"])
    check_bounds(axes, slots)
    launch_packed(
        axes, M, None, None, u, bounds, weight, bias, slots, fresh, y, block_t, block_c, KEPT=axes["w"],
        ACTIVATION=activation, num_warps=num_warps,
    )  # fmt: skip
    if write_state:
        commit_packed(M, u, bounds, slots, fresh, block_c)
    return y


def launch_packed(
    axes: Axes,
    M: Tensor,
    B: Tensor | None,
    C: Tensor | None,
    u: Tensor,
    bounds: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    slots: Tensor | None,
    fresh: Tensor | None,
    y: Tensor,
    block_t: int,
    block_c: int,
    **options: Any,
) -> None:
    """(1) and (2) of checked arguments, those of `conv_packed`. With B and C, and then all rows are dense, the inputs are the
    products B u, and the outputs y C."""
    (t, c), sequences = u.shape, axes["m"] - 1
    of_B, of_C = (None if x is None else x.stride(0) for x in (B, C))
    of_u, of_y = ((x.stride(0), x.stride(1) if B is None else tl.constexpr(1)) for x in (u, y))
    _conv_packed_kernel[(triton.cdiv(t, block_t), triton.cdiv(c, block_c))](
        M, B, C, u, bounds, weight, bias, slots, fresh, y,
        *strides(M, 2), of_B, of_C, *of_u, *strides(weight, 2), *of_y, t, sequences, CHANNELS=c, W=axes["w"],
        BLOCK_T=block_t, BLOCK_C=block_c, BLOCK_B=triton.next_power_of_2(sequences), **options, **AS_WRITTEN,
    )  # fmt: skip


@triton.jit
def _conv_packed_kernel(
    M, B, C, u, bounds, weight, bias, slots, fresh, y,
    stride_M_s, stride_M_c, stride_B_t, stride_C_t, stride_u_t, stride_u_c, stride_weight_c, stride_weight_w, stride_y_t,
    stride_y_c, tokens, sequences,
    CHANNELS: tl.constexpr, W: tl.constexpr, KEPT: tl.constexpr, ACTIVATION: tl.constexpr, BLOCK_T: tl.constexpr,
    BLOCK_C: tl.constexpr, BLOCK_B: tl.constexpr,
):  # fmt: skip
    """KEPT: the columns of the state."""
    t = tl.program_id(0).to(tl.int64) * BLOCK_T + tl.arange(0, BLOCK_T)
    c = tl.program_id(1).to(tl.int64) * BLOCK_C + tl.arange(0, BLOCK_C)
    i = tl.arange(0, BLOCK_B)
    starts = tl.load(bounds + i, mask=i < sequences, other=0).to(tl.int64)
    before = (i < sequences)[None, :] & (starts[None, :] <= t[:, None])
    b = tl.sum(before.to(tl.int64), axis=1) - 1
    begin = tl.max(tl.where(before, starts[None, :], -1), axis=1)
    mine = (b >= 0) & (t < tokens) & (t < tl.load(bounds + sequences))
    slot = b
    if slots is not None:
        slot = tl.load(slots + b, mask=mine, other=-1).to(tl.int64)
    mine = mine & (slot >= 0)
    has_state = mine
    if fresh is not None:
        has_state = mine & (tl.load(fresh + b, mask=mine, other=1) == 0)
    inside = c < CHANNELS
    acc = tl.zeros((BLOCK_T, BLOCK_C), tl.float32)
    if bias is not None:
        acc += tl.load(bias + c, mask=inside, other=0.0).to(tl.float32)[None, :]
    for k in tl.static_range(W):
        source = t - (W - 1 - k)
        behind = source >= begin
        if B is None:
            u_at = u + source[:, None] * stride_u_t + c[None, :] * stride_u_c
            new = tl.load(u_at, mask=(mine & behind)[:, None] & inside[None, :], other=0.0).to(tl.float32)
        else:
            there = (mine & behind)[:, None] & inside[None, :]
            B_at = B + source[:, None] * stride_B_t + c[None, :]
            new = load_product(B_at, u + source[:, None] * stride_u_t + c[None, :], there)
        M_at = M + slot[:, None] * stride_M_s + c[None, :] * stride_M_c + (KEPT + source - begin)[:, None]
        old = tl.load(M_at, mask=(has_state & (source < begin))[:, None] & inside[None, :], other=0.0).to(tl.float32)
        tap = tl.load(weight + c * stride_weight_c + k * stride_weight_w, mask=inside, other=0.0).to(tl.float32)
        acc += tl.where(behind[:, None], new, old) * tap[None, :]  # (1) (2)
    if ACTIVATION:
        acc = silu(acc)
    C_t = 1.0
    if C is not None:
        C_at = C + t[:, None] * stride_C_t + c[None, :]
        C_t = tl.load(C_at, mask=mine[:, None] & inside[None, :], other=0.0).to(tl.float32)
    y_at = y + t[:, None] * stride_y_t + c[None, :] * stride_y_c
    if C is not None:
        acc = C_t * acc
    tl.store(y_at, acc.to(y.dtype.element_ty), mask=mine[:, None] & inside[None, :])
