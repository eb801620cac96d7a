"""The sides of the core set: one CUDA graph each, over states that exceed every cache, with the expected output.

Before a side is timed each of its launches is made alone, into an output filled with NaN that must be finite afterwards, and
the first and the last row of the first are compared with the recurrence in float64; a side whose output has an error above
the rounding of bf16, or is incomplete, is not timed.
"""

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from perf_gates.gpu.clock import L2_BYTES, copies_for, event_us, is_compiling, recorded
from perf_gates.gpu.paired_timing import Side, WrongOutputError
from perf_gates.static.shapes import DELTA, SSD
from perf_gates.verdicts.gates import Core

from .kernels.prefill import ROUNDING, _delta_float64, _ssd_float64
from .kernels.steps import bf16, delta_inputs, kernel, ladder, ssd_inputs

FURTHER = {"ring": "windows", "snapshots": "windows", "convolution": "tokens", "acceptance": "tokens"}
"""The module that makes a side of each kind."""
LEAST = 50
"""Least launches of a graph, so that a delay of 8 % is a whole number of them."""
LEAST_SHORT = 500
"""The same where a launch takes about 2 us: 50 of them took 105 or 119 us from replay to replay, and a delay of 8 % was
missed once on an H200. 500 take a millisecond."""
IN = (10576, 2560)
"""Outputs and inputs of the projection of Mamba2-2.7B."""


class Events:
    """CUDA events around a call, after a sweep over twice the level-2 cache."""

    def __init__(self) -> None:
        self.swept = torch.empty(2 * L2_BYTES, dtype=torch.uint8, device="cuda")

    def cold(self) -> None:
        self.swept.zero_()

    def us(self, call: Callable[[], object]) -> float:
        self.cold()
        return event_us(call, pause=0.0)


def sides(core: Core) -> tuple[Side, Side]:
    """Over and under."""
    return side(core.dims, core.over, core.batch), side(core.dims, core.under, core.batch)


def side(dims: str, operation: str, batch: int, delayed: float = 0.0) -> Side:
    """One operation as a graph: `step`, `scan of 5`, `window of 5` (no state written), `tree of 13`, `projection`, and
    `ring of 1` (standard decode), `ring of 6` (verification), `snapshots of 6`, `convolution of 1`, `acceptance of 13`.

    `delayed` adds a share of its own launches to the graph, to simulate a kernel that has become slower.
    """
    if operation.startswith("projection"):
        return projection(1 if operation.endswith("of 1") else batch, delayed)
    kind, _, tokens = operation.partition(" of ")
    if kind in FURTHER:
        made: Side = getattr(import_module(f"perf_gates.gpu.sides.{FURTHER[kind]}"), kind)(dims, int(tokens), batch, delayed)
        return made
    return (delta if dims in DELTA else ssd)(dims, kind, int(tokens or 1), batch, delayed)


