"""Arguments of every launcher that `test_far` leaves out, three or more entries on each axis, their last slot taken."""

from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from ssmspec_kernels.attention import causal_attention, kv_compact, rotary, tree_attention, tree_mask
from ssmspec_kernels.coded import ssd_coded_step
from ssmspec_kernels.conv import conv_commit, conv_packed, conv_step
from ssmspec_kernels.delta import delta_chunk_scan, delta_chunked, delta_scan, delta_snapshots
from ssmspec_kernels.delta.ring import delta_buffered, delta_buffered_step, delta_flush
from ssmspec_kernels.kda import kda_commit, kda_snapshots
from ssmspec_kernels.linear import gated_norm, linear_added, linear_rows, norm
from ssmspec_kernels.selective import selective_scan, selective_tree
from ssmspec_kernels.shortconv import (
    shortconv_buffered,
    shortconv_commit,
    shortconv_flush,
    shortconv_packed,
    shortconv_ring,
    shortconv_scan,
    shortconv_snapshots,
    shortconv_tree,
)
from ssmspec_kernels.ssd import ssd_chunk_scan
from ssmspec_kernels.ssd.ring import ssd_buffered_step, ssd_flush
from ssmspec_kernels.tokens import accept_greedy, accept_sampled, commit_tokens, ngram_drafts
from ssmspec_kernels.tokens.accept_greedy import Emitted
from tests.kernels import conv_cases, delta_cases, delta_rings, selective_cases, ssd_cases, ssd_rings

Arguments = dict[str, Any]
Make = Callable[[], Arguments]
HELD = 2
"""Entries of every ring that count: with windows of 3, rings of 7 are due and those of 9 are not."""
MARKS = torch.tensor([[True, False, True], [True, True, True], [False, True, True]])
PATHS = torch.tensor([[0, 2, -1], [1, 2, -1], [2, -1, -1]], dtype=torch.int32)
"""In 32 bits, in which no product with a stride may be formed."""
PARENTS = [[-1, 0, 0], [-1, 0, 1], [-1, 0, 1]]


