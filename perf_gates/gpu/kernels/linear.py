"""All linear layers of Mamba2-2.7B in one CUDA graph, for a few numbers of rows.

64 layers with their own weights and the head, one launch after the other; also with cuBLAS. Each row must have the same bits
alone and in its batch, and differ from the float64 product by no more than the rounding of bf16. Each product has its own
output, which `perf_gates.gpu.output_guard` checks.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache

import torch
from torch import Tensor

from perf_gates.gpu.clock import graph_us, is_compiling, layers_of

from .steps import Timing, kernel

MODEL, LAYERS = "mamba2-2.7b", 64
IN, OUT, HEAD = (10576, 2560), (2560, 5120), (50288, 2560)
ROWS = (1, 2, 6, 13, 16, 32, 64, 128)


@lru_cache
def weights() -> list[Tensor]:
    """All weights, in the order in which a token meets them."""
    shapes = [shape for _ in range(layers_of(LAYERS)) for shape in (IN, OUT)] + [HEAD]
    return [(torch.randn(shape, device="cuda") / shape[1] ** 0.5).bfloat16() for shape in shapes]


def faults(rows: int, W: Tensor) -> list[str]:
    """The faults of the product for a number of rows."""
    x = torch.randn(rows, W.shape[1], device="cuda").bfloat16()
    linear_rows = kernel("linear_rows")
    y, exact = linear_rows(x, W), x.double() @ W.double().T
    alone = torch.cat([linear_rows(row[None], W) for row in x])
    wrong = [] if torch.equal(y, alone) else [f"{tuple(W.shape)}, {rows} rows: a row has other bits alone"]
    apart = float(((y.double() - exact).abs() - 2.0**-8 * exact.abs()).max())
    return wrong if apart <= 1e-4 else [*wrong, f"{tuple(W.shape)}, {rows} rows: {apart:.2g} beyond the rounding of bf16"]


def timed(product: Callable[[Tensor, Tensor, Tensor], object], rows: int, Ws: list[Tensor]) -> float:
    """Microseconds of all layers. Raises: WrongOutputError."""
    x = {k: torch.randn(rows, k, device="cuda").bfloat16() for k in (IN[1], OUT[1])}
    names = [f"product {i} of {len(Ws)}" for i in range(len(Ws))]
    outputs = {
        name: torch.empty(rows, len(W), device="cuda", dtype=torch.bfloat16) for name, W in zip(names, Ws, strict=True)
    }
    each = zip(Ws, outputs.values(), strict=True)
    launches = [lambda W=W, y=y: product(x[W.shape[1]], W, y) for W, y in each]
    return graph_us(launches, outputs, replays=9) * len(launches)


def timings(rows: int) -> list[Timing]:
    """Ours, ours without overlap with the launch before, and cuBLAS.

    Raises: RuntimeError for a wrong product; nothing is timed then.
    """
    Ws, linear_rows, bytes_of = weights(), kernel("linear_rows"), kernel("linear_rows", "traffic_bytes")
    if not is_compiling() and (wrong := [fault for W in (Ws[0], Ws[1], Ws[-1]) for fault in faults(rows, W)]):
        raise RuntimeError("; ".join(wrong))
    bytes_ = sum(bytes_of(rows, W.shape[1], W.shape[0]) for W in Ws)
    products: dict[str, Callable[[Tensor, Tensor, Tensor], object]] = {
        "linear_rows": lambda x, W, y: linear_rows(x, W, out=y),
        "linear_rows without overlap": lambda x, W, y: linear_rows(x, W, out=y, overlap=False),
        "cuBLAS": lambda x, W, y: torch.mm(x, W.T, out=y),
    }
    return [Timing(MODEL, name, rows, timed(product, rows, Ws), bytes_) for name, product in products.items()]


def cases() -> Iterator[tuple[int]]:
    """Numbers of rows."""
    yield from ((rows,) for rows in ROWS)
