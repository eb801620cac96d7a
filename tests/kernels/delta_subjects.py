"""The delta rule's launchers for windows and trees, with the cases of every law."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import torch

from conformance.interpreter.memory import watch
from ssmspec_kernels.delta import delta_chunked, delta_scan, delta_snapshots, delta_solve, delta_tree
from ssmspec_ref.delta import tree as oracle
from tests.kernels import delta_plot as delta
from tests.kernels import laws
from tests.kernels.delta_plot import (
    UNFUSED,
    Options,
    combs,
    drawn_by,
    kda,
    moved,
    of_places,
    one_token,
    only_the_last,
    trees,
)
from tests.kernels.laws import Subject, same, written_or_not
from tests.kernels.plot import Call, with_places
from tests.kernels.tensors import doubles

# --- scans, and the state after every token ---

SCAN = Subject(
    "delta_scan",
    delta_scan,
    drawn_by("delta_scan"),
    delta.of_window,
    cover=[
        Options(poison=7.0),
        Options(),
        Options(t=3, live=True, channel=True, state="bf16", g=1, h=3, v=5, seed=4),
        Options(t=2, raw=True, bias=True, io="bf16", live=True, gentle=True, k=32, v=16, seed=5),
        Options(t=1, io="bf16", state="bf16", h=2, seed=1),
        Options(t=5, channel=True, io="bf16", gentle=True, k=17, v=33, seed=2, poison=3.0),
        Options(t=4, live=True, io="fp16", state="fp16", l2_norm=False, scale=0.7, seed=3),
        Options(t=3, raw=True, channel=True, bias=True, io="bf16", state="fp16", g=3, h=6, seed=6),
        Options(t=2, raw=True, live=True, state="fp32", k=9, v=18, seed=7),
        Options(b=1, t=32, gentle=True, g=1, h=2, k=8, v=4, seed=8),
        Options(t=6, gentle=True, live=True, scale=1.3, seed=9),
        *(Options(io="bf16", raw=True, bias=True, how={"tiles": tiles}) for tiles in ((8, 16, 1), (4, 32, 2), (8, 64, 4))),
        Options(t=4, live=True, raw=True, bias=True, steep=8.0),
        Options(t=7, exact=True),
        Options(t=4, channel=True, io="bf16", state="bf16", exact=True),
        Options(io="fp16", exact=True),
    ],
    moves=written_or_not(
        Options(v=40),
        Options(t=1, io="bf16", state="bf16", v=16),
        Options(t=5, channel=True, io="bf16", k=17, g=1, h=2),
    ),
    steps=[
        Options(t=5, live=True, how=UNFUSED),
        Options(t=4, channel=True, io="bf16", raw=True, gentle=True, how=UNFUSED),
    ],
    small=Options(t=4, gentle=True, how=UNFUSED),
    formula=moved,
    special=[only_the_last(drawn_by("delta_scan"), (Options(t=5), 0), (Options(t=5), 2))],
)
SNAPSHOTS = Subject(
    "delta_snapshots",
    delta_snapshots,
    lambda o: with_places(delta.drawn("delta_snapshots", o)),
    delta.of_states,
    cover=[
        Options(poison=7.0, spare=12),
        Options(t=4, channel=True, io="bf16", state="bf16", gentle=True, k=9, v=21, spare=14, seed=1),
        Options(t=2, raw=True, bias=True, live=True, io="fp16", state="fp16", spare=9, seed=2),
        Options(b=1, t=6, g=1, h=3, l2_norm=False, gentle=True, live=True, spare=9, seed=3),
    ],
    moves=[Options(t=4, v=33, spare=14, padding=False), Options(t=2, channel=True, io="bf16", spare=9, padding=False)],
    formula=of_places,
)
# --- windows by products, in one launch and in two ---

LAST = [(o, after) for o in (Options(t=29, io="bf16"), Options(t=7), kda(t=30)) for after in (0, 2)]
CHUNKED = Subject(
    "delta_chunked",
    delta_chunked,
    drawn_by("delta_chunked"),
    delta.of_chunks,
    cover=[
        Options(poison=7.0),
        Options(t=1, io="bf16", h=2, seed=1),
        Options(t=3, raw=True, bias=True, io="bf16", live=True, gentle=True, k=32, v=16, seed=5),
        kda(t=3, raw=True, bias=True, live=True, state="fp16", g=3, h=6, seed=6),
        Options(t=6, gentle=True, live=True, io="bf16", seed=9),
        kda(t=5, io="bf16", gentle=True, k=17, v=33, seed=2, poison=3.0),
        Options(t=4, live=True, io="fp16", state="fp16", l2_norm=False, scale=0.7, seed=3),
        Options(t=17, io="bf16", state="bf16", g=1, h=3, v=5, seed=4),
        Options(b=1, t=32, gentle=True, g=1, h=2, k=8, v=4, seed=8),
        kda(t=2, raw=True, live=True, seed=10),
        *(
            replace(o, raw=True, bias=True, steep=8.0)
            for o in (Options(t=3), Options(t=5, io="bf16", live=True), kda(t=3))
        ),
        *(  # several tiles of channels, of which the last lies partly outside
            Options(t=4, io="bf16", v=v, seed=11, poison=7.0, how={"tiles": (wide, 32 * wide, 2)})
            for wide, v in ((2, 40), (4, 70))
        ),
        Options(t=7, io="bf16", exact=True),
        kda(t=4, state="bf16", exact=True),
        Options(io="fp16", exact=True),
    ],
    moves=written_or_not(
        Options(v=40), Options(t=1, io="bf16", state="bf16", v=16), kda(t=5, io="bf16", k=17, g=1, h=2)
    ),
    formula=moved,
    far=[(Options(b=1, t=2, g=1, h=3, k=6, v=9, state="bf16", spare=0), "h")],
    special=[only_the_last(drawn_by("delta_chunked"), *LAST)],
)  # fmt: skip


def of_two(o: Options) -> Call:
    return delta.drawn("delta_chunked", replace(o, two=True))


def bytes_of_two(module: ModuleType, call: Call) -> int:
    """The bytes of one launch, and those that lie between two: written once, read once at the least."""
    o: Any = call.options
    rows, tokens = len(call.rows), delta_solve.product_rows(o.t)
    read = rows * o.h * (3 * 2 * 2 * tokens**2 + 4 * (2 * tokens + (tokens + 1 if o.write else 0)))
    return moved(module, call) + delta_solve.traffic_bytes(rows, o.t, o.h) + read


@contextmanager
def tiles_of(module: ModuleType, tile: tuple[int, int]) -> Iterator[None]:
    """The second launch with other tiles."""
    apply: Any = sys.modules[module.launch_apply.__module__]
    own, apply.tile = apply.tile, lambda *_: tile
    yield
    apply.tile = own


WHOLE = Options(b=1, t=9, io="bf16", k=32, v=96, g=1, h=2)
"""No tile has channels that are outside; the last run has one tile."""
TWO = [
    Options(t=5, io="bf16", k=17, v=33, seed=2, poison=3.0),
    Options(b=2, t=16, io="bf16", state="bf16", g=1, h=3, v=5, seed=4),
    Options(t=3, raw=True, bias=True, io="bf16", live=True, gentle=True, k=32, v=64, seed=5),
    Options(t=1, io="bf16", h=2, seed=1),
    Options(b=1, spare=1, t=10, io="bf16", state="fp16", gentle=True, l2_norm=False, scale=0.7, k=64, v=70, g=1, h=2, seed=7),
    Options(t=6, gentle=True, live=True, io="bf16", seed=9),
]
ODD = [
    Options(b=2, spare=0, t=1, g=1, h=1, io="bf16", padding=False, seed=21),
    Options(b=2, spare=0, t=8, g=1, h=5, k=17, v=9, io="bf16", raw=True, bias=True, live=True, padding=False, seed=24),
    Options(b=2, spare=0, t=7, g=3, h=3, io="bf16", raw=True, bias=True, padding=False, seed=23),
]
"""Numbers of heads of which the last has a program of two to itself."""


def check_other_tiles(module: ModuleType) -> None:
    for tile in ((2, 2), (4, 2), (2, 4)):
        for o in (WHOLE, *TWO[:2]):
            with tiles_of(module, tile):
                laws.check_bytes(BY_TWO, module, replace(o, padding=False))
                laws.check_bound(BY_TWO, module, o)


def check_no_other_head(module: ModuleType) -> None:
    """What forms gates is read for heads that are there."""
    for o in ODD[1:]:
        call = of_two(o)
        with watch(**call.tensors) as seen:
            call.run(module)
        assert all(seen.loaded(name).distinct == 4 * o.h for name in ("A", "dt_bias"))


def check_heads_apart(module: ModuleType) -> None:
    """Heads 0 and 1 are solved by one program, and 2 and 3; what is no number in 1 and 2 stays there."""
    found: list[list[torch.Tensor]] = []
    for heads in ([], [1, 2]):
        call = of_two(Options(b=2, spare=0, t=5, g=4, h=4, io="bf16", padding=False, seed=12))
        for name in delta.TOKENS:
            call[name][:, :, heads] = float("nan")
        call.run(module)
        found.append([call["out"][:, :, [0, 3]], call["S"][:, [0, 3]], call["out"][:, :, [1, 2]]])
    assert same(found[0][:2], found[1][:2])
    assert found[1][2].isnan().all()


BY_TWO = Subject(
    "delta_chunked, two launches",
    delta_chunked,
    of_two,
    delta.of_chunks,
    cover=[
        *TWO,
        *ODD,
        Options(t=7, io="bf16", exact=True),
        Options(t=4, io="bf16", state="bf16", k=40, v=70, exact=True),
    ],
    moves=[
        *written_or_not(
            Options(io="bf16", v=70), Options(t=9, io="bf16", state="bf16", k=64, v=64, g=1, h=2), WHOLE
        ),
        Options(io="bf16", v=70, g=1, h=3, padding=False),
        *ODD,
    ],
    formula=bytes_of_two,
    once=("S", "store solved.parts", "store solved.factors"),
    far=[(Options(b=1, t=2, g=1, h=3, k=6, v=9, io="bf16", state="bf16", spare=0), "h")],
    special=[
        only_the_last(of_two, *((Options(t=t, io="bf16"), after) for t in (7, 16) for after in (0, 2))),
        check_no_other_head,
        check_other_tiles,
        check_heads_apart,
    ],
)  # fmt: skip

# --- trees ---


def check_parts(module: ModuleType) -> None:
    """A node meets one other, 16 before it, so that the inverse holds its beta alone: in fp32, as the outputs are here.

    A few roundings of 2^-24 each lie between an output and the sum of its terms, which is of order 1; one to tf32 has 2^-12.
    """
    o = Options(b=1, t=40, g=1, h=1, k=24, v=5, io="bf16", l2_norm=False, scale=1.0, padding=False, tree="chain", poison=0.0)
    call, node = delta.drawn("delta_tree", o), torch.arange(40)
    call["k"].copy_(torch.eye(24)[torch.where(node < 32, node % 16, node - 16)][:, None])
    call["q"].copy_(call["k"])
    call["g"].zero_()
    expected = oracle.scan(call.state(), delta.window(call)[0], delta.seen(call), o.params())
    found = call.run(module, inverse=True, out=torch.empty(1, 40, 1, 5))
    assert np.abs(doubles(found) - expected).max() <= 2.0**-18


TREES = [
    Options(t=5, k=6, v=9, poison=7.0),
    Options(t=13, io="bf16", l2_norm=False, scale=0.7, k=6, v=18, seed=1),
    Options(t=7, raw=True, state="bf16", io="fp16", gentle=True, k=6, v=9, seed=3),
    kda(t=5, io="bf16", raw=True, bias=True, g=1, h=1, b=2, k=4, v=5, seed=3),
    Options(t=34, k=3, v=4, g=1, h=1, seed=9, poison=7.0),
    kda(t=33, io="bf16", raw=True, bias=True, g=1, h=1, b=1, k=4, v=2, seed=2),
    Options(t=37, io="bf16", gentle=True, g=1, h=1, k=3, v=4, seed=9, poison=7.0),
    Options(b=2, t=33, io="bf16", raw=True, bias=True, g=1, h=2, k=4, v=5, seed=6),
    Options(b=1, t=100, io="bf16", gentle=True, g=1, h=1, k=3, v=70, seed=9, poison=7.0, how={"block_v": 128}),
    kda(t=35, io="bf16", raw=True, bias=True, g=1, h=2, k=4, v=5, seed=2),
    Options(t=37, io="bf16", gentle=True, g=1, h=2, k=6, v=9, seed=4, poison=-3.0),
    kda(t=1, g=1, h=3, k=6, v=9, seed=5),
    *(Options(b=1, t=128, g=1, h=1, k=4, v=5, io=io, gentle=True, seed=4) for io in ("fp32", "bf16")),
]
TREE = Subject(
    "delta_tree",
    delta_tree,
    drawn_by("delta_tree"),
    delta.of_nodes,
    cover=trees(*TREES),
    moves=combs(
        Options(t=5, k=6, v=33),
        Options(t=34, io="bf16", g=1, h=2, k=6, v=9),
        kda(t=3, g=1, h=2, k=5, v=9),
        kda(b=1, t=34, g=1, h=1, k=4, v=5),
    ),
    formula=moved,
    special=[check_parts],
)
TREE_BY_TWO = replace(
    TREE,
    name="delta_tree, two launches",
    cover=trees(
        *(
            replace(o, two=True)
            for o in (
                Options(t=5, io="bf16", k=6, v=9, poison=7.0),
                Options(t=13, io="bf16", l2_norm=False, scale=0.7, k=6, v=18, gentle=True, seed=1),
                Options(t=7, io="bf16", k=6, v=9, raw=True, bias=True, seed=2),
                *(Options(t=t, g=1, h=h, io="bf16", k=6, v=9, seed=t) for t, h in ((8, 1), (2, 5))),
            )
        )
    ),
    moves=[],
    special=[],
)
SUBJECTS = [SCAN, one_token(SCAN), SNAPSHOTS, CHUNKED, BY_TWO, TREE, TREE_BY_TWO]
