"""SSD's launchers for windows, trees and commits, with the cases of every law."""

from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import torch

from ssmspec_kernels.ssd import (
    ssd_commit,
    ssd_gated,
    ssd_gated_window,
    ssd_scan,
    ssd_snapshots,
    ssd_tree_scan,
    ssd_window,
)
from tests.kernels import ssd_plot as ssd
from tests.kernels.laws import Subject, bits, moved, nothing_accepted, of_accepted, same, written_or_not
from tests.kernels.plot import Call, accepted, every_row, with_places
from tests.kernels.ssd_plot import Commits, Options

ONE_BY_ONE = {"fused": False}
INTEGERS = [Options(t=7, p=3, n=5, exact=True, padding=False), Options(t=4, p=6, n=9, io="bf16", g=1, exact=True, seed=1)]
WHOLE: dict[str, Any] = {"padding": False}


SCAN = Subject(
    "ssd_scan",
    ssd_scan,
    lambda o: ssd.drawn("ssd_scan", o),
    ssd.of_window,
    cover=[
        Options(D="channel", z=True, poison=7.0),
        Options(t=4, io="bf16", live=True, gentle=True, bias=False, g=4, p=16, n=8, seed=5, poison=2.0),
        Options(t=4, live=True, io="fp16", state="fp16", z=True, D="", seed=3),
        Options(t=3, live=True, state="bf16", g=1, h=3, p=5, n=16, softplus=False, bias=False, limit=(0.1, 0.7), seed=4),
        Options(),
        Options(t=5, io="bf16", gentle=True, p=9, n=33, g=1, limit=(0.2, 0.8), seed=2, poison=3.0),
        Options(t=1, io="bf16", state="bf16", h=2, D="channel", z=True, seed=1),
        Options(b=1, t=32, gentle=True, g=1, h=2, p=4, n=6, seed=6),
        Options(b=2, t=2, h=2, g=1, p=3, n=1, seed=7),
        Options(t=2, gentle=True, io="bf16"),
        *(
            Options(t=2, z=True, D="channel", how={"block_p": p, "run": run, "num_warps": 1})
            for p, run in ((4, 8), (16, 32), (32, 4))
        ),
        *INTEGERS,
    ],
    moves=written_or_not(
        Options(b=2, p=11, z=True, how={"block_p": 8}),
        Options(b=1, t=1, io="bf16", state="bf16", n=16, how={"block_p": 8}),
        Options(b=2, t=5, g=1, h=2, how={"block_p": 8}),
    ),
    steps=[
        Options(t=5, live=True, z=True, how=ONE_BY_ONE),
        Options(t=4, io="bf16", gentle=True, D="channel", how=ONE_BY_ONE),
        *(Options(b=2, t=4, p=p, n=n, gentle=True, how=ONE_BY_ONE, seed=p) for p in (3, 20, 64) for n in (8, 16, 128)),
    ],
    small=Options(t=4, gentle=True, how=ONE_BY_ONE),
)  # fmt: skip


def check_pool(module: ModuleType) -> None:
    """States are kept in a buffer of their own."""
    call = ssd.drawn("ssd_snapshots", Options(b=1, t=2, padding=False), places=np.array([[1, 0]]))
    kept = torch.full((2, *call["S"].shape[1:]), float("nan"))
    call.run(module, pool=kept)
    assert torch.isfinite(kept).all()


