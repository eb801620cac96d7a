"""A packed tree against the same tree unrolled into the paths of its leaves.

    packed     one row of t nodes over one state                                         `ssd_tree_scan`   (1)
    private    a row for each leaf, the tokens of its path, over a copy of the state      `ssd_window`      (2)
    shared     the same rows over one state that they only read                           `ssd_window`      (3)

(2) and (3) compute a node again for each leaf under it; (2) reads the state once for each leaf. The copies that (2) needs are
not timed. Before anything is timed, the outputs of (2) and (3) are compared with those of (1).
"""

from collections.abc import Iterator
from typing import Any

import torch

from perf_gates.clock import copies_for, graph_us, is_compiling
from perf_gates.shapes import SSD

from .steps import Timing, bf16, kernel, ladder

BATCHES = (1, 4, 16, 64)
NODES = 63
NAMES = ("packed tree", "a row and a state for each leaf", "a row for each leaf, one state")


def leaf_paths(nodes: int) -> torch.Tensor:
    """The nodes from the root to each leaf (leaf, depth) of the full binary tree of `nodes` = 2^d - 1 nodes."""
    leaves = torch.arange(nodes // 2, nodes)
    path = [leaves]
    while int(path[-1].max()) > 0:
        path.append((path[-1] - 1) // 2)
    return torch.stack(path[::-1], dim=1)


def timings(model: str, batch: int, nodes: int = NODES) -> list[Timing]:
    """Time (1) to (3) for `batch` trees of one shape.

    Raises: RuntimeError for outputs that disagree; nothing is timed then.
    """
    h, p, n, g = SSD[model]
    tree, window = kernel("ssd_tree_scan"), kernel("ssd_window")
    paths = leaf_paths(nodes).cuda()
    leaves = len(paths)
    count = copies_for(kernel("ssd_tree_scan", "traffic_bytes")(batch, nodes, h, p, n, g))
    copies = copies_for(batch * leaves * 4 * h * p * n, least=2)
    states = torch.randn(batch * max(count, leaves * copies), h, p, n, device="cuda")
    x, dt, B, C = bf16(batch, nodes, h, p), bf16(batch, nodes, h), bf16(batch, nodes, g, n), bf16(batch, nodes, g, n)
    rest = {"D": torch.randn(h, device="cuda"), "dt_bias": torch.randn(h, device="cuda")}
    A, ancestors = -torch.rand(h, device="cuda"), ladder(nodes, batch)
    rows = [v[:, paths].flatten(0, 1).contiguous() for v in (x, dt, B, C)]
    y, y_rows = torch.empty_like(x), torch.empty_like(rows[0])

    def packed(slots: torch.Tensor) -> Any:
        return tree(states, x, dt, A, B, C, ancestors, slots=slots, out=y, **rest)

    def by_rows(slots: torch.Tensor) -> Any:
        x_r, dt_r, B_r, C_r = rows
        return window(states, x_r, dt_r, A, B_r, C_r, slots=slots, out=y_rows, write_state=False, **rest)

    own = [torch.arange(i * batch, (i + 1) * batch, device="cuda", dtype=torch.int32) for i in range(count)]
    shared = [slots.repeat_interleave(leaves) for slots in own]
    private = list(torch.arange(batch * leaves * copies, device="cuda", dtype=torch.int32).chunk(copies))
    expected = packed(own[0])[:, paths].flatten(0, 1).float()
    apart = (by_rows(shared[0]).float() - expected).abs().max()
    if not is_compiling() and not bool(apart <= 2**-6 * expected.abs().max()):
        raise RuntimeError("the rows of the unrolled tree disagree with the packed one; nothing is timed")
    times = [graph_us([lambda s=s: packed(s) for s in own])]  # type: ignore[misc]
    times += [graph_us([lambda s=s: by_rows(s) for s in each]) for each in (private, shared)]  # type: ignore[misc]
    return [Timing(model, name, batch, us) for name, us in zip(NAMES, times, strict=True)]


def cases() -> Iterator[tuple[str, int]]:
    """Models and batches."""
    yield from ((model, batch) for batch in BATCHES for model in SSD)