def numbered(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Small numbers that no two neighbours share."""
    return (torch.arange(torch.Size(shape).numel()) % 97).reshape(shape).to(dtype)


def slots() -> Tensor:
    """The last one is taken by the last row."""
    return torch.tensor([1, 0, 2], dtype=torch.int32)


def window() -> Arguments:
    """Trees of which every row emits something, and room for it."""
    room = (torch.full((3, 3), -7), torch.full((3, 3), -7), torch.full((3,), -7), torch.zeros(3, dtype=torch.bool))
    parents, tokens = torch.tensor(PARENTS), torch.tensor([[1, 0, 2], [2, 1, 0], [0, 2, 1]])
    return {"tokens": tokens, "parents": parents, "budget": torch.full((3,), 9), "slots": slots(), "out": Emitted(*room)}


def greedy() -> Arguments:
    return window() | {"choice": torch.tensor([[2, 0, 1], [1, 0, 2], [2, 1, 0]])}


def sampled() -> Arguments:
    law = torch.tensor([[0.125, 0.25, 0.625], [0.5, 0.25, 0.25], [0.375, 0.5, 0.125]])
    p, q = (torch.stack([law.roll(b + turn, 0) for b in range(3)]) for turn in (0, 1))
    noise = {name: numbered(3, 3).add(1 + i).fmod(9) / 9 for i, name in enumerate(("coins", "picks"))}
    return window() | noise | {"p": p, "q": q, "law": "without_replacement"}


def committed() -> Arguments:
    counts = torch.tensor([3, 2, 3])
    run = Emitted(numbered(3, 3, dtype=torch.int64), torch.zeros(3, 3), counts, torch.zeros(3, dtype=torch.bool))
    return {"run": run, "sequences": torch.full((3, 8), -1), "length": torch.tensor([4, 1, 0]), "slots": slots()}


def masked() -> Arguments:
    parents, nodes = torch.tensor(PARENTS), torch.zeros(3, 3, dtype=torch.int64)
    return {"parents": parents, "ancestors": torch.zeros(3, 3, 3, dtype=torch.bool), "depths": nodes}


def drafted() -> Arguments:
    """Histories that repeat themselves, and a table behind them."""
    given = {"sequences": torch.tensor([[1, 2, 3, 4, 1, 2], [4, 0, 1, 0, 1, 0], [2, 2, 2, 2, 2, 2]])}
    given |= {"table": numbered(5, 3, 3, dtype=torch.int64) % 5, "length": torch.tensor([6, 5, 6])}
    room = {"y": torch.zeros(3, 3, 4, dtype=torch.int64), "lengths": torch.zeros(3, 3, dtype=torch.int64)}
    return given | room | {"tokens": 3, "drafts": 3}


def turned() -> Arguments:
    q, k = numbered(3, 3, 3, 4), numbered(3, 3, 4, 4)
    return {"q": q, "k": k, "cos": numbered(3, 3, 2), "sin": numbered(3, 3, 2), "out": (q.clone(), k.clone())}


def compacted() -> Arguments:
    K = numbered(3, 6, 3, 2)
    return {"K": K, "V": -K, "path": PATHS.clone(), "length": torch.tensor([1, 3, 3]), "slots": slots()}


def attended(cache: int = 8) -> Arguments:
    """Windows of three tokens, three heads of queries and of keys."""
    sizes = dict.fromkeys("qkv", 3) | dict.fromkeys("KV", cache) | {"out": 3}
    made = {name: (numbered(3, t, 3, 5) / 97).roll(i).bfloat16() for i, (name, t) in enumerate(sizes.items())}
    return made | {"length": torch.tensor([5, 4, 3]), "slots": slots()}


def tree() -> Arguments:
    return attended() | {"ancestors": torch.ones(3, 3, 3, dtype=torch.bool).tril(), "append": True}


def prompt(**changes: Any) -> Arguments:
    """Cached tokens before each of the sequences: whole blocks of 16, and some more."""
    given = packed({name: x for name, x in attended(24).items() if name not in ("k", "v")}, "q", "out")
    return given | {"length": torch.tensor([18, 17, 19]), "block_l": 16, "block_t": 16} | changes


def packed(given: Arguments, *names: str) -> Arguments:
    """The rows of a batch as one run of three sequences, the last of which begins far behind."""
    flat = {name: given[name].flatten(0, 1).contiguous() for name in names if name in given}
    return given | flat | {"bounds": torch.tensor([0, 3, 8, 9])}


def conv(t: int = 3, **changes: Any) -> Arguments:
    """Slots of a pool that the rows fill, the last of them taken."""
    made = conv_cases.case(conv_cases.Options(b=3, t=t, c=5, padding=False, io="bf16"))
    pool = {"M": numbered(3, 5, 4), "slots": slots()}
    return {"u": made.u, "weight": made.weight, **made.settings} | pool | changes


def short(t: int = 3) -> Arguments:
    """The short convolution: a pool that the rows fill."""
    tokens = {name: numbered(3, t, 5, dtype=torch.bfloat16).roll(i, 1) / 97 for i, name in enumerate(("B", "C", "x", "out"))}
    return tokens | {"S": numbered(3, 5, 3), "weight": numbered(5, 4), "bias": numbered(5), "slots": slots()}


def short_ring(held: int = 2) -> Arguments:
    """A ring of eight is due if it holds three."""
    cursors = torch.tensor([5, 0, 7], dtype=torch.int32), torch.full((3,), held, dtype=torch.int32)
    return short() | {"ring": shortconv_ring.Ring(numbered(3, 8, 5), *cursors)}


def short_flush() -> Arguments:
    given = short_ring()
    return {name: given[name] for name in ("S", "ring", "slots")} | {"rows": 3}


def short_commit() -> Arguments:
    given, layers = short(), {name: numbered(3, 3, 3, 5, dtype=torch.bfloat16) / 97 for name in "Bx"}
    rows = torch.tensor([2, 0, 1])
    return layers | {"S": numbered(3, 3, 5, 3), "slots": given["slots"], "rows": rows, "path": PATHS.clone()}


def selective() -> Arguments:
    made = selective_cases.case(selective_cases.Options(b=3, t=3, d=3, n=3, padding=False))
    pool = {"S": numbered(3, 3, 3) / 97, "slots": slots()}
    return made.tensors | made.settings | pool


def ssd_options(t: int = 3) -> ssd_cases.Options:
    return ssd_cases.Options(b=3, t=t, h=3, g=3, p=5, n=4, z=True, io="bf16", spare=0, seed=1)


def ssd(t: int = 3) -> Arguments:
    made = ssd_cases.draw(ssd_options(t), padding=False)
    return {name: getattr(made, name) for name in ("S", "A", *ssd_cases.TOKENS, "slots", "out")} | made.extra


def ssd_coded() -> Arguments:
    given = {name: x[:, 0] if name in (*SSD, "z") else x for name, x in ssd(1).items() if name != "S"}
    shape = (*given["x"].shape, given["B"].shape[-1])
    return given | {"codes": numbered(*shape, dtype=torch.int8), "scales": 1 + numbered(*shape), "block": 1}


def ssd_ring(t: int, entries: int, **changes: Any) -> Arguments:
    return ssd(t) | {"ring": filled(ssd_rings.ring_of(replace(ssd_options(t), poison=0.5), entries))} | changes


def delta_options(t: int = 3, k: int = 4) -> delta_cases.Options:
    return delta_cases.Options(b=3, t=t, h=3, g=3, k=k, v=6, io="bf16", spare=0, seed=1)


def delta(t: int = 3, k: int = 4) -> Arguments:
    made = delta_cases.draw(delta_options(t, k), padding=False)
    return {name: getattr(made, name) for name in ("S", "q", "k", "v", "g", "beta", "slots", "out")}


def snapshots(**changes: Any) -> Arguments:
    """A pool of nine states, of which six are free, and two kept of each row."""
    given = delta() | changes
    places = torch.tensor([[3, -1, 4], [-1, 5, 6], [7, 8, -1]], dtype=torch.int32)
    return given | {"S": torch.cat([given["S"]] * 3), "places": places}


def kept(given: Arguments) -> Arguments:
    """A pool twice as large, where the states behind the chunks go."""
    return given | {"S": torch.cat([given["S"]] * 2), "places": torch.tensor([3, 4, 5, -1], dtype=torch.int32)}


def channel_commit() -> Arguments:
    """Layers of windows with a gate for each channel, of which rows of the pool accept a path."""
    k, v, beta = (numbered(3, 3, 3, 3, *size) / 97 for size in ((4,), (6,), ()))
    rows = {"slots": slots(), "rows": torch.tensor([2, 0, 1]), "path": PATHS.clone()}
    return {"S": numbered(3, 3, 3, 4, 6) / 97, "k": k, "v": v, "g": -k, "beta": beta} | rows


def delta_ring(t: int, entries: int, k: int = 4, **changes: Any) -> Arguments:
    ring = filled(delta_rings.ring_of(replace(delta_options(t, k), poison=0.5), entries, torch.bfloat16))
    ring.g.fill_(-0.5)
    return delta(t, k) | {"ring": ring} | changes


def filled(ring: Any) -> Any:
    """Two entries that count in each ring, the second where it begins anew."""
    ring.origin.fill_(ring.capacity - 1)
    ring.held.fill_(HELD)
    return ring


def flushed(given: Arguments, *names: str) -> Arguments:
    return {name: given[name] for name in ("S", "ring", "slots", *names)} | {"rows": 3}


def rows(*names: str, **changes: Tensor) -> Arguments:
    made = {name: (numbered(3, 3, 6) / 97).roll(i).bfloat16() for i, name in enumerate((*names, "out"))}
    return made | {"weight": torch.ones(6)} | changes


def projected(**more: Any) -> Arguments:
    x, W = (numbered(n, 16).sub(48).div(64).bfloat16() for n in (3, 9))
    return {"x": x, "W": W, "out": torch.zeros(3, 9, dtype=torch.bfloat16)} | more


def added() -> Arguments:
    return projected(residual=numbered(3, 9), weight=torch.ones(9), sums=torch.zeros(3, linear_added.parts_of(9)))


DELTA, SSD = ("q", "k", "v", "g", "beta", "out"), ("x", "dt", "B", "C", "z", "out")
CASES: dict[str, tuple[ModuleType, Make]] = {
    "accept greedy": (accept_greedy, greedy),
    "accept sampled": (accept_sampled, sampled),
    "commit tokens": (commit_tokens, committed),
    "tree mask": (tree_mask, masked),
    "prompt's attention": (causal_attention, prompt),
    "prompt's attention, rounded": (causal_attention, lambda: prompt(products="bf16")),
    "tree's attention": (tree_attention, tree),
    "compaction": (kv_compact, compacted),
    "n-grams": (ngram_drafts, drafted),
    "rotary": (rotary, turned),
    "conv step": (conv_step, lambda: {n: x[:, 0] if n in ("u", "out") else x for n, x in conv(1).items()}),
    "conv packed": (conv_packed, lambda: packed(conv(), "u", "out")),
    "conv commit": (conv_commit, lambda: {n: conv()[n] for n in ("M", "u", "slots")} | {"path": PATHS.clone()}),
    "selective scan": (selective_scan, selective),
    "selective tree": (selective_tree, lambda: selective() | {"parents": masked()["parents"]}),
    "ssd, codes": (ssd_coded_step, ssd_coded),
    "ssd prompt": (ssd_chunk_scan, lambda: packed(ssd(), *SSD)),
    "ssd prompt, kept": (ssd_chunk_scan, lambda: kept(packed(ssd(), *SSD))),
    "ssd step, held": (ssd_buffered_step, lambda: ssd_ring(1, 7)),
    "ssd step, due": (ssd_buffered_step, lambda: ssd_ring(1, 3)),
    "ssd step, state": (ssd_buffered_step, lambda: ssd_ring(1, 7, output_only=False)),
    "ssd flush": (ssd_flush, lambda: flushed(ssd_ring(3, 7), "A")),
    "delta prompt": (delta_chunk_scan, lambda: packed(delta(), *DELTA)),
    "delta prompt, kept": (delta_chunk_scan, lambda: kept(packed(delta(), *DELTA))),
    "delta, marked, in two launches": (delta_chunked, lambda: delta() | {"live": MARKS, "two_launches": True}),
    "delta, marked, in registers": (delta_scan, lambda: delta() | {"live": MARKS}),
    "delta snapshots": (delta_snapshots, snapshots),
    "short convolution": (shortconv_scan, lambda: short() | {"live": MARKS}),
    "short convolution, looped": (shortconv_scan, lambda: short(33)),
    "short convolution, snapshots": (
        shortconv_snapshots,
        lambda: short() | {"S": numbered(12, 5, 3), "places": 3 + torch.arange(9).view(3, 3)},
    ),
    "short convolution, tree": (shortconv_tree, lambda: short() | {"parents": torch.tensor(PARENTS)}),
    "short convolution, packed": (shortconv_packed, lambda: packed(short(), "B", "C", "x", "out")),
    "short convolution, commit": (shortconv_commit, short_commit),
    "short convolution, ring": (shortconv_buffered, short_ring),
    "short convolution, due": (shortconv_buffered, lambda: short_ring(3)),
    "short convolution, flush": (shortconv_flush, short_flush),
    "delta by channel, snapshots": (kda_snapshots, lambda: snapshots(g=-numbered(3, 3, 3, 4) / 97)),
    "delta by channel, commit": (kda_commit, channel_commit),
    "delta, due": (delta_buffered, lambda: delta_ring(3, 7)),
    "delta, open": (delta_buffered, lambda: delta_ring(3, 9)),
    "delta, due, short": (delta_buffered, lambda: delta_ring(3, 7, 128, short=True)),
    "delta, open, short": (delta_buffered, lambda: delta_ring(3, 9, 128, short=True)),
    "delta step, held": (delta_buffered_step, lambda: delta_ring(1, 7, short=False)),
    "delta step, due": (delta_buffered_step, lambda: delta_ring(1, 3, short=False)),
    "delta step, short": (delta_buffered_step, lambda: delta_ring(1, 7, short=True)),
    "delta step, short, due": (delta_buffered_step, lambda: delta_ring(1, 3, short=True)),
    "delta step, state": (delta_buffered_step, lambda: delta_ring(1, 7, output_only=False)),
    "delta flush": (delta_flush, lambda: flushed(delta_ring(3, 7))),
    "norm": (norm, lambda: rows("x")),
    "gated norm": (gated_norm, lambda: rows("y", "z")),
    "linear": (linear_rows, projected),
    "linear, added": (linear_added, added),
}