SNAPSHOTS = Subject(
    "ssd_snapshots",
    ssd_snapshots,
    lambda o: with_places(ssd.drawn("ssd_snapshots", o)),
    ssd.of_states,
    cover=[
        Options(poison=7.0, spare=12, z=True),
        Options(t=4, io="bf16", state="bf16", gentle=True, p=9, n=19, spare=14, D="channel", limit=(0.05, 0.8), seed=1),
        Options(t=2, live=True, io="fp16", state="fp16", spare=9, seed=2),
        Options(b=1, t=6, g=1, h=3, gentle=True, live=True, spare=9, seed=3),
        Options(b=2, p=9, limit=(0.0, 1.0), spare=9, seed=4),
    ],
    moves=[Options(b=2, t=4, spare=14, **WHOLE), Options(b=3, t=2, io="bf16", spare=9, g=1, **WHOLE)],
    special=[check_pool],
)
WINDOW = Subject(
    "ssd_window",
    ssd_window,
    lambda o: ssd.drawn("ssd_window", o),
    lambda call: ssd.of_window(call, "output_only"),
    cover=[
        Options(t=5, D="channel", z=True, poison=7.0),
        Options(t=4, live=True, io="fp16", state="fp16", D="", seed=2),
        Options(t=6, io="bf16", gentle=True, g=1, p=35, n=33, limit=(0.05, 0.8), z=True, seed=1),
        Options(t=17, live=True, state="bf16", io="bf16", h=2, g=1, p=5, n=16, softplus=False, bias=False, seed=3),
        Options(p=35, g=1, h=2, how={"program_p": 48, "heads": 2}),
        Options(b=1, t=1, io="bf16", g=4, seed=4),
        Options(b=2, t=32, io="bf16", gentle=True, h=2, p=17, n=40, live=True, seed=5, poison=3.0),
        Options(io="bf16", gentle=True),
        *INTEGERS,
        *(
            Options(t=5, p=50, io="bf16", D="channel", z=True, poison=2.0, write=write, how={**tiles, "write_state": write})
            for tiles in (
                {"block_p": 16, "program_p": 16, "heads": 1, "stages": 1},
                {"block_p": 16, "program_p": 32, "heads": 2, "stages": 3},
                {"block_p": 32, "program_p": 64, "heads": 1, "stages": 2},
                {"block_p": 64, "program_p": 64, "heads": 2, "stages": 1},
            )
            for write in (True, False)
        ),
    ],
    moves=written_or_not(
        *(
            replace(o, how=how)
            for o in (Options(b=2, p=19, z=True, t=4), Options(b=1, t=9, io="bf16", state="bf16", n=16, g=1))
            for how in ({}, {"block_p": 16, "program_p": 32})
        )
    ),
    formula=lambda module, call: moved(ssd_scan.traffic_bytes, call),
    small=Options(t=3, gentle=True),
    far=[(o, "t") for o in written_or_not(Options(b=1, io="bf16", g=1, h=1, p=5, n=6))],
)
CHAIN = Options(t=6, io="bf16", gentle=True, h=8, p=35, n=33, z=True, seed=1, poison=3.0)
CHAINS = replace(
    WINDOW,
    name="ssd_window, chains",
    cover=[
        replace(CHAIN, how={"heads": 2}),
        replace(CHAIN, b=2, h=4, t=11, D="channel", live=True, seed=2, poison=float("nan"), how={"program_p": 16}),
    ],
    moves=[replace(CHAIN, b=1, h=4, padding=False, how={"program_p": 32, "heads": 2})],
    far=[],
)
"""Two groups of four heads of 35 channels, programs of one head and of two, D of both kinds."""
TREE = Subject(
    "ssd_tree_scan",
    ssd_tree_scan,
    lambda o: ssd.drawn("ssd_tree_scan", replace(o, tree=True)),
    ssd.of_nodes,
    cover=[
        Options(t=13, D="channel", z=True, poison=7.0),
        Options(t=7, io="fp16", state="fp16", D="", seed=2),
        Options(b=2, t=15, io="bf16", gentle=True, g=1, p=35, n=33, h=2, limit=(0.05, 0.8), z=True, seed=1),
        Options(b=2, t=17, h=2, g=1, n=40, io="bf16", how={"heads": 2}),
        Options(t=15, io="bf16", gentle=True, g=1, p=35, n=33, h=2, limit=(0.05, 0.8), z=True, seed=1),
        Options(b=2, t=63, io="bf16", state="bf16", h=2, g=1, p=5, n=16, softplus=False, bias=False, seed=3),
        Options(b=1, t=128, h=1, g=1, p=3, n=17, gentle=True, io="bf16", seed=4),
        Options(b=1, t=1, io="bf16", seed=5),
        Options(t=9, p=3, n=5, exact=True),
        Options(t=6, p=6, n=9, io="bf16", g=1, exact=True, seed=1),
        *(
            Options(t=t, p=50, io="bf16", z=True, how={"block_p": block, "program_p": program, "heads": heads})
            for t, block, program, heads in ((9, 16, 16, 1), (9, 16, 64, 2), (18, 16, 16, 1), (18, 32, 64, 2))
        ),
    ],
    moves=[
        Options(b=1, h=2, t=5, chain=True, **WHOLE),
        *(
            replace(o, padding=False, chain=True, how=how)
            for o in (Options(b=2, t=13, p=19, z=True), Options(b=2, t=17, io="bf16", state="bf16", g=1))
            for how in ({}, {"block_p": 16, "program_p": 32})
        ),
    ],
    once=("S", "x"),
)
WIDE = Options(t=63, p=64, n=128, io="bf16", spare=1)
REST = replace(WIDE, t=40, h=6, g=2, p=80, seed=1)
STRONG = replace(WIDE, h=2, g=1, limit=(3.0, float("inf")), seed=6)
MILD = replace(WIDE, h=2, g=1, gentle=True, D="", seed=2)
LARGE = replace(
    TREE,
    name="ssd_tree_scan, large",
    cover=[
        *(replace(o, how={"heads": 2}) for o in (replace(STRONG, b=1), MILD, replace(REST, h=2, g=1, t=36))),
        WIDE,
        replace(WIDE, b=1, t=64, h=2, g=1, D="", bias=False, softplus=False, seed=3),
        replace(WIDE, t=33, h=2, limit=(0.05, 0.8), poison=7.0, seed=4),
        STRONG,
        MILD,
        REST,
        replace(REST, h=4, g=1, gentle=True, seed=5),
    ],
    moves=[replace(o, chain=True, padding=False) for o in (replace(WIDE, h=2, g=1), replace(REST, h=4, g=1, t=33))],
)
"""Trees that take a kernel of their own."""
GATED = Subject(
    "ssd_gated",
    ssd_gated,
    ssd.with_norm("ssd_gated", lambda o: ssd_gated.parts(o.h, o.p)),
    ssd.of_gated,
    cover=[
        Options(t=1, io="bf16", D="channel", z=True, h=3, g=1, p=32, n=32, seed=1),
        Options(t=1, io="bf16", state="bf16", z=True, seed=2, poison=7.0),
        Options(b=1, t=2, z=True, p=5, n=19, D="", bias=False, seed=3),
        Options(t=3, io="bf16", z=True, gentle=True, limit=(0.05, 0.8), softplus=False, seed=4, poison=3.0),
    ],
    moves=[
        Options(t=1, io="bf16", D="channel", z=True, h=3, g=1, p=32, n=32, seed=1, **WHOLE),
        Options(t=1, io="bf16", state="bf16", z=True, seed=2, **WHOLE),
        Options(b=1, t=2, z=True, p=5, n=19, D="", bias=False, seed=3, **WHOLE),
    ],
)


