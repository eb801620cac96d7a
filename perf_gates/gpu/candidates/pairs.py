"""Each candidate beside the current kernel, at the shapes of the cells it is meant for: launches over the same inputs.

A pair has two sides. A side makes launches on slots of separate pools, which are drawn alike, so that states, rings and
outputs can be compared after the first launch: by bits, or by how far they are apart, relative to the largest.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from perf_gates.gpu.clock import copies_for
from perf_gates.static.shapes import SSD

from ..kernels.steps import bf16, kernel
from .ssd_conv_gated import ssd_conv_gated

WIDTH = 4
"""Columns of a convolution's window."""
BATCHES = 1, 4, 16, 64
ROUNDING = 2.0**-7
"""Outputs in bf16: half a unit in the last place is 2^-9 of a number; sums in another order may round to a neighbour."""


@dataclass(frozen=True)
class Side:
    """`launch` works on a copy of the slots, into an output; `written` are all tensors that it writes, by name."""

    launch: Callable[[Tensor, Tensor], object]
    written: dict[str, Tensor]
    like: Tensor


@dataclass(frozen=True)
class Pair:
    """A candidate and the current kernel, for `batch` rows at `dims`. `bytes` and the launches of each side: of one call."""

    name: str
    dims: str
    batch: int
    bytes: int
    launches: tuple[int, int]
    sides: Callable[[int], tuple[Side, Side]]
    """Of a number of copies of all slots: the candidate's, and that of the current kernel."""

    def __str__(self) -> str:
        return f"{self.name}, {self.dims}, {self.batch} rows"


def conv_and_step(dims: str, batch: int) -> Pair:
    """`ssd_conv_gated` beside `conv_step` and `ssd_gated`. Windows differ in the order of their columns and are left out."""
    h, p, n, g = SSD[dims]
    c, parts = h * p + 2 * g * n, kernel("ssd_gated", "parts")(h, p)
    bytes_ = int(kernel("ssd_gated", "traffic_bytes")(batch, 1, h, p, n, g)) + 2 * batch * c * WIDTH

    def sides(copies: int) -> tuple[Side, Side]:
        rows = copies * batch
        u, filters, shift, z, dt = bf16(batch, c), bf16(c, WIDTH), bf16(c), bf16(batch, 1, h, p), bf16(batch, 1, h)
        A, D, bias, weight = (
            -torch.rand(h, device="cuda"), torch.randn(h, device="cuda"), torch.randn(h, device="cuda"),
            torch.randn(h, p, device="cuda"),
        )  # fmt: skip
        S, M, turn = torch.randn(rows, h, p, n, device="cuda"), bf16(rows, c, WIDTH), torch.zeros(rows, device="cuda").int()
        xBC, gated = bf16(batch, c), {"z": z, "weight": weight, "D": D, "dt_bias": bias}
        x, B, C = (part[:, None] for part in xBC.split([h * p, g * n, g * n], dim=1))
        given = x.unflatten(2, (h, p)), dt, A, B.unflatten(2, (g, n)), C.unflatten(2, (g, n))
        squares = [torch.empty(batch, 1, parts, device="cuda") for _ in range(2)]
        pools, windows = [S.clone(), S.clone()], [M.clone(), M.clone()]

        def ours(slots: Tensor, v: Tensor) -> object:
            own = {"groups": g, "bias": shift, "slots": slots, "out": v, "squares": squares[0]}
            return ssd_conv_gated(pools[0], windows[0], turn, u, filters, dt, A, **own, **gated)  # type: ignore[arg-type]

        def current(slots: Tensor, v: Tensor) -> object:
            kernel("conv_step")(windows[1], u, filters, bias=shift, slots=slots, out=xBC)
            return kernel("ssd_gated")(pools[1], *given, slots=slots, out=v, squares=squares[1], **gated)

        like = bf16(batch, 1, h, p)
        first, second = ({"S": S, "squares": s} for S, s in zip(pools, squares, strict=True))
        return Side(ours, first, like), Side(current, second, like)

    return Pair("convolution and gated step", dims, batch, bytes_, (1, 2), sides)


def pairs() -> Iterator[Pair]:
    """All of them, those with the fewest rows first."""
    yield from (conv_and_step("mamba2-2.7b", batch) for batch in BATCHES)


def copies_of(pair: Pair) -> int:
    """Copies of all slots, so that no cache holds them."""
    return copies_for(pair.bytes)
