"""Causal convolution over several sequences, their tokens one after the other in one run.

    ext = [M | u_begin .. u_end]                the window and the inputs of one sequence              (1)
    y_t = act(bias + sum_i weight_i ext_t+1+i)  t counted from the first token of the sequence         (2)
    M'  = the last w of ext                                                                            (3)

A program owns tokens and channels of the run; a token finds its sequence by counting the boundaries before it. (3)
is a second launch (`conv_commit`), because M may be overwritten only after all programs of its sequence have read it.
Layout: M (s, c, w), oldest first, a pool that sequences index through `slots`; one with a negative slot is padding, skipped.
Bound by the bytes of the inputs.
"""

from typing import Annotated

import torch
import triton
import triton.language as tl
from torch import Tensor

from ssmspec_ref.errors import ShapeMismatch

from ..launch import AS_WRITTEN, check_pool, strides
from ..row import Axes, Bounds, Fresh, Slots, launcher, reads, writes
from ..shared.functions import silu
from ..shared.tuning import H200
from .conv_commit import commit_packed
from .conv_taps import Bias, Taps, Window, check_width


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
    t, c, w, sequences = axes["t"], axes["c"], axes["w"], axes["m"] - 1
    if sequences < 1 or axes.get("b", sequences) != sequences:
        rows = "at least one sequence" if sequences < 1 else f"{axes['b']} sequences"
        raise ShapeMismatch(
            f"bounds hold {axes['m']} entries for {rows}; give the first token of each, and the end of the last"
        )
    check_width(w)
    check_pool(axes["s"], sequences, slots)
    _conv_packed_kernel[(triton.cdiv(t, block_t), triton.cdiv(c, block_c))](
        M, u, bounds, weight, bias, slots, fresh, y,
        *strides(M, 2), *strides(u, 2), *strides(weight, 2), *strides(y, 2), t, sequences,
        C=c, W=w, ACTIVATION=activation, BLOCK_T=block_t, BLOCK_C=block_c, BLOCK_B=triton.next_power_of_2(sequences),
        num_warps=num_warps, **AS_WRITTEN,
    )  # fmt: skip
    if write_state:
        commit_packed(M, u, bounds, slots, fresh, block_c)
    return y


@triton.jit
def _conv_packed_kernel(
    M, u, bounds, weight, bias, slots, fresh, y,
    stride_M_s, stride_M_c, stride_u_t, stride_u_c, stride_weight_c, stride_weight_w, stride_y_t, stride_y_c,
    tokens, sequences,
    C: tl.constexpr, W: tl.constexpr, ACTIVATION: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_C: tl.constexpr,
    BLOCK_B: tl.constexpr,
):  # fmt: skip
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
    inside = c < C
    acc = tl.zeros((BLOCK_T, BLOCK_C), tl.float32)
    if bias is not None:
        acc += tl.load(bias + c, mask=inside, other=0.0).to(tl.float32)[None, :]
    for k in tl.static_range(W):
        source = t - (W - 1 - k)
        behind = source >= begin
        u_at = u + source[:, None] * stride_u_t + c[None, :] * stride_u_c
        new = tl.load(u_at, mask=(mine & behind)[:, None] & inside[None, :], other=0.0).to(tl.float32)
        M_at = M + slot[:, None] * stride_M_s + c[None, :] * stride_M_c + (W + source - begin)[:, None]
        old = tl.load(M_at, mask=(has_state & (source < begin))[:, None] & inside[None, :], other=0.0).to(tl.float32)
        tap = tl.load(weight + c * stride_weight_c + k * stride_weight_w, mask=inside, other=0.0).to(tl.float32)
        acc += tl.where(behind[:, None], new, old) * tap[None, :]  # (1) (2)
    if ACTIVATION:
        acc = silu(acc)
    y_at = y + t[:, None] * stride_y_t + c[None, :] * stride_y_c
    tl.store(y_at, acc.to(y.dtype.element_ty), mask=mine[:, None] & inside[None, :])
