"""SSD (Mamba-2), one token, from a state that is kept as integer codes with scales.

    S  = scale codes                                  for each block                  (1)
    dt = clip(softplus(dt_raw + dt_bias), dt_limit)                                   (2)
    S' = exp(dt A) S + (dt x) B^T                     in fp32                         (3)
    y  = S' C + D x, then y silu(z) if z is given                                     (4)
    m  = max |S'| over a block,  scale' = m / C,  v = S' (C / m)                      (5)
    codes' = v to the nearest integer, ties to even; or at random:                    (6)
    codes' = floor(v) + 1 if r < v - floor(v), floor(v) otherwise                     (7)

A block is `block` consecutive states of a channel (all of them: one scale for each channel, FlashInfer's layout); C is 127
for int8 and 32767 for int16. y is computed before the state is stored. A block of zeros, or one whose scale is below the
normal range, has codes 0 and scale 1. A block with a state that is not finite has codes 0 and an infinite scale, so that all
of it is read as NaN: codes cannot hold one.

r is 24 bits of Philox, whose key is the seed. Its counter is the place of the element in its slot, the slot, and the number
of the call, which the kernel reads from memory and the launcher raises by one: a captured graph draws again at each replay.

A program owns a tile of channels of one head of one row, with all of n: it reads their codes and scales once and writes them
once. The tiles were not measured.
Layout: codes (s, h, p, n), scales (s, h, p, j), pools that rows index through `slots`, and write through `targets`; a row
with a negative slot is padding and is skipped. Bound by the bytes of the codes.
"""

from typing import Annotated

import torch
import triton
import triton.language as tl
from torch import Tensor

from ssmspec_ref.errors import ParameterError

from ..launch import AS_WRITTEN, check_pool, d_strides, divides, strides
from ..row import FP32, Axes, Slots, launcher, reads, updates, weighs, writes
from ..shared.functions import silu
from ..shared.strides import OneGroupStrides, OneHeadStrides, SkipStrides, StateStrides, StepStrides
from ..ssd.ssd_inputs import check_limit, step_size

CODES = (torch.int8, torch.int16)
ELEMENTS, DRAWN_ELEMENTS = 1024, 512
"""Of a tile; fewer channels where they have more states. The numbers of a larger one at random do not fit the registers."""


