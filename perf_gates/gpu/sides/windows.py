"""Windows from a ring, and windows that keep every state: one CUDA graph over states that no cache holds.

Cursors do not move, so that every launch does the same work on the same tokens; no row is due.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from perf_gates.gpu.clock import copies_for
from perf_gates.gpu.paired_timing import Side
from perf_gates.static.shapes import SSD

from ..core import checked, rotating
from ..kernels.prefill import _ssd_float64
from ..kernels.steps import bf16, kernel, ssd_inputs

PERIOD, HELD = 16, 7
"""Tokens of a ring in addition to a window, and how many of them it holds while it is timed."""


def ring(dims: str, t: int, batch: int, delayed: float) -> Side:
    """Standard decode (t = 1), or verification of t tokens, after HELD tokens."""
    h, p, n, g = SSD[dims]
    capacity = PERIOD + (t if t > 1 else 0)
    module = "ssd_buffered" if t > 1 else "ssd_buffered_step"
    sizes: dict[str, Any] = {"capacity": capacity} | ({"window": t} if t > 1 else {})
    tokens = (t,) if t > 1 else ()
    bytes_ = int(kernel(module, "traffic_bytes")([HELD] * batch, *tokens, h, p, n, g, **sizes))
    copies = copies_for(bytes_)
    rows = copies * batch
    x, dt, B, C, A, D, bias = ssd_inputs(batch, t, h, p, n, g)
    pool, past = torch.randn(rows, h, p, n, device="cuda"), bf16(rows, capacity, h)
    origin, held = (torch.full((rows,), at, device="cuda", dtype=torch.int32) for at in (0, HELD))
    step = torch.nn.functional.softplus(past.float() + bias)
    made = kernel("ssd_ring", "Ring")(bf16(rows, capacity, h, p), step, bf16(rows, capacity, g, n), origin, held)
    out, route = torch.empty_like(x), {} if t > 1 else {"output_only": True}

    def expected(row: int) -> Tensor:
        behind = (made.x[row, :HELD], past[row, :HELD], made.B[row, :HELD], made.B[row, :HELD])
        whole = [torch.cat((old, new[row])) for old, new in zip(behind, (x, dt, B, C), strict=True)]
        return _ssd_float64(pool[row], whole[0], whole[1], A, whole[2], whole[3], D, bias)[0][-t:]

    def launch(slots: Tensor) -> object:
        return kernel(module)(pool, made, x, dt, A, B, C, D=D, dt_bias=bias, slots=slots, out=out, **route)

    return rotating(f"ring of {t}, {dims}, {batch} rows", launch, copies, out, expected, batch, bytes_, delayed)


def snapshots(dims: str, t: int, batch: int, delayed: float) -> Side:
    """A window of t tokens with the state after each."""
    h, p, n, g = SSD[dims]
    bytes_ = int(kernel("ssd_snapshots", "traffic_bytes")(batch, t, h, p, n, g))
    copies = copies_for(bytes_, least=2)
    pool = torch.randn(copies * batch * (1 + t), h, p, n, device="cuda")
    slots = torch.arange(len(pool), device="cuda", dtype=torch.int32).view(copies, batch, 1 + t)
    first, places = slots[..., 0].contiguous(), slots[..., 1:].contiguous()
    x, dt, B, C, A, D, bias = ssd_inputs(batch, t, h, p, n, g)
    out = torch.empty_like(x)

    def expected(row: int) -> Tensor:
        return _ssd_float64(pool[int(first[0, row])], x[row], dt[row], A, B[row], C[row], D, bias)[0]

    def launch(i: int) -> object:
        return kernel("ssd_snapshots")(pool, x, dt, A, B, C, places[i], D=D, dt_bias=bias, slots=first[i], out=out)

    launches: list[Callable[[], object]] = [lambda i=i: launch(i) for i in range(copies)]  # type: ignore[misc]
    return checked(f"snapshots of {t}, {dims}, {batch} rows", launches, out, expected, batch, bytes_, delayed)
