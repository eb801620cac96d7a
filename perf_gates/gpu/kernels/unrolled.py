"""A packed tree compared with the same tree unrolled into the paths of its leaves.

    packed     one row of t nodes over one state                   `ssd_tree_scan`, `delta_tree`        (1)
    private    a row for each leaf, the tokens of its path,
               over a copy of the state                            `ssd_window`, `delta_chunked`        (2)
    shared     the same rows over one state that they only read    the same                             (3)

(2) and (3) compute a node again for each leaf under it; (2) reads the state once for each leaf. The copies that (2) needs are
not timed. Before timing, the outputs of (2) and (3) are compared with those of (1), each with the states that it
is timed on; after the last replay `perf_gates.gpu.output_guard` checks what each launch has written.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from perf_gates.gpu.clock import copies_for, graph_us, is_compiling
from perf_gates.gpu.output_guard import numbered, own_outputs
from perf_gates.gpu.paired_timing import WrongOutputError
from perf_gates.static.launch_traffic import NODES, PACKED, PRIVATE, SHARED, bytes_of
from perf_gates.static.shapes import BATCHES, DELTA, SSD
from perf_gates.verdicts.measured import At

from .steps import Timing, bf16, kernel, ladder

APART = 2.0**-6
"""The largest difference from (1), relative to its largest number: both store bf16, and sum in different orders."""

Launch = Callable[[Tensor, Tensor], object]
"""On slots, into an output."""


def leaf_paths(nodes: int) -> Tensor:
    """The nodes from the root to each leaf (leaf, depth) of the full binary tree of `nodes` = 2^d - 1 nodes."""
    leaves = torch.arange(nodes // 2, nodes)
    path = [leaves]
    while int(path[-1].max()) > 0:
        path.append((path[-1] - 1) // 2)
    return torch.stack(path[::-1], dim=1)


def ssd_inputs(model: str, batch: int, nodes: int) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """x, dt, B and C of all nodes, and the parameters of the heads."""
    h, p, n, g = SSD[model]
    given = bf16(batch, nodes, h, p), bf16(batch, nodes, h), bf16(batch, nodes, g, n), bf16(batch, nodes, g, n)
    return given, {"D": torch.randn(h, device="cuda"), "dt_bias": torch.randn(h, device="cuda")}


def delta_inputs(model: str, batch: int, nodes: int) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """q, k, v and the gates of all nodes."""
    g, h, k, v = DELTA[model]
    gates = -torch.rand(batch, nodes, h, device="cuda"), torch.rand(batch, nodes, h, device="cuda")
    return (bf16(batch, nodes, g, k), bf16(batch, nodes, g, k), bf16(batch, nodes, h, v), *gates), {}


def launchers(model: str, batch: int, nodes: int, states: Tensor) -> tuple[Tensor, Launch, Tensor, Launch]:
    """A tensor in the shape of the tree's outputs and its launch (1); the same for the rows of its paths (2), (3)."""
    paths, ancestors = leaf_paths(nodes).cuda(), ladder(nodes, batch)
    given, rest = (delta_inputs if model in DELTA else ssd_inputs)(model, batch, nodes)
    A: tuple[Tensor, ...] = () if model in DELTA else (-torch.rand(SSD[model][0], device="cuda"),)
    tree, window = map(kernel, ("delta_tree", "delta_chunked") if model in DELTA else ("ssd_tree_scan", "ssd_window"))
    like = 2 if model in DELTA else 0
    rows = tuple(u[:, paths].flatten(0, 1).contiguous() for u in given)

    def packed(slots: Tensor, out: Tensor) -> Any:
        return tree(states, *given[:2], *A, *given[2:], ancestors, slots=slots, out=out, **rest)

    def by_rows(slots: Tensor, out: Tensor) -> Any:
        return window(states, *rows[:2], *A, *rows[2:], slots=slots, out=out, write_state=False, **rest)

    return given[like], packed, rows[like], by_rows


def timings(model: str, batch: int, nodes: int = NODES) -> list[Timing]:
    """Time (1) to (3) for `batch` trees of one shape.

    Raises: WrongOutputError for outputs that disagree; nothing is timed then.
    """
    state = DELTA[model][1:] if model in DELTA else SSD[model][:3]
    leaves, of_states = nodes // 2 + 1, 4 * batch * state[0] * state[1] * state[2]
    count = copies_for(bytes_of(At("unrolled", model, PACKED, batch)))
    copies = copies_for(of_states * leaves, least=2)
    kept = batch * count if is_compiling() else batch * max(count, leaves * copies)
    states = torch.randn(kept, *state, device="cuda")
    nodes_like, packed, rows_like, by_rows = launchers(model, batch, nodes, states)
    own = [torch.arange(i * batch, (i + 1) * batch, device="cuda", dtype=torch.int32) for i in range(count)]
    shared = [slots.repeat_interleave(leaves) for slots in own]
    private = list((torch.arange(batch * leaves * copies, device="cuda", dtype=torch.int32) % kept).chunk(copies))
    if not is_compiling():
        _compared(states, packed, by_rows, (nodes_like, rows_like), (own[0], shared[0], private[0]), leaf_paths(nodes).cuda())
    times = {
        PACKED: _us(packed, nodes_like, own),
        PRIVATE: _us(by_rows, rows_like, private),
        SHARED: _us(by_rows, rows_like, shared),
    }
    return [Timing(model, name, batch, us, bytes_of(At("unrolled", model, name, batch))) for name, us in times.items()]


def _us(launch: Launch, like: Tensor, each: Sequence[Tensor]) -> float:
    """The time of one launch over rotating slots, with a separate output for each. Raises: WrongOutputError."""
    outputs = own_outputs(like, numbered(len(each)))
    of = zip(each, outputs.values(), strict=True)
    return graph_us([lambda s=s, y=y: launch(s, y) for s, y in of], outputs)  # type: ignore[misc]


def _compared(
    states: Tensor,
    packed: Launch,
    by_rows: Launch,
    like: tuple[Tensor, Tensor],
    slots: tuple[Tensor, Tensor, Tensor],
    paths: Tensor,
) -> None:
    """Compares (3) and (2) with (1) on the first states, which (2) has copied into its first slots.

    Raises: WrongOutputError.
    """
    own, shared, private = slots
    tree, leaves = torch.full_like(like[0], float("nan")), len(paths)
    packed(own, tree)
    expected = tree[:, paths].flatten(0, 1).float()
    for name, each in ((SHARED, shared), (PRIVATE, private)):
        if name == PRIVATE:
            states[: len(private)].unflatten(0, (len(own), leaves)).copy_(states[: len(own)].clone()[:, None])
        out = torch.full_like(like[1], float("nan"))
        by_rows(each, out)
        apart = float((out.float() - expected).abs().max() / expected.abs().max())
        if not apart <= APART:
            raise WrongOutputError(f"{name} differs from the packed tree by {apart:.2g} of the largest; nothing is timed")


def cases() -> Iterator[tuple[str, int]]:
    """Models and batches."""
    yield from ((model, batch) for batch in BATCHES for model in (*SSD, *DELTA))
