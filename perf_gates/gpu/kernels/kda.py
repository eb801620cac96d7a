"""Plain steps, scans, windows without a write, and trees of Kimi Delta Attention, beside the plain step of the delta rule.

At the shape of Kimi-Linear, measured as in `steps`: gates are projections, in bf16, formed by the kernels with a lower bound.
The delta rule's step has a decay per head, formed with a softplus.
"""

from collections.abc import Iterator
from typing import Any

import torch

from perf_gates.gpu.clock import copies_for
from perf_gates.static.shapes import BATCHES, KDA, KDA_BOUND
from perf_gates.verdicts.targets import OF_THE_DELTA_RULE

from .steps import SCANS, TREES, WINDOW, Timing, bf16, kernel, ladder, timed


def cases() -> Iterator[tuple[str, int, int]]:
    """Models, rows, and the nodes of a tree; 0 means all chains."""
    yield from ((model, batch, nodes) for nodes in (0, *TREES) for batch in BATCHES for model in KDA)


def timings(model: str, batch: int, nodes: int) -> list[Timing]:
    g, h, k, v = KDA[model]
    pool = torch.randn(batch * copies_for(batch * h * k * v * 4), h, k, v, device="cuda")
    A, found = -torch.rand(h, device="cuda"), list[Timing]()

    def run(name: str, t: int, rule: str = "kda_scan", *mask: torch.Tensor, **how: Any) -> None:
        per_channel = () if rule == "delta_scan" else (k,)
        q, key, value = bf16(batch, t, g, k), bf16(batch, t, g, k), bf16(batch, t, h, v)
        gate, beta, bias = bf16(batch, t, h, *per_channel), bf16(batch, t, h), torch.randn(h, *per_channel, device="cuda")
        given = {"A": A, "dt_bias": bias} | ({"lower_bound": KDA_BOUND} if per_channel else {}) | how
        launcher = kernel(rule)
        launch = lambda s, o: launcher(pool, q, key, value, gate, beta, *mask, **given, slots=s, out=o)  # noqa: E731
        bytes_ = int(kernel(rule, "traffic_bytes")(batch, t, g, h, k, v, gate=2, **how))
        found.append(Timing(model, name, batch, timed(launch, batch, bytes_, value, pool), bytes_))

    if nodes:
        run(f"tree of {nodes}", nodes, "kda_tree", ladder(nodes, batch))
        return found
    run(OF_THE_DELTA_RULE, 1, "delta_scan")
    run("step", 1)
    for t in SCANS:
        run(f"scan of {t}", t)
    run(f"window of {WINDOW}", WINDOW, write_state=False)
    return found
