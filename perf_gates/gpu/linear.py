"""Time all linear layers of Mamba2-2.7B in one CUDA graph: `python -m perf_gates.gpu.linear --out FILE`.

64 layers with their own weights and the head, one launch after the other, for a few numbers of rows; cuBLAS beside it. Each
row must have the same bits alone and in its batch, and differ from the float64 product by no more than bf16 rounds.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from perf_gates.clock import copy_bytes_per_us, graph_us
from perf_gates.machine import fingerprint
from ssmspec_kernels.linear_rows import linear_rows, traffic_bytes

LAYERS = 64
IN, OUT, HEAD = (10576, 2560), (2560, 5120), (50288, 2560)
ROWS = (1, 2, 6, 13, 16, 32, 64, 128)


def weights() -> list[Tensor]:
    """All weights, in the order in which a token meets them."""
    shapes = [shape for _ in range(LAYERS) for shape in (IN, OUT)] + [HEAD]
    return [(torch.randn(shape, device="cuda") / shape[1] ** 0.5).bfloat16() for shape in shapes]


def faults(rows: int, W: Tensor) -> list[str]:
    """What is wrong with the product of so many rows."""
    x = torch.randn(rows, W.shape[1], device="cuda").bfloat16()
    y, exact = linear_rows(x, W), x.double() @ W.double().T
    alone = torch.cat([linear_rows(row[None], W) for row in x])
    wrong = [] if torch.equal(y, alone) else [f"{tuple(W.shape)}, {rows} rows: a row has other bits alone"]
    apart = float(((y.double() - exact).abs() - 2.0**-8 * exact.abs()).max())
    return wrong if apart <= 1e-4 else [*wrong, f"{tuple(W.shape)}, {rows} rows: {apart:.2g} beyond the rounding of bf16"]


def timed(product: Callable[[Tensor, Tensor, Tensor], object], rows: int, Ws: list[Tensor]) -> float:
    """Microseconds of all layers."""
    x = {k: torch.randn(rows, k, device="cuda").bfloat16() for k in (IN[1], OUT[1])}
    y = {o: torch.empty(rows, o, device="cuda", dtype=torch.bfloat16) for o in (IN[0], OUT[0], HEAD[0])}
    launches = [lambda W=W: product(x[W.shape[1]], W, y[W.shape[0]]) for W in Ws]  # type: ignore[misc]
    return graph_us(launches, replays=9) * len(launches)


def measure() -> dict[str, Any]:
    Ws, copy, timings = weights(), copy_bytes_per_us(), []
    wrong = [fault for rows in ROWS for W in (Ws[0], Ws[1], Ws[-1]) for fault in faults(rows, W)]
    first = None
    for rows in ROWS:
        ours = timed(lambda x, W, y: linear_rows(x, W, out=y), rows, Ws)
        apart = timed(lambda x, W, y: linear_rows(x, W, out=y, overlap=False), rows, Ws)
        theirs = timed(lambda x, W, y: torch.mm(x, W.T, out=y), rows, Ws)
        bytes_ = sum(traffic_bytes(rows, W.shape[1], W.shape[0]) for W in Ws)
        first = first or ours
        found = {"rows": rows, "us": ours, "without_overlap_us": apart, "cublas_us": theirs, "bytes": bytes_}
        timings.append(found | {"of_copy": bytes_ / ours / copy, "of_one_row": ours / first})
        print(
            f"{rows:4d} rows {ours:8.1f} us, {bytes_ / ours / copy:.3f} of copy, {ours / first:.3f} of one row; "
            f"without overlap {apart:8.1f}, cuBLAS {theirs:8.1f}",
            flush=True,
        )
    print("\n".join(wrong) or "every row has the same bits alone and in its batch")
    return {"machine": fingerprint() | {"copy_bytes_per_us": copy}, "timings": timings, "faults": wrong}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    results = measure()
    if options.out is not None:
        options.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
