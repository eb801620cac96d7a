"""A packed tree against the same tree unrolled into the paths of its leaves: `python -m perf_gates.gpu.unrolled`.

    packed     one row of t nodes over one state                                         `ssd_tree_scan`   (1)
    private    a row for each leaf, the tokens of its path, over a copy of the state      `ssd_window`      (2)
    shared     the same rows over one state that they only read                           `ssd_window`      (3)

(2) and (3) compute a node again for each leaf under it; (2) reads the state once for each leaf. The copies that (2) needs are
not timed. Before anything is timed, the outputs of (2) and (3) are compared with those of (1).
"""

import argparse
import json
from dataclasses import asdict, dataclass
from typing import Any

import torch

from perf_gates.clock import copies_for, graph_us

from .kernels import SSD, bf16, kernel, ladder


@dataclass(frozen=True)
class Unrolled:
    """Times of (1) to (3), and what the packed tree gains over the others. Units: microseconds."""

    model: str
    batch: int
    nodes: int
    packed_us: float
    private_us: float
    shared_us: float
    over_private: float
    over_shared: float


def leaf_paths(nodes: int) -> torch.Tensor:
    """The nodes from the root to each leaf (leaf, depth) of the full binary tree of `nodes` = 2^d - 1 nodes."""
    leaves = torch.arange(nodes // 2, nodes)
    path = [leaves]
    while int(path[-1].max()) > 0:
        path.append((path[-1] - 1) // 2)
    return torch.stack(path[::-1], dim=1)


def unrolled(model: str, batch: int, nodes: int = 63) -> Unrolled:
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
    if not bool((by_rows(shared[0]).float() - expected).abs().max() <= 2**-6 * expected.abs().max()):
        raise RuntimeError("the rows of the unrolled tree disagree with the packed one; nothing is timed")
    times = [graph_us([lambda s=s: packed(s) for s in own])]  # type: ignore[misc]
    times += [graph_us([lambda s=s: by_rows(s) for s in each]) for each in (private, shared)]  # type: ignore[misc]
    return Unrolled(model, batch, nodes, *times, times[1] / times[0], times[2] / times[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 4, 16, 64])
    for batch in parser.parse_args().batches:
        for model in SSD:
            print(json.dumps(asdict(unrolled(model, batch))), flush=True)


if __name__ == "__main__":
    main()
