"""The targets of the kernels on an H200, and how they are read from the parts of a run."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from ..static.launch_traffic import PACKED, PRIVATE, SHARED, TOKENS
from ..static.shapes import BATCHES, DELTA, KDA, SSD
from .floors import Floor, FloorOfCopy, FloorOfPeer
from .measured import At, Figure, OfCopy, OverFloor, Ratio

MAMBA2, NEMOTRON = SSD
SHAPES = (*SSD, *DELTA)
ROUTES = ("in registers", "by products")
"""Two kernels compute a fused scan; the faster one counts."""
OF_THE_DELTA_RULE = "step of the delta rule"
"""The plain step with one decay per head, at the same shape and in the same part as those with one per key channel."""
LAYERS = 129
"""Launches of all linear layers of Mamba2-2.7B for a token."""
FEW_ROWS = {16: 0.85, 4: 1.0, 1: 1.3}
"""A verification of 6 tokens in plain steps. Bytes and a launch allow 0.66, 0.70 and 0.79 for SSD."""
PREFILL = (
    ("ssd_chunk_scan", "mamba2-2.7b", "mamba-ssm"),
    ("ssd_chunk_scan", "nemotron-3-nano-4b", "mamba-ssm"),
    ("delta_chunk_scan", "qwen3.5-4b", "fla"),
    ("causal_attention", "nemotron-3-nano-4b", "torch"),
)


@dataclass(frozen=True)
class Cell:
    """One figure of the table. `reached`: the times that it is made of, of which `value.Values` makes its value. `least`: the
    target is a lower limit. `floor` is what bytes, products and launches allow
    (`floors`). `best` is the peer's figure in the same units: measured in the same run, or as published. `row` is the row of
    the table of targets that it belongs to."""

    row: str
    what: str
    shape: str
    batch: int
    reached: Figure
    target: float
    least: bool = False
    floor: Figure | str = ""
    peer: str = ""
    best: Figure | str = ""


def every() -> Iterator[Cell]:
    """All cells: the table, and those that are counted apart."""
    yield from cells()
    yield from apart()


def apart() -> Iterator[Cell]:
    """Cells of what the table did not have when its 185 cells were set."""
    for shape in KDA:
        yield from by_channel(shape)
    yield from few_rows()
    yield from accurate()


def cells() -> Iterator[Cell]:
    """The table, row after row."""
    for row in (plain, scans, standard, verification, small_trees, large_trees):
        for shape in SHAPES:
            yield from row(shape)
    yield from unrolled()
    yield from linears()
    yield from prompts()


def peer_of(shape: str) -> str:
    """The project whose plain step is timed for comparison."""
    return "fla" if shape in DELTA else "vLLM"


def rings(shape: str) -> str:
    """The part that measures flush cycles."""
    return "buffered_delta" if shape in DELTA else "buffered"


def steps(shape: str, b: int) -> tuple[At, ...]:
    """Every plain step of a run: ours in three parts, the peer's last. A ratio over a step takes the fastest of them.

    steps             over states of a large pool, with separate slots for each launch
    buffered          likewise; for the delta rule (`buffered_delta`) with the same slots in separate pools
    peers             as `steps`; for the delta rule without slots, as fla has none
    """
    ours = At("steps", shape, "step", b), At(rings(shape), shape, "step", b), At("peers", shape, "step, ours", b)
    return *ours, At("peers", shape, f"step, {peer_of(shape)}", b)


def plain(shape: str) -> Iterator[Cell]:
    """For many rows bytes over time; for few rows time over that of the bytes and one launch, at least 1.

    Ours is that of the part `steps`, whose slots are placed as an engine's are.
    """
    row, peer = "plain step", peer_of(shape)
    for b in BATCHES:
        ours, *_, theirs = steps(shape, b)
        if b < 64:
            what, figures = f"{row}, over bytes and one launch", (OverFloor(ours), OverFloor(theirs))
            yield Cell(row, what, shape, b, figures[0], 1.3, floor="1", peer=peer, best=figures[1])
        else:
            limit = {64: 0.91, 256: 0.95}[b] if shape in DELTA else 0.92
            what, of_copy = f"{row}, bytes / time in copy", OfCopy(theirs)
            yield Cell(row, what, shape, b, OfCopy(ours), limit, True, FloorOfCopy(ours), peer, of_copy)


def scans(shape: str) -> Iterator[Cell]:
    limits = {5: 1.15, 10: 1.40} if shape in DELTA else {5: 1.08, 10: 1.20}
    for t, published in ((5, "1.11"), (10, "1.72")):
        for b in (16, 64, 256):
            routes, fastest = tuple(At("steps", shape, f"scan of {t}, {route}", b) for route in ROUTES), steps(shape, b)
            ours, floor = Ratio(routes, fastest), Floor(routes[0], fastest[0])
            printed = (shape, b) == (MAMBA2, 16)  # table 1; it has no other model, and no larger batch
            peer, best = ("Snakes and Ladders, table 1", cast(str | Ratio, published)) if printed else ("", "")
            if shape in DELTA:
                peer, best = "fla", Ratio((At("peers", shape, f"scan of {t}, fla", b),), fastest)
            what = f"fused scan of {t}, over a step"
            yield Cell("fused scan", what, shape, b, ours, limits[t], floor=floor, peer=peer, best=best)


def standard(shape: str) -> Iterator[Cell]:
    """The gain over the fastest plain step, and the reached bandwidth."""
    delta, row = shape in DELTA, "buffered standard"
    limits = {1: 1.1, 4: 1.25, 16: 1.5, 64: 1.65, 256: 1.65} if delta else {1: 1.1, 4: 1.35, 16: 1.5, 64: 1.7, 256: 1.7}
    for phase, b in phases():
        ours, fastest = At(rings(shape), shape, f"buffered L=16 output only, {phase}", b), steps(shape, b)
        what = f"{row}, L = 16, {phase}"
        gain, floor = Ratio(fastest, (ours,)), Floor(fastest[1], ours)
        theirs = ("", "") if delta else ("vLLM", Ratio(fastest, (At("peers", shape, "buffered L=16, vLLM", b),)))
        yield Cell(row, f"{what}: gain over a step", shape, b, gain, limits[b], True, floor, *theirs)
        if b >= 64:
            yield Cell(row, f"{what}: bytes / time in copy", shape, b, OfCopy(ours), 0.88, True, FloorOfCopy(ours))


def verification(shape: str) -> Iterator[Cell]:
    """Windows of 6, averaged over flushes, over the fastest plain step."""
    delta = shape in DELTA
    large = {64: 0.85, 256: 0.85} if delta else {64: 0.75, 256: 0.75}
    rows = [(4, 32, large if delta else large | FEW_ROWS)]
    rows += [] if delta else [(4, 22, {64: 0.80, 256: 0.80})]
    rows += [(6, 22, {64: 0.88, 256: 0.88})]
    seen = {64: "1.17", 256: "1.10"} if delta else {1: "4.4", 4: "2.3", 16: "1.6", 64: "1.06"}
    for advanced, L, limits in rows:
        for phase, b in phases():
            if b in limits:
                name = f"verify 6, {advanced} advanced, L={L}, {phase}"
                window, fastest = At(rings(shape), shape, name, b), steps(shape, b)
                ours, floor = Ratio((window,), fastest), Floor(window, fastest[1])
                best = seen.get(b, "") if advanced == 4 and shape != NEMOTRON else ""
                peer = "ReplaySSM's kernels, measured on an H200 by us" if best else ""
                what = f"verification of 6, {advanced} advanced, L = {L}, {phase}: over a step"
                yield Cell("verification", what, shape, b, ours, limits[b], floor=floor, peer=peer, best=best)


def small_trees(shape: str) -> Iterator[Cell]:
    limit, what = 1.25 if shape in DELTA else 1.15, "tree of 13 over a scan of 5 without state write"
    for b in BATCHES:
        chains = tuple(At("steps", shape, f"window of 5, {route}", b) for route in ROUTES)
        tree = At("steps", shape, "tree of 13", b)
        ours, floor = Ratio((tree,), chains), Floor(tree, chains[0])
        yield Cell(
            "tree of 13",
            what,
            shape,
            b,
            ours,
            limit,
            floor=floor,
            peer="STree, table 1, 22.36 / 15.05 ms of a whole step" if shape == MAMBA2 else "",
            best="1.49" if shape == MAMBA2 else "",
        )


def large_trees(shape: str) -> Iterator[Cell]:
    limit, what = 2.5 if shape in DELTA else 1.8, "tree of 63 over a tree of 15"
    for b in BATCHES:
        large, small = (At("steps", shape, f"tree of {nodes}", b) for nodes in (63, 15))
        yield Cell("tree of 63", what, shape, b, Ratio((large,), (small,)), limit, floor=Floor(large, small))


def by_channel(shape: str) -> Iterator[Cell]:
    """Kimi Delta Attention: limits of the delta rule; a gate per channel, a hundredth of the bytes, costs at most 5 %.

    Windows are set against a plain step: 1.3 for one row, 1 for 4, 0.85 from 16 on, as the bytes without a write allow.
    """

    def at(operation: str) -> At:
        return At("kda", shape, operation, b)

    def ratio(row: str, what: str, over: str, under: str, limit: float) -> Cell:
        figure, floor = Ratio((at(over),), (at(under),)), Floor(at(over), at(under))
        return Cell(f"KDA: {row}", f"KDA: {what}", shape, b, figure, limit, floor=floor)

    for b in BATCHES:
        row, step = "KDA: plain step", at("step")
        if b < 64:
            yield Cell(row, f"{row}, over bytes and one launch", shape, b, OverFloor(step), 1.3, floor="1")
        else:
            limit, floor = {64: 0.91, 256: 0.95}[b], FloorOfCopy(step)
            yield Cell(row, f"{row}, bytes / time in copy", shape, b, OfCopy(step), limit, True, floor)
        yield ratio("plain step", "plain step, over the delta rule's", "step", OF_THE_DELTA_RULE, 1.05)
        for t, most in ((5, 1.15), (10, 1.40)):
            yield ratio("fused scan", f"fused scan of {t}, over a step", f"scan of {t}", "step", most)
        most = {1: 1.3, 4: 1.0}.get(b, 0.85)
        yield ratio("window", "window of 5 without a write, over a step", "window of 5", "step", most)
        yield ratio("tree of 13", "tree of 13 over a window of 5 without a write", "tree of 13", "window of 5", 1.25)
        yield ratio("tree of 63", "tree of 63 over a tree of 15", "tree of 63", "tree of 15", 2.5)


def unrolled() -> Iterator[Cell]:
    """One tree compared with a row for each of its leaves."""
    for name, limit in ((PRIVATE, 10.0), (SHARED, 1.4)):
        for shape in SHAPES:
            for b in BATCHES:
                rows, tree = At("unrolled", shape, name, b), At("unrolled", shape, PACKED, b)
                what = f"packed tree of 63 against {name}"
                yield Cell("packed tree", what, shape, b, Ratio((rows,), (tree,)), limit, True, Floor(rows, tree))


def linears() -> Iterator[Cell]:
    """All linear layers for a token; it is checked before timing that the bits of a row do not depend on other rows."""
    shape, row = MAMBA2, "linear_rows"
    for b in (1, 2, 6, 13, 16):
        ours, theirs = (At("linear", shape, name, b) for name in (row, "cuBLAS"))
        floor = FloorOfCopy(ours, LAYERS)
        yield Cell(row, f"{row}, bytes / time in copy", shape, b, OfCopy(ours), 0.80, True, floor, "cuBLAS", OfCopy(theirs))
    for b, limit in ((16, 1.03), (32, 1.06)):
        over, best = (Ratio((At("linear", shape, n, b),), (At("linear", shape, n, 1),)) for n in (row, "cuBLAS"))
        floor_over = Floor(At("linear", shape, row, b), At("linear", shape, row, 1), LAYERS)
        yield Cell(row, f"{row}, over 1 row", shape, b, over, limit, floor=floor_over, peer="cuBLAS", best=best)


def prompts() -> Iterator[Cell]:
    for kernel, shape, peer in PREFILL:
        ours, theirs = (At("prefill", shape, f"{kernel}, {by}", 1) for by in ("ours in bf16", peer))
        what, floor = (
            f"prefill of {TOKENS} tokens, {kernel}, products in bf16 as the peer's, over the peer's",
            FloorOfPeer(ours, theirs),
        )
        yield Cell("prefill", what, shape, 1, Ratio((ours,), (theirs,)), 1.0, floor=floor, peer=peer, best="1")


def few_rows() -> Iterator[Cell]:
    """A fused scan of SSD for 4 rows, as the paper has it for 16, and verification of the delta rule for 1 to 16 rows."""
    for shape in SSD:
        routes, fastest = tuple(At("steps", shape, f"scan of 5, {route}", 4) for route in ROUTES), steps(shape, 4)
        ours, floor = Ratio(routes, fastest), Floor(routes[0], fastest[0])
        peer, best = ("Snakes and Ladders, table 1", "1.25") if shape == MAMBA2 else ("", "")
        what = "few rows: fused scan of 5, over a step"
        yield Cell("few rows: fused scan", what, shape, 4, ours, 1.11, floor=floor, peer=peer, best=best)
    for shape in DELTA:
        for phase, b in phases():
            if b in FEW_ROWS:
                window, fastest = At(rings(shape), shape, f"verify 6, 4 advanced, L=32, {phase}", b), steps(shape, b)
                ours, floor = Ratio((window,), fastest), Floor(window, fastest[1])
                what = f"few rows: verification of 6, 4 advanced, L = 32, {phase}: over a step"
                yield Cell("few rows: verification", what, shape, b, ours, FEW_ROWS[b], floor=floor)


ACCURATE = {
    ("ssd_chunk_scan", "mamba2-2.7b"): 1.58,
    ("ssd_chunk_scan", "nemotron-3-nano-4b"): 1.43,
    ("delta_chunk_scan", "qwen3.5-4b"): 0.64,
    ("causal_attention", "nemotron-3-nano-4b"): 2.26,
}
"""Over the peer's time: the floor of such products, times what the products in bf16 take of theirs."""


def accurate() -> Iterator[Cell]:
    """Prompts with products as accurate as fp32, which no peer has, over the peer's time in bf16."""
    for kernel, shape, peer, ratio in accurate_prompts():
        what = f"prefill of {TOKENS} tokens, {kernel}, products as accurate as fp32, over the peer's in bf16"
        floor = FloorOfPeer(ratio.over[0], ratio.under[0])
        yield Cell("accurate prefill", what, shape, 1, ratio, ACCURATE[kernel, shape], floor=floor, peer=peer, best="1")


def accurate_prompts() -> Iterator[tuple[str, str, str, Ratio]]:
    """Kernel, shape, peer, and the time with products as accurate as fp32, which no peer has, over the peer's."""
    for kernel, shape, peer in PREFILL:
        ours, theirs = (At("prefill", shape, f"{kernel}, {by}", 1) for by in ("ours", peer))
        yield kernel, shape, peer, Ratio((ours,), (theirs,))


def phases() -> Iterator[tuple[str, int]]:
    """Rows that flush at the same step, and rows that flush one after the other."""
    yield from (("aligned", b) for b in BATCHES)
    yield from (("staggered", b) for b in BATCHES if b > 1)