def ssd(dims: str, kind: str, t: int, batch: int, delayed: float) -> Side:
    h, p, n, g = SSD[dims]
    x, dt, B, C, A, D, bias = ssd_inputs(batch, t, h, p, n, g)
    given: dict[str, Any] = {"D": D, "dt_bias": bias} | ({"write_state": False} if kind == "window" else {})
    module = {"tree": "ssd_tree_scan", "window": "ssd_window"}.get(kind, "ssd_scan")
    more = (ladder(t, batch),) if kind == "tree" else ()
    sizes = {"write_state": False} if kind == "window" else {}
    bytes_of = kernel("ssd_tree_scan" if kind == "tree" else "ssd_scan", "traffic_bytes")
    bytes_ = int(bytes_of(batch, t, h, p, n, g, **sizes))
    pool = torch.randn(batch * copies_for(bytes_), h, p, n, device="cuda")
    out = torch.empty_like(x)

    def expected(row: int) -> Tensor:
        seen = ladder(t, 1)[0].cuda() if kind == "tree" else torch.ones(t, t, device="cuda", dtype=torch.bool).tril()
        found = torch.empty(t, h, p, device="cuda", dtype=torch.float64)
        for i in range(t):
            path = seen[i].nonzero()[:, 0]
            cut = (u[row][path] for u in (x, dt, B, C))
            x_i, dt_i, B_i, C_i = cut
            found[i] = _ssd_float64(pool[row], x_i, dt_i, A, B_i, C_i, D, bias)[0][-1]
        return found

    launch = lambda slots: kernel(module)(pool, x, dt, A, B, C, *more, slots=slots, out=out, **given)  # noqa: E731
    return rotating(f"{kind} of {t}, {dims}, {batch} rows", launch, len(pool) // batch, out, expected, batch, bytes_, delayed)


def delta(dims: str, kind: str, t: int, batch: int, delayed: float) -> Side:
    g, h, k, v = DELTA[dims]
    q, key, value, gate, beta = delta_inputs(batch, t, g, h, k, v)
    module = "delta_tree" if kind == "tree" else "delta_scan"
    more = (ladder(t, batch),) if kind == "tree" else ()
    bytes_ = int(kernel(module, "traffic_bytes")(batch, t, g, h, k, v))
    pool, out = torch.randn(batch * copies_for(bytes_), h, k, v, device="cuda"), torch.empty_like(value)

    def expected(row: int) -> Tensor:
        given = [u[row] for u in (q, key, value, gate, beta)]
        if kind != "tree":
            return _delta_float64(pool[row], *given)[0]
        seen = ladder(t, 1)[0].cuda()
        paths = (seen[i].nonzero()[:, 0] for i in range(t))
        return torch.stack([_delta_float64(pool[row], *(u[path] for u in given))[0][-1] for path in paths])

    launch = lambda slots: kernel(module)(pool, q, key, value, gate, beta, *more, slots=slots, out=out)  # noqa: E731
    return rotating(f"{kind} of {t}, {dims}, {batch} rows", launch, len(pool) // batch, out, expected, batch, bytes_, delayed)


def rotating(
    name: str,
    launch: Callable[[Tensor], object],
    copies: int,
    out: Tensor,
    expected: Callable[[int], Tensor],
    batch: int,
    bytes_: int,
    delayed: float,
) -> Side:
    """A launch with separate slots in each copy."""
    slots = [torch.arange(i * batch, (i + 1) * batch, device="cuda", dtype=torch.int32) for i in range(copies)]
    launches: list[Callable[[], object]] = [lambda s=s: launch(s) for s in slots]  # type: ignore[misc]
    return checked(name, launches, out, expected, batch, bytes_, delayed)


def checked(
    name: str,
    launches: list[Callable[[], object]],
    out: Tensor,
    expected: Callable[[int], Tensor],
    batch: int,
    bytes_: int,
    delayed: float,
) -> Side:
    """The launches as a side; `expected` is the output of a row of the first, in float64."""

    def check() -> None:
        wanted = {row: expected(row) for row in {0, batch - 1}}
        _alone(name, launches[:1], out)
        _near(name, {row: out[row] for row in wanted}, wanted)
        _alone(name, launches, out)

    call, count = swept(launches, delayed)
    return Side(name, call, check, bytes_ * count, count)


def projection(rows: int, delayed: float) -> Side:
    copies = copies_for(2 * IN[0] * IN[1])
    Ws = [(torch.randn(IN, device="cuda") / IN[1] ** 0.5).bfloat16() for _ in range(copies)]
    x, y = bf16(rows, IN[1]), torch.empty(rows, IN[0], device="cuda", dtype=torch.bfloat16)
    linear = kernel("linear_rows")
    launches: list[Callable[[], object]] = [lambda W=W: linear(x, W, out=y) for W in Ws]  # type: ignore[misc]

    def check() -> None:
        _alone("projection", launches[:1], y)
        _near("projection", {0: y}, {0: x.double() @ Ws[0].double().T})
        _alone("projection", launches, y)

    bytes_ = int(kernel("linear_rows", "traffic_bytes")(rows, IN[1], IN[0]))
    call, count = swept(launches, delayed)
    return Side(f"projection of {rows}", call, check, bytes_ * count, count)


def swept(launches: list[Callable[[], object]], delayed: float, least: int = LEAST) -> tuple[Callable[[], object], int]:
    """A graph of whole sweeps over the launches, with an additional share that delays it; and their number without that
    share."""
    if is_compiling():
        return launches[0], 1
    whole = launches * -(-least // len(launches))
    return recorded([*whole, *whole[: round(delayed * len(whole))]]), len(whole)


def _alone(name: str, launches: Sequence[Callable[[], object]], out: Tensor) -> None:
    """Runs each launch into an unwritten output. Raises: WrongOutputError."""
    for i, launch in enumerate(launches):
        out.fill_(float("nan"))
        launch()
        if not bool(out.isfinite().all()):
            raise WrongOutputError(f"{name}: the output of launch {i} of {len(launches)} was not written, or is not finite")


def _near(name: str, ours: dict[int, Tensor], exact: dict[int, Tensor]) -> None:
    for row, wanted in exact.items():
        apart = float((ours[row].double() - wanted).abs().max() / wanted.abs().max())
        if not apart <= ROUNDING:
            raise WrongOutputError(f"{name}: row {row} differs from float64 by {apart:.2g} of the largest")
