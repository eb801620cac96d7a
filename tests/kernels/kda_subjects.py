"""Kimi Delta Attention's launchers, with the cases of every law."""

from dataclasses import replace
from types import ModuleType
from typing import Any

import torch

from ssmspec_kernels.kda import kda_commit, kda_pairs, kda_scan, kda_snapshots, kda_tree
from tests.kernels import delta_plot as delta
from tests.kernels.delta_plot import (
    UNFUSED,
    Commits,
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
from tests.kernels.laws import Subject, bits, nothing_accepted, of_accepted, same, written_or_not
from tests.kernels.plot import Call, accepted, every_row, with_places

SCAN = Subject(
    "kda_scan",
    kda_scan,
    drawn_by("kda_scan"),
    delta.of_window,
    cover=[
        kda(poison=7.0, raw=True, bias=True, lower=-5.0, io="bf16"),
        kda(),
        kda(t=2, raw=True, bias=True, io="bf16", live=True, gentle=True, k=32, v=16, seed=5),
        kda(t=3, raw=True, lower=-0.5, live=True, state="fp16", g=3, h=6, seed=6),
        kda(t=1, io="bf16", state="bf16", h=2, seed=1),
        kda(t=5, io="bf16", gentle=True, k=17, v=33, seed=2, poison=3.0),
        kda(t=4, live=True, io="fp16", state="fp16", l2_norm=False, scale=0.7, seed=3),
        kda(t=2, raw=True, live=True, k=9, v=18, seed=7),
        kda(b=1, t=32, gentle=True, g=1, h=2, k=8, v=4, seed=8),
        kda(t=3, strong=True, g=4, seed=9),
        *(
            kda(io="bf16", raw=True, bias=True, lower=-5.0, how={"tiles": tiles})
            for tiles in ((8, 16, 1), (4, 32, 2), (8, 64, 4))
        ),
        *(kda(t=4, live=True, raw=True, bias=True, lower=low, steep=8.0) for low in (None, -5.0)),
        kda(t=7, exact=True),
        kda(t=4, io="bf16", state="bf16", exact=True),
        kda(io="fp16", exact=True),
    ],
    moves=written_or_not(
        kda(v=40), kda(t=1, io="bf16", state="bf16", v=16), kda(t=5, io="bf16", k=17, g=1, h=2)
    ),
    steps=[kda(t=5, live=True, how=UNFUSED), kda(t=4, io="bf16", raw=True, lower=-5.0, gentle=True, how=UNFUSED)],
    small=kda(t=4, gentle=True, how=UNFUSED),
    formula=moved,
    special=[only_the_last(drawn_by("kda_scan"), (kda(t=5), 0), (kda(t=5), 2))],
)  # fmt: skip
SNAPSHOTS = Subject(
    "kda_snapshots",
    kda_snapshots,
    lambda o: with_places(delta.drawn("kda_snapshots", o)),
    delta.of_states,
    cover=[
        kda(poison=7.0, spare=12),
        kda(t=4, io="bf16", state="bf16", gentle=True, k=9, v=21, spare=14, seed=1),
        kda(t=2, raw=True, bias=True, lower=-5.0, live=True, io="fp16", state="fp16", spare=9, seed=2),
    ],
    moves=[kda(t=4, v=33, spare=14, padding=False), kda(t=2, io="bf16", spare=9, padding=False)],
    formula=of_places,
)


def bytes_of_pairs(module: ModuleType, call: Call) -> int:
    """Of the scores between two launches only those of pairs that are seen are written and read."""
    return moved(module, call) + kda_pairs.traffic_bytes(int(delta.seen(call).sum()), call["g"].shape[2])


def small_kda(**changes: Any) -> Options:
    return kda(**{"g": 1, "h": 2, "k": 6, "v": 9, **changes})


TREE = Subject(
    "kda_tree",
    kda_tree,
    drawn_by("kda_tree"),
    delta.of_nodes,
    cover=trees(
        small_kda(t=5, h=4, g=2, poison=7.0),
        small_kda(t=13, io="bf16", raw=True, bias=True, lower=-5.0, v=18, seed=1),
        small_kda(t=7, raw=True, state="bf16", io="fp16", gentle=True, l2_norm=False, scale=0.7, k=35, seed=2),
        small_kda(t=19, io="bf16", strong=True, k=4, v=5, seed=3, poison=-3.0),
        small_kda(b=2, t=34, io="bf16", raw=True, bias=True, lower=-2.0, k=4, v=5, seed=5),
        *(small_kda(t=6, io="bf16", v=37, seed=1, how={"block_v": block}) for block in (16, 32, 64)),
        small_kda(t=1, h=3, seed=4),
        small_kda(b=1, t=33, raw=True, h=1, k=4, v=5, seed=6),
        small_kda(b=1, t=65, io="bf16", h=1, k=5, v=3, seed=7),
    ),
    moves=combs(small_kda(t=5, v=33), small_kda(b=1, t=18, io="bf16", h=1)),
    formula=bytes_of_pairs,
)

# --- commits ---


def check_tokens(module: ModuleType) -> None:
    """A commit has the bits of single tokens, in fp32."""
    call = delta.committed(Commits(path=True, drafts=2, io="bf16", v=21, lower=-5.0, seed=6))
    wanted = call["S"].clone()
    for layer in range(2):
        gates: dict[str, Any] = {name: call[name][layer].contiguous() for name in ("A", "dt_bias")}
        for slot, (row, taken) in zip(call.named, accepted(call), strict=True):
            for node in taken:
                k, *rest = (call[name][layer, row, node][None, None] for name in delta.TOKENS[1:])
                kda_scan.kda_scan(wanted[layer], k, k, *rest, **gates, lower_bound=-5.0, slots=slot[None], fused=False)
    call.run(module)
    assert torch.equal(call["S"][:, call.named], wanted[:, call.named])


def check_gaps(module: ModuleType) -> None:
    """A node outside the window neither decays the state nor adds to it, wherever it stands in a path."""
    found = []
    for path in ([0, 1], [7, 0, 1]):
        call = delta.committed(Commits(b=2, t=3, path=True, lower=-5.0))
        for name in delta.TOKENS[1:]:
            call[name].fill_(1.0)
        call.run(module, path=torch.tensor([path, path]))
        found.append(bits(call, "S"))
    assert same(*found)


FORMED: dict[str, Any] = {"raw": False, "bias": False}
COMMITS = [
    Commits(),
    Commits(path=True, drafts=3, io="bf16", lower=-5.0, seed=1),
    Commits(layers=3, path=True, state="bf16", io="fp16", t=7, **FORMED, seed=2),
    Commits(drafts=2, g=1, h=3, k=5, v=33, **FORMED, l2_norm=False, seed=3),
    Commits(layers=1, b=2, g=4, k=35, v=4, state="fp16", io="bf16", lower=-0.5, t=9, seed=4),
]
COMMIT = Subject(
    "kda_commit",
    kda_commit,
    delta.committed,
    delta.of_commit,
    cover=COMMITS,
    moves=[COMMITS[2], *COMMITS[:2]],
    formula=of_accepted,
    special=[check_tokens, nothing_accepted(delta.committed, Commits()), check_gaps],
)
FAR = Commits(layers=3, k=5, v=4, t=3, h=3, g=3, state="bf16", io="bf16", spare=2)
SPREAD = replace(
    COMMIT,
    name="kda_commit, every row",
    draw=every_row(delta.committed),
    special=[],
    cover=[],
    moves=[],
    far=[(FAR, letter) for letter in "ishkmtg"],
)
SUBJECTS = [SCAN, one_token(SCAN, channel=True), SNAPSHOTS, TREE, COMMIT, SPREAD]
