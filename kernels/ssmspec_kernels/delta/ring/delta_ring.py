"""The ring of a replay buffer for the gated delta rule: what it stores, and how a program reads and extends it.

What a token writes depends on the state before it, so the correction u is stored instead of v; of k the raw activation,
whose norm is computed again when it is read; of g the log decay after its gate, in fp32. So only u can lose precision:
its storage type is the `ring` of the numeric contract.

    entry l of the history lies at (origin + l) mod L, token s of a window after it at (origin + held + s) mod L    (1)
"""

from dataclasses import dataclass
from typing import Annotated

import triton
import triton.language as tl
from torch import Tensor

from ssmspec_ref.errors import PrecisionError

from ...row import FP32, points, updates
from ...shared.dots import dot_both, dot_left
from ...shared.strides import DeltaRingStrides, EntryGroupStrides, EntryStrides


@dataclass(frozen=True)
class Ring:
    """u (s, l, h, v), raw k (s, l, g, k), g (s, l, h) or (s, l, h, k); `cursors` updates origin and held (s)."""

    u: Annotated[Tensor, updates("s l h v", size="u")]
    k: Annotated[Tensor, updates("s l g k", size="io")]
    g: Annotated[Tensor, updates("s l h | s l h k", FP32, "fp32")]
    origin: Annotated[Tensor, points("s")]
    held: Annotated[Tensor, points("s")]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors in the order of the kernels' arguments."""
        return self.u, self.k, self.g, self.origin, self.held

    @property
    def capacity(self) -> int:
        return self.u.shape[1]

    def strides(self) -> DeltaRingStrides:
        u, k, g = (x.stride()[:3] for x in (self.u, self.k, self.g))
        return DeltaRingStrides(EntryStrides(*u), EntryGroupStrides(*k), EntryStrides(*g))

    def check_type(self, k: Tensor) -> None:
        """Raises: PrecisionError unless the ring stores keys in their type."""
        if self.k.dtype != k.dtype:
            raise PrecisionError(f"ring.k holds {self.k.dtype}, but the keys are {k.dtype}; the ring keeps them as they are")


def entry_bytes(g: int, h: int, k: int, v: int, *, io: int = 2, u: int = 2, channel: bool = False) -> int:
    """Bytes of one entry of the ring; `io` and `u` are the bytes of an element of k and of u."""
    return h * v * u + g * k * io + 4 * h * (k if channel else 1)


@triton.jit
def place(at, CAPACITY: tl.constexpr):
    """at mod L, for 0 <= at < 2 L (1)."""
    return tl.where(at >= CAPACITY, at - CAPACITY, at).to(tl.int64)


@triton.jit
def of_head(ring_u, ring_k, ring_g, slot, h, group, stride):
    """The pointers of a slot and head."""
    at_u = ring_u + slot * stride.u.s + h * stride.u.h
    at_k = ring_k + slot * stride.k.s + group * stride.k.g
    return at_u, at_k, ring_g + slot * stride.g.s + h * stride.g.h


@triton.jit
def load_history(
    ring_u, ring_k, ring_g, origin, held, stride_u_l, stride_k_l, stride_g_l, i, j, in_k, in_v,
    CAPACITY: tl.constexpr, BLOCK_L: tl.constexpr, CHANNEL: tl.constexpr,
):  # fmt: skip
    """k, u and g of the held entries, zeros elsewhere. The pointers are those of the slot and head."""
    l = tl.arange(0, BLOCK_L)
    past = l < held
    at = place(origin + l, CAPACITY)
    u = tl.load(ring_u + at[:, None] * stride_u_l + j[None, :], mask=past[:, None] & in_v[None, :], other=0.0)
    k = tl.load(ring_k + at[:, None] * stride_k_l + i[None, :], mask=past[:, None] & in_k[None, :], other=0.0)
    if CHANNEL:
        g = tl.load(ring_g + at[:, None] * stride_g_l + i[None, :], mask=past[:, None] & in_k[None, :], other=0.0)
    else:
        g = tl.load(ring_g + at * stride_g_l, mask=past, other=0.0)
    return k, u, g


@triton.jit
def append(
    ring_u, ring_k, ring_g, at, new, u, k, g, stride_u_l, stride_k_l, stride_g_l, i, j, in_k, in_v, owns_k, owns_g,
    CHANNEL: tl.constexpr,
):  # fmt: skip
    """Writes the tokens `new` to the entries `at` (1): u in every program, k and g in the one that owns them."""
    tl.store(ring_u + at[:, None] * stride_u_l + j[None, :], u.to(ring_u.dtype.element_ty), mask=new[:, None] & in_v[None, :])
    tl.store(ring_k + at[:, None] * stride_k_l + i[None, :], k, mask=new[:, None] & in_k[None, :] & owns_k)
    if CHANNEL:
        tl.store(ring_g + at[:, None] * stride_g_l + i[None, :], g, mask=new[:, None] & in_k[None, :] & owns_g)
    else:
        tl.store(ring_g + at * stride_g_l, g, mask=new & owns_g)


@triton.jit
def dot_history(x, u, SPLIT: tl.constexpr):
    """x u for fp32 scores x and the corrections as stored."""
    return dot_both(x, u, SPLIT) if u.dtype == tl.float32 else dot_left(x, u)
