"""The ring of a replay buffer for Mamba-3: what it stores, and how a program reads and extends it.

A token's entry is what it writes, as the projection gave it: x, dt, A, trap, angle and B. Keys enter before their norm, bias
and rotation, so that an entry depends on no state, and nothing of it is lost. B is stored once for all heads of a group, the
angle once for all heads.

    entry l of the history lies at (origin + l) mod L, token s of the window after it at (origin + held + s) mod L   (1)
    S', th', k', x' = the four pieces after all held entries, in order                                           (2)

Source: `ssmspec_ref.mamba3.buffered`; ReplaySSM, section 3.
"""

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from ..delta.ring.delta_ring import place
from ..launch import strides
from ..row import points, updates
from ..shared.strides import HeadStrides, TokenStrides
from .mamba3_inputs import RankStrides, advance


class RingTensors(NamedTuple):
    """The tensors of a ring as one argument of a kernel."""

    x: Tensor
    dt: Tensor
    A: Tensor
    trap: Tensor
    angle: Tensor
    B: Tensor
    origin: Tensor
    held: Tensor


class EntriesStrides(NamedTuple):
    """Strides of what a ring stores; b is a slot, t an entry."""

    x: HeadStrides
    dt: HeadStrides
    A: HeadStrides
    trap: HeadStrides
    angle: TokenStrides
    B: RankStrides


@dataclass(frozen=True)
class Ring:
    """x (s, l, h, p), dt, A, trap (s, l, h), angle (s, l, f), B (s, l, r, g, n); `cursors` updates origin and held (s)."""

    x: Annotated[Tensor, updates("s l h p", size="io")]
    dt: Annotated[Tensor, updates("s l h", size="io")]
    A: Annotated[Tensor, updates("s l h", size="io")]
    trap: Annotated[Tensor, updates("s l h", size="io")]
    angle: Annotated[Tensor, updates("s l f", size="io")]
    B: Annotated[Tensor, updates("s l r g n", size="io")]
    origin: Annotated[Tensor, points("s")]
    held: Annotated[Tensor, points("s")]

    @property
    def capacity(self) -> int:
        return self.x.shape[1]

    @property
    def tensors(self) -> RingTensors:
        """The tensors in the order of the kernels' arguments."""
        return RingTensors(self.x, self.dt, self.A, self.trap, self.angle, self.B, self.origin, self.held)

    @property
    def strides(self) -> EntriesStrides:
        per_head = (HeadStrides(*strides(a, 3)) for a in (self.x, self.dt, self.A, self.trap))
        return EntriesStrides(*per_head, TokenStrides(*strides(self.angle, 2)), RankStrides(*strides(self.B, 4)))  # type: ignore[call-arg, arg-type]


@triton.jit
def replayed(
    held, ring, stride, slot, h, first, count, B_norm, B_bias, dt_bias, up, i, j, floor, eps,
    P: tl.constexpr, N: tl.constexpr, F: tl.constexpr, R: tl.constexpr, HEADS: tl.constexpr, HALVES: tl.constexpr,
    CAPACITY: tl.constexpr,
):  # fmt: skip
    """The four pieces after the entries of a slot's history (2); the parameters are those of the head."""
    for m in tl.range(count, disable_licm=R > 1):
        t = place(first + m, CAPACITY)
        held, _, _ = advance(
            held, ring.x + slot * stride.x.b + t * stride.x.t + h * stride.x.h,
            ring.dt + slot * stride.dt.b + t * stride.dt.t + h * stride.dt.h,
            ring.A + slot * stride.A.b + t * stride.A.t + h * stride.A.h,
            ring.trap + slot * stride.trap.b + t * stride.trap.t + h * stride.trap.h,
            ring.angle + slot * stride.angle.b + t * stride.angle.t,
            ring.B + slot * stride.B.b + t * stride.B.t + h // HEADS * stride.B.g, B_norm, B_bias, dt_bias, up, i, j, True,
            stride.B.r, floor, eps, P, N, F, R, HALVES, False,
        )  # fmt: skip
    return held


@triton.jit
def appended(
    ring, stride, slot, h, t, x, dt, A, trap, angle, B, i, j, real, stride_B_r,
    P: tl.constexpr, N: tl.constexpr, F: tl.constexpr, R: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    """Stores a token of the head as entry t (1); B is stored by the first head of its group, the angle by the first head."""
    at_x = ring.x + slot * stride.x.b + t * stride.x.t + h * stride.x.h + i
    at_dt = ring.dt + slot * stride.dt.b + t * stride.dt.t + h * stride.dt.h
    at_A = ring.A + slot * stride.A.b + t * stride.A.t + h * stride.A.h
    at_trap = ring.trap + slot * stride.trap.b + t * stride.trap.t + h * stride.trap.h
    there = (i < P) & real
    tl.store(at_x, tl.load(x + i, mask=there, other=0.0).to(ring.x.dtype.element_ty), mask=there)
    tl.store(at_dt, tl.load(dt, mask=real, other=0.0).to(ring.dt.dtype.element_ty), mask=real)
    tl.store(at_A, tl.load(A, mask=real, other=0.0).to(ring.A.dtype.element_ty), mask=real)
    tl.store(at_trap, tl.load(trap, mask=real, other=0.0).to(ring.trap.dtype.element_ty), mask=real)
    if h == 0:
        at_angle, turns = ring.angle + slot * stride.angle.b + t * stride.angle.t + j, (j < F) & real
        tl.store(at_angle, tl.load(angle + j, mask=turns, other=0.0).to(ring.angle.dtype.element_ty), mask=turns)
    if h % HEADS == 0:
        n = tl.arange(0, 2 * j.shape[0])
        at_B, whole = ring.B + slot * stride.B.b + t * stride.B.t + h // HEADS * stride.B.g + n, (n < N) & real
        for r in tl.static_range(R):
            entry = tl.load(B + r * stride_B_r + n, mask=whole, other=0.0)
            tl.store(at_B + r * stride.B.r, entry.to(ring.B.dtype.element_ty), mask=whole)