def of_tiles(o: Any) -> Call:
    o = replace(o, how={"block_p": ssd.tile_of(o)})
    return ssd.with_norm("ssd_gated_window", lambda o: o.h * -(-o.p // ssd.tile_of(o)))(o)


GATED_WINDOW = Subject(
    "ssd_gated_window",
    ssd_gated_window,
    of_tiles,
    ssd.of_gated_window,
    cover=[
        Options(t=5, io="bf16", D="channel", z=True, h=3, g=1, p=32, n=32, seed=1, poison=7.0),
        Options(t=7, io="bf16", state="bf16", z=True, p=35, seed=2),
        Options(b=2, t=4, z=True, p=5, n=9, D="", bias=False, softplus=False, seed=3),
        Options(t=13, io="bf16", z=True, h=2, g=1, p=20, n=16, tree=True, seed=4, poison=3.0),
        Options(b=2, t=19, io="bf16", z=True, h=2, g=1, p=64, n=16, gentle=True, tree=True, seed=5),
    ],
    moves=[
        Options(t=5, io="bf16", D="channel", z=True, h=3, g=1, p=32, n=32, seed=1, **WHOLE),
        Options(b=2, t=4, z=True, p=5, n=9, D="", bias=False, softplus=False, seed=3, **WHOLE),
        Options(t=13, io="bf16", z=True, h=2, g=1, p=20, n=16, tree=True, chain=True, seed=4, **WHOLE),
    ],
)


def check_tokens(module: ModuleType) -> None:
    """A commit has the bits of single tokens, in fp32."""
    call = ssd.committed(Commits(path=True, drafts=2, io="bf16", p=9, seed=6))
    wanted = call["S"].clone()
    for layer in range(2):
        for slot, (row, taken) in zip(call.named, accepted(call), strict=True):
            for node in taken:
                x, dt, B = (call[name][layer, row, node][None, None] for name in ("x", "dt", "B"))
                how = {"dt_bias": call["dt_bias"][layer].contiguous(), "slots": slot[None], "fused": False}
                ssd_scan.ssd_scan(wanted[layer], x, dt, call["A"][layer].contiguous(), B, B, **how)
    call.run(module)
    assert torch.equal(call["S"][:, call.named], wanted[:, call.named])


def check_gaps(module: ModuleType) -> None:
    """A node outside the window neither decays the state nor adds to it, wherever it stands in a path."""
    found = []
    for path in ([0, 1], [7, 0, 1]):
        call = ssd.committed(Commits(b=2, path=True))
        for name in ("x", "dt", "B"):
            call[name].fill_(1.0)
        call.run(module, path=torch.tensor([path, path]))
        found.append(bits(call, "S"))
    assert same(*found)


COMMITS = [
    Commits(),
    Commits(path=True, drafts=3, io="bf16", seed=1),
    Commits(layers=3, path=True, e=2, state="bf16", io="fp16", t=7, limit=(0.05, 0.8), seed=2),
    Commits(drafts=2, e=1, g=1, h=3, p=5, n=33, bias=False, softplus=False, seed=3),
    Commits(layers=1, b=2, g=4, p=35, n=4, state="fp16", io="bf16", t=17, seed=4),
    Commits(layers=1, b=2, e=2, h=2, g=1, p=5, n=4, t=9, path=True, seed=5),  # nodes beyond the number of states
    Commits(layers=1, b=2, p=16, n=6, seed=6),  # channels that fill their tiles
]
COMMIT = Subject(
    "ssd_commit",
    ssd_commit,
    ssd.committed,
    ssd.of_commit,
    cover=[*COMMITS, *(replace(COMMITS[1], how={"block_p": p, "num_warps": w}) for p, w in ((8, 1), (32, 2), (64, 4)))],
    moves=[replace(o, how=how) for o in (COMMITS[2], *COMMITS[:2]) for how in ({}, {"block_p": 8})],
    formula=of_accepted,
    special=[check_tokens, nothing_accepted(ssd.committed, Commits()), check_gaps],
)
FAR = Commits(layers=3, p=5, n=4, t=3, e=3, h=3, g=3, state="bf16", io="bf16", spare=2)
SPREAD = replace(
    COMMIT,
    name="ssd_commit, every row",
    draw=every_row(ssd.committed),
    special=[],
    cover=[],
    moves=[],
    far=[(FAR, letter) for letter in "ishpmteg"],
)
SUBJECTS = [SCAN, SNAPSHOTS, WINDOW, CHAINS, TREE, LARGE, GATED, GATED_WINDOW, COMMIT, SPREAD]
