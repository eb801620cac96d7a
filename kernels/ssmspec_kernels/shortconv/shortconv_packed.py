"""The short convolution over several sequences, their tokens one after the other in one run.

    ext = [S | u_begin .. u_end],  u = B x            the columns and the products of one sequence        (1)
    y_t = C_t (bias + sum_i weight_i ext_t+i)         t counted from the first token of the sequence      (2)
    S'  = the last w - 1 of ext                                                                           (3)

A program owns tokens and channels of the run; a token finds its sequence by counting the boundaries before it. (3)
is a second launch, because S may be overwritten only after all programs of its sequence have read it. The bits of (2) are
those of `shortconv_scan`. The tiles are those of `conv_packed`; they were not measured with gates.
Layout: S (s, d, w - 1), oldest first, a pool that sequences index through `slots`; one with a negative slot is padding,
skipped. Bound by the bytes of the inputs.
"""

from typing import Annotated

import torch
import triton
import triton.language as tl
from torch import Tensor

from ssmspec_ref.errors import ShapeMismatch

from ..launch import AS_WRITTEN, check_pool, strides
from ..row import Axes, Bounds, Fresh, Slots, launcher, moved, reads, writes
from ..shared.tuning import H200
from .shortconv_columns import Bias, State, Taps, check_taps, load_product
from .shortconv_commit import commit_run


def traffic_bytes(tokens: int, sequences: int, d: int, w: int, *, state: int = 4, io: int = 2) -> int:
    """Bytes that must cross the memory bus for live sequences of w - 1 tokens or more; parameters are left out.

    Units: bytes; `state` and `io` are the bytes of an element.
    """
    return moved(shortconv_packed, {"s": sequences, "t": tokens, "d": d, "q": w - 1}, {"state": state, "io": io})


@launcher
def shortconv_packed(
    axes: Axes,
    S: State,
    B: Annotated[Tensor, reads("t d", layout="dense")],
    C: Annotated[Tensor, reads("t d", layout="dense")],
    x: Annotated[Tensor, reads("t d", layout="dense")],
    weight: Taps,
    bounds: Bounds,
    *,
    bias: Bias | None = None,
    slots: Slots | None = None,
    fresh: Fresh | None = None,
    out: Annotated[Tensor, writes("t d", layout="dense")] | None = None,
    block_t: int = H200["conv_packed"]["block_t"],
    block_d: int = H200["conv_packed"]["block_c"],
    num_warps: int = H200["conv_packed"]["warps"],
) -> Tensor:
    """The outputs (t, d) of a packed run, and in S[slots] the columns after each sequence: equations (1) to (3).

    Sequence b has the tokens bounds[b] .. bounds[b + 1] - 1; bounds never decrease, and an empty sequence repeats one. Tokens
    outside, and those of a sequence with a negative slot, are neither read nor written. A sequence that is `fresh` (b)
    starts from zeros, whatever its slot holds.

    Raises: ShapeMismatch, PrecisionError, ParameterError, before anything is written.
    """
    check_taps(axes)
    t, d, w, sequences = axes["t"], axes["d"], axes["w"], axes["m"] - 1
    if sequences < 1 or axes.get("b", sequences) != sequences:
        rows = "at least one sequence" if sequences < 1 else f"{axes['b']} sequences"
        raise ShapeMismatch(
            f"bounds hold {axes['m']} entries for {rows}; give the first token of each, and the end of the last"
        )
    check_pool(axes["s"], sequences, slots)
    y = torch.empty_like(x) if out is None else out
    _shortconv_packed_kernel[(triton.cdiv(t, block_t), triton.cdiv(d, block_d))](
        S, B, C, x, bounds, weight, bias, slots, fresh, y,
        *strides(S, 2), *strides(B, 1), *strides(C, 1), *strides(x, 1), *strides(weight, 2), *strides(y, 1), t, sequences,
        D=d, W=w, BLOCK_T=block_t, BLOCK_D=block_d, BLOCK_B=triton.next_power_of_2(sequences), num_warps=num_warps,
        **AS_WRITTEN,
    )  # fmt: skip
    commit_run(S, B, x, bounds, slots, fresh, block_d)
    return y


@triton.jit
def _shortconv_packed_kernel(
    S, B, C, x, bounds, weight, bias, slots, fresh, y,
    stride_S_s, stride_S_d, stride_B_t, stride_C_t, stride_x_t, stride_weight_d, stride_weight_w, stride_y_t,
    tokens, sequences,
    D: tl.constexpr, W: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_B: tl.constexpr,
):  # fmt: skip
    t = tl.program_id(0).to(tl.int64) * BLOCK_T + tl.arange(0, BLOCK_T)
    d = tl.program_id(1).to(tl.int64) * BLOCK_D + tl.arange(0, BLOCK_D)
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
    held = mine
    if fresh is not None:
        held = mine & (tl.load(fresh + b, mask=mine, other=1) == 0)
    inside = d < D
    acc = tl.zeros((BLOCK_T, BLOCK_D), tl.float32)
    if bias is not None:
        acc += tl.load(bias + d, mask=inside, other=0.0).to(tl.float32)[None, :]
    for k in tl.static_range(W):
        source = t - (W - 1 - k)
        behind = source >= begin
        there = (mine & behind)[:, None] & inside[None, :]
        new = load_product(
            B + source[:, None] * stride_B_t + d[None, :], x + source[:, None] * stride_x_t + d[None, :], there
        )
        S_at = S + slot[:, None] * stride_S_s + d[None, :] * stride_S_d + (W - 1 + source - begin)[:, None]
        old = tl.load(S_at, mask=(held & (source < begin))[:, None] & inside[None, :], other=0.0).to(tl.float32)
        tap = tl.load(weight + d * stride_weight_d + k * stride_weight_w, mask=inside, other=0.0).to(tl.float32)
        acc += tl.where(behind[:, None], new, old) * tap[None, :]  # (1)
    whole = mine[:, None] & inside[None, :]
    C_t = tl.load(C + t[:, None] * stride_C_t + d[None, :], mask=whole, other=0.0).to(tl.float32)
    tl.store(y + t[:, None] * stride_y_t + d[None, :], (C_t * acc).to(y.dtype.element_ty), mask=whole)  # (2)
