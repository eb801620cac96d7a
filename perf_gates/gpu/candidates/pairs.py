"""Each candidate beside the current kernel, at the shapes of the cells it is meant for: launches over the same inputs.

A pair has two sides. A side makes launches on slots of separate pools, which are drawn alike, so that states, rings and
outputs can be compared after the first launch: by bits, or by how far they are apart, relative to the largest.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from perf_gates.gpu.clock import copies_for
from perf_gates.static.shapes import DELTA, SSD

from ..kernels.steps import bf16, kernel
from .delta_step_gram import FEW, MANY, delta_step_gram
from .ssd_conv_gated import ssd_conv_gated
from .ssd_verify_split import ssd_verify_split, weights_of_a_head

TOKENS, CAPACITY, WIDTH = 6, 32, 4
CYCLE = (4, 8, 12, 16, 20, 24)
"""Entries held at each step between two flushes, 4 of 6 tokens advanced in a ring of 32: at 24 a row is due."""
HELD = {"open": (12,), "due": (24,), "staggered": (CYCLE[-1], *CYCLE[:-1])}
"""Entries of the rows in turn, of which the first is due. They stay: every launch of a timing does the same."""
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


def verification(dims: str, batch: int, held: str) -> Pair:
    """`ssd_verify_split` beside `ssd_buffered`."""
    h, p, n, g = SSD[dims]
    counts = [HELD[held][i % len(HELD[held])] for i in range(batch)]
    bytes_ = int(
        kernel("ssd_buffered", "traffic_bytes")(counts, TOKENS, h, p, n, g, capacity=CAPACITY, window=TOKENS)
    )  # fmt: skip

    def sides(copies: int) -> tuple[Side, Side]:
        rows = copies * batch
        x, dt, B, C = bf16(batch, TOKENS, h, p), bf16(batch, TOKENS, h), bf16(batch, TOKENS, g, n), bf16(batch, TOKENS, g, n)
        A, D, bias = -torch.rand(h, device="cuda"), torch.randn(h, device="cuda"), torch.randn(h, device="cuda")
        S, old = torch.randn(rows, h, p, n, device="cuda"), (bf16(rows, CAPACITY, h, p), bf16(rows, CAPACITY, g, n))
        steps = torch.rand(rows, CAPACITY, h, device="cuda")
        origin, count = (
            torch.zeros(rows, device="cuda", dtype=torch.int32),
            torch.tensor(counts * copies, device="cuda").int(),
        )
        weights = torch.empty(batch, h, weights_of_a_head(CAPACITY, TOKENS), device="cuda")

        def side(function: Any, **more: Tensor) -> Side:
            pool, ring = S.clone(), kernel("ssd_ring", "Ring")(old[0].clone(), steps.clone(), old[1].clone(), origin, count)
            given = {"D": D, "dt_bias": bias} | more
            return Side(
                lambda slots, y: function(pool, ring, x, dt, A, B, C, slots=slots, out=y, **given),
                {"S": pool, "ring.x": ring.x, "ring.dt": ring.dt, "ring.B": ring.B},
                x,
            )

        return side(ssd_verify_split, weights=weights), side(kernel("ssd_buffered"))

    return Pair(f"verification of {TOKENS}, {held}", dims, batch, bytes_, (2, 1), sides)


def delta_step(dims: str, batch: int, name: str, tiles: tuple[int, int, int], gram: bool) -> Pair:
    """A plain step with other tiles, and with norms whose bits do not depend on them, beside `delta_scan`."""
    g, h, k, v = DELTA[dims]
    bytes_ = int(kernel("delta_scan", "traffic_bytes")(batch, 1, g, h, k, v, gate=2))

    def sides(copies: int) -> tuple[Side, Side]:
        q, key, value = bf16(batch, 1, g, k), bf16(batch, 1, g, k), bf16(batch, 1, h, v)
        gate, beta, A, bias = (
            bf16(batch, 1, h),
            bf16(batch, 1, h),
            -torch.rand(h, device="cuda"),
            torch.randn(h, device="cuda"),
        )
        S = torch.randn(batch * copies, h, k, v, device="cuda")

        def side(function: Any, **more: Any) -> Side:
            pool, given = S.clone(), {"A": A, "dt_bias": bias} | more
            return Side(
                lambda slots, o: function(pool, q, key, value, gate, beta, slots=slots, out=o, **given), {"S": pool}, value
            )

        return side(delta_step_gram if gram else kernel("delta_scan"), tiles=tiles), side(kernel("delta_scan"))

    return Pair(f"delta step, {name}", dims, batch, bytes_, (1, 1), sides)


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

        def stands(slots: Tensor, v: Tensor) -> object:
            kernel("conv_step")(windows[1], u, filters, bias=shift, slots=slots, out=xBC)
            return kernel("ssd_gated")(pools[1], *given, slots=slots, out=v, squares=squares[1], **gated)

        like = bf16(batch, 1, h, p)
        first, second = ({"S": S, "squares": s} for S, s in zip(pools, squares, strict=True))
        return Side(ours, first, like), Side(stands, second, like)

    return Pair("convolution and gated step", dims, batch, bytes_, (1, 2), sides)


def pairs() -> Iterator[Pair]:
    """All of them, those with the fewest rows first."""
    for batch in (1, 4, 16, 64):
        for dims in SSD:
            yield from (verification(dims, batch, held) for held in HELD if batch > 1 or held != "staggered")
        for dims in DELTA:
            yield delta_step(dims, batch, "16 channels by a warp", FEW, False)
            yield delta_step(dims, batch, "32 channels in 16 lanes by 4 warps", (16, 32, 4), False)
            yield delta_step(dims, batch, "norms by products, 16 channels by a warp", FEW, True)
            yield delta_step(dims, batch, "norms by products, 32 channels by 2 warps", (8, 32, 2), True)
            yield delta_step(dims, batch, "norms by products, tile that stands", MANY, True)
        yield conv_and_step("mamba2-2.7b", batch)


def copies_of(pair: Pair) -> int:
    """Copies of all slots, so that no cache holds them."""
    return copies_for(pair.bytes)
