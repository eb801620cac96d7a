"""The ring of a replay buffer for the short convolution: what it stores, and how a program reads it.

A token's entry is its product u = B x: all that later tokens read of it. The fold copies columns and computes nothing, so a
ring of fp32 loses no digit, however long it is.

    ext = [S | the held entries],  S' = the last w - 1 columns of ext                               (1)
    entry l of the history lies at (origin + l) mod L, token s of a window after it at (origin + held + s) mod L   (2)

Source: `ssmspec_ref.shortconv.buffered`; ReplaySSM, section 3.
"""

from dataclasses import dataclass
from typing import Annotated

import triton
import triton.language as tl
from torch import Tensor

from ..delta.ring.delta_ring import place
from ..row import points, updates


@dataclass(frozen=True)
class Ring:
    """u (s, l, d); `cursors` updates origin and held (s)."""

    u: Annotated[Tensor, updates("s l d", size="u")]
    origin: Annotated[Tensor, points("s")]
    held: Annotated[Tensor, points("s")]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors in the order of the kernels' arguments."""
        return self.u, self.origin, self.held

    @property
    def capacity(self) -> int:
        return self.u.shape[1]


@triton.jit
def load_held(
    S, ring_u, first, count, d, inside, stride_S_d, stride_u_l, KEPT: tl.constexpr, CAPACITY: tl.constexpr
):  # fmt: skip
    """The last w - 1 columns of (1); the pointers are those of the slot."""
    window = ()
    for k in tl.static_range(KEPT):
        i = count + k
        old = tl.load(S + d * stride_S_d + i, mask=inside & (i < KEPT), other=0.0).to(tl.float32)
        at = place(first + i - KEPT, CAPACITY)
        new = tl.load(ring_u + at * stride_u_l + d, mask=inside & (i >= KEPT), other=0.0).to(tl.float32)
        window += (tl.where(i < KEPT, old, new),)  # type: ignore[assignment]
    return window
