"""The ring of a replay buffer for SSD: what it stores, and how a program reads it.

For each token the ring stores x and B as they were given, so that nothing of them is lost, and dt after bias, softplus and
limits, in fp32. B is stored once for all heads of a group.

    entry l of the history lies at (origin + l) mod L, token s of the window after it at (origin + held + s) mod L   (1)

History is read from the ring and the window from its own tensors, so that no program reads what another one appends: the
entries of (1) do not overlap while held + T <= L.

    S' = exp(G_h) S + sum_{l < held} exp(G_h - G_l) dt_l x_l B_l^T        G the sum of dt A since S             (2)

is computed from the newest entry on, 16 entries at a time: the exponents are sums over the entries in between, not
differences of large sums.
"""

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from ...launch import strides
from ...row import FP32, points, updates
from ...shared.dots import dot_onto
from ...shared.strides import EntryGroupStrides, EntryStrides, RingStrides
from ..ssd_inputs import check_one_type, load_rows


class RingTensors(NamedTuple):
    """The tensors of a ring as one argument of a kernel."""

    x: Tensor
    dt: Tensor
    B: Tensor
    origin: Tensor
    held: Tensor


@dataclass(frozen=True)
class Ring:
    """x (s, l, h, p), dt (s, l, h), B (s, l, g, n); `cursors` updates origin and held (s)."""

    x: Annotated[Tensor, updates("s l h p", size="io")]
    dt: Annotated[Tensor, updates("s l h", FP32, "fp32")]
    B: Annotated[Tensor, updates("s l g n", size="io")]
    origin: Annotated[Tensor, points("s")]
    held: Annotated[Tensor, points("s")]

    @property
    def capacity(self) -> int:
        return self.x.shape[1]

    @property
    def tensors(self) -> RingTensors:
        """The tensors in the order of the kernels' arguments."""
        return RingTensors(self.x, self.dt, self.B, self.origin, self.held)

    @property
    def strides(self) -> RingStrides:
        """The strides of x, dt and B."""
        return entry_strides(self.x, self.dt, self.B)

    def check_types(self, x: Tensor, B: Tensor, C: Tensor) -> None:
        """Raises: PrecisionError unless the ring stores x and B in their types, and they and C have one type."""
        check_one_type(x=x, B=B, C=C, **{"ring.x": self.x, "ring.B": self.B})


def entry_strides(x: Tensor, dt: Tensor, B: Tensor) -> RingStrides:
    """The strides of x, dt and B of a ring, or of a cache of two windows."""
    return RingStrides(EntryStrides(*strides(x, 3)), EntryStrides(*strides(dt, 3)), EntryGroupStrides(*strides(B, 3)))


def entry_bytes(h: int, p: int, n: int, g: int, *, io: int = 2) -> int:
    """Bytes of one entry of the ring; `io` is the bytes of an element of x and B."""
    return io * (h * p + g * n) + 4 * h


@triton.jit
def place(at, CAPACITY: tl.constexpr):
    """at mod L, for 0 <= at < 2 L (1)."""
    return tl.where(at >= CAPACITY, at - CAPACITY, at).to(tl.int64)


@triton.jit
def load_at(rows, cols, in_rows, in_cols):
    """A block of rows that start at the pointers `rows`, each in the ring or in a window; zeros outside the masks."""
    return tl.load(rows[:, None] + cols[None, :], mask=in_rows[:, None] & in_cols[None, :], other=0.0)


@triton.jit
def fold(
    state, total, decay, ring_x, ring_dt, ring_B, stride_x: tl.constexpr, stride_dt: tl.constexpr, stride_B: tl.constexpr,
    first, count, p, n, in_p, in_n, CAPACITY: tl.constexpr,
):  # fmt: skip
    """A tile (p, n) of S advanced by the history (2); `total` is G_h, the pointers are those of the row, head and group."""
    state = tl.exp(total) * state
    since = 0.0
    for start in tl.range(0, count, 16, num_stages=1):
        l = count - 1 - start - tl.arange(0, 16)
        at = place(first + l, CAPACITY)
        step = tl.load(ring_dt + at * stride_dt, mask=l >= 0, other=0.0)
        x = load_rows(ring_x, at * stride_x, p, l >= 0, in_p)
        B = load_rows(ring_B, at * stride_B, n, l >= 0, in_n)
        behind = tl.load(
            ring_dt + place(first + l + 1, CAPACITY) * stride_dt, mask=(l >= 0) & (l + 1 < count - start), other=0.0
        )
        weight = tl.exp(since + tl.cumsum(behind * decay, axis=0)) * step
        state = dot_onto(state, tl.trans(weight[:, None] * x.to(tl.float32)), B)
        since += tl.sum(step * decay, axis=0)
    return state