def traffic_bytes(
    b: int, h: int, p: int, n: int, g: int, *, block: int | None = None, code: int = 1, io: int = 2, z: bool = False
) -> int:
    """Bytes that must cross the memory bus for b live rows: codes and scales twice, x, B, C, dt, y, and z.

    Parameters and the number of the call are left out. Units: bytes; `code` and `io` are the bytes of an element.
    """
    blocks = 1 if block is None else -(-n // block)
    return b * (2 * h * p * (n * code + 4 * blocks) + io * (h * p * (3 if z else 2) + 2 * g * n + h))


@launcher
def ssd_coded_step(
    axes: Axes,
    codes: Annotated[Tensor, updates("s h p n", CODES, "code", "dense")],
    scales: Annotated[Tensor, updates("s h p j", FP32, "fp32")],
    x: Annotated[Tensor, reads("b h p")],
    dt: Annotated[Tensor, reads("b h")],
    A: Annotated[Tensor, weighs("h", FP32)],
    B: Annotated[Tensor, reads("b g n")],
    C: Annotated[Tensor, reads("b g n")],
    *,
    block: int | None = None,
    D: Annotated[Tensor, weighs("h | h p")] | None = None,
    z: Annotated[Tensor, reads("b h p")] | None = None,
    dt_bias: Annotated[Tensor, weighs("h")] | None = None,
    dt_softplus: bool = True,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    slots: Slots | None = None,
    targets: Slots | None = None,
    call: Annotated[Tensor, updates("i", (torch.int64,), "")] | None = None,
    seed: int = 0,
    out: Annotated[Tensor, writes("b h p")] | None = None,
    block_p: int | None = None,
    num_warps: int = 1,
) -> Tensor:
    """The outputs (b, h, p) of one token; the states of the slots advance in place, or into the slots `targets`.

    `codes` (s, h, p, n) are int8 or int16, `scales` (s, h, p, j) fp32, one for `block` states (None: for all n). `slots` (b)
    gives the state that a row reads (None: row b has slot b), `targets` (b) the one that it writes (None: the same); no row
    may write a slot that another reads. `call` (1), int64, makes the rounding random, and is raised by one; None: to the
    nearest. The output of a padding row is not written. The bits of a row do not depend on the others.

    Raises: ShapeMismatch, PrecisionError, ParameterError, before anything is written.
    """
    divides(axes["g"], axes["h"])
    check_limit(dt_limit)
    check_pool(axes["s"], axes["b"], slots)
    b, h, p, n, j = (axes[letter] for letter in "bhpnj")
    each = n if block is None else block
    if each < 1 or triton.cdiv(n, each) != j:
        raise ParameterError(f"{j} scales for {n} states in blocks of {each}; give one for each block")
    if axes.get("i", 1) != 1:
        raise ParameterError(f"call has {axes['i']} numbers; give one, the number of the call")
    y = torch.empty_like(x) if out is None else out
    wide = triton.next_power_of_2(each)
    blocks = triton.next_power_of_2(j)
    elements = ELEMENTS if call is None else DRAWN_ELEMENTS
    block_p = block_p or max(1, min(triton.next_power_of_2(p), elements // (wide * blocks)))
    one = OneHeadStrides(*strides(x, 2)), OneHeadStrides(*strides(dt, 2)), OneGroupStrides(*strides(B, 2))
    stride = StepStrides(
        StateStrides(*strides(codes, 3)), *one, OneGroupStrides(*strides(C, 2)), OneHeadStrides(*strides(z, 2)),
        OneHeadStrides(*strides(y, 2)),
    )  # fmt: skip
    ssd_coded_step_kernel[(triton.cdiv(p, block_p), h, b)](
        codes, scales, x, dt, A, B, C, D, z, dt_bias, slots, targets, call, y, stride, StateStrides(*strides(scales, 3)),
        SkipStrides(*d_strides(D)), *dt_limit, seed, P=p, N=n, J=j, EACH=each, HEADS_PER_GROUP=h // axes["g"],
        SOFTPLUS=dt_softplus, LIMIT=dt_limit != (0.0, float("inf")), TOP=127.0 if codes.dtype == torch.int8 else 32767.0,
        BLOCK_P=block_p, BLOCK_J=blocks, BLOCK_N=wide, num_warps=num_warps, **AS_WRITTEN,
    )  # fmt: skip
    if call is not None:
        call.add_(1)
    return y


@triton.jit
def ssd_coded_step_kernel(
    codes, scales, x, dt, A, B, C, D, z, dt_bias, slots, targets, call, y, stride: tl.constexpr, stride_scales: tl.constexpr,
    stride_D: tl.constexpr, low, high, seed, P: tl.constexpr, N: tl.constexpr, J: tl.constexpr, EACH: tl.constexpr,
    HEADS_PER_GROUP: tl.constexpr, SOFTPLUS: tl.constexpr, LIMIT: tl.constexpr, TOP: tl.constexpr, BLOCK_P: tl.constexpr,
    BLOCK_J: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Tiles are (p, j, n of a block)."""
    b = tl.program_id(2).to(tl.int64)
    h = tl.program_id(1).to(tl.int64)
    slot, target = b, b
    if slots is not None:
        slot = tl.load(slots + b).to(tl.int64)
        target = slot
    if targets is not None:
        target = tl.load(targets + b).to(tl.int64)
    if slot >= 0 and target >= 0:
        p = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
        j = tl.arange(0, BLOCK_J)
        k = tl.arange(0, BLOCK_N)
        n = j[:, None] * EACH + k[None, :]
        in_p, in_n = p < P, (k < EACH)[None, :] & (n < N)
        inside, in_j = in_p[:, None, None] & in_n[None, :, :], in_p[:, None] & (j < J)[None, :]
        row = p.to(tl.int64)
        cell = h * stride.S.h + (row * stride.S.p)[:, None, None] + n[None, :, :]
        scale_cell = h * stride_scales.h + (row * stride_scales.p)[:, None] + j[None, :]
        code = tl.load(codes + slot * stride.S.s + cell, mask=inside, other=0)
        scale = tl.load(scales + slot * stride_scales.s + scale_cell, mask=in_j, other=1.0)
        S = code.to(tl.float32) * scale[:, :, None]  # (1)
        bias = 0.0
        if dt_bias is not None:
            bias = tl.load(dt_bias + h).to(tl.float32)
        raw = tl.load(dt + b * stride.dt.b + h * stride.dt.h)
        step = step_size(raw, True, bias, low, high, SOFTPLUS, LIMIT)  # (2)
        at_g = h // HEADS_PER_GROUP
        x_t = tl.load(x + b * stride.x.b + h * stride.x.h + p, mask=in_p, other=0.0).to(tl.float32)
        B_t = tl.load(B + b * stride.B.b + at_g * stride.B.g + n, mask=in_n, other=0.0).to(tl.float32)
        C_t = tl.load(C + b * stride.C.b + at_g * stride.C.g + n, mask=in_n, other=0.0).to(tl.float32)
        S = S * tl.exp(step * tl.load(A + h)) + (step * x_t)[:, None, None] * B_t[None, :, :]  # (3)
        y_t = tl.sum(tl.sum(S * C_t[None, :, :], axis=2), axis=1)
        if D is not None:
            y_t += tl.load(D + h * stride_D.h + row * stride_D.p, mask=in_p, other=0.0).to(tl.float32) * x_t
        if z is not None:
            y_t *= silu(tl.load(z + b * stride.z.b + h * stride.z.h + p, mask=in_p, other=0.0).to(tl.float32))
        tl.store(y + b * stride.y.b + h * stride.y.h + p, y_t.to(y.dtype.element_ty), mask=in_p)  # (4)
        v, scale = scaled(S, TOP)
        if call is None:
            whole = (v + 12582912.0) - 12582912.0  # 1.5 2^23: the sum has no bit below 1
        else:
            place = ((h * P + row) * N)[:, None, None] + n[None, :, :]
            whole = drawn(v, seed, place, target, tl.load(call))
        whole = tl.minimum(tl.maximum(whole, -TOP), TOP)
        tl.store(codes + target * stride.S.s + cell, whole.to(codes.dtype.element_ty), mask=inside)
        tl.store(scales + target * stride_scales.s + scale_cell, scale, mask=in_j)


@triton.jit
def scaled(S, TOP: tl.constexpr):
    """v and scale' (5)."""
    size = tl.max(tl.where(S == S, tl.abs(S), float("inf")), axis=2)
    scale = size / TOP
    known = scale >= 1.1754943508222875e-38  # 2^-126
    inverse = tl.where(known, TOP / tl.where(known, size, 1.0), 0.0)
    v = S * inverse[:, :, None]
    return tl.where(v == v, v, 0.0), tl.where(known, scale, 1.0)


@triton.jit
def drawn(v, seed, place, slot, number):
    """The codes of (7)."""
    low = place.to(tl.uint32)
    zero = low * 0
    bits, _, _, _ = tl.philox(
        seed, low, zero + slot.to(tl.uint32), zero + number.to(tl.uint32), zero + (number >> 32).to(tl.uint32)
    )
    below = tl.floor(v)
    share = (bits >> 8).to(tl.float32) * 5.9604644775390625e-08  # 2^-24
    return below + tl.where(share < v - below, 1.0, 0.0)
