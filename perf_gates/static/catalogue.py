"""Every kernel of the package at the shapes of models, with the arguments that it may write.

`compiled` compiles what is listed here and compares it with its budget.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from .entry import (
    BF16,
    BOOL,
    FP16,
    FP32,
    I32,
    I64,
    SSD,
    Entry,
    delta_entry,
    entry,
    meta,
    selective_entry,
    ssd_entry,
)
from .kernel_modules import kernel_module
from .shapes import CONV, DELTA, KDA, KDA_BOUND, MAMBA3, SELECTIVE, SHORTCONV

ROUNDED: dict[str, Any] = {"products": "bf16"}


def entries() -> Iterator[Entry]:
    """All entries, each with a unique name."""
    for shape in SSD:
        yield from ssd(shape)
    for shape in DELTA:
        yield from delta(shape)
    for shape in KDA:
        yield from kda(shape)
        yield from delta_by_channel(shape)
    yield from rings()
    yield from batches()
    for shape in ("mamba2-2.7b", "qwen3.5-4b"):
        yield from conv(shape)
    for shape in SHORTCONV:
        yield from shortconv(shape)
    for shape in MAMBA3:
        yield from mamba3(shape)
    for shape in SELECTIVE:
        yield from selective(shape)
    yield from trees()
    yield from layers()


def ssd(shape: str) -> Iterator[Entry]:
    """SSD: in registers, through matrix products, a state for every token, trees."""
    at = partial(ssd_entry, shape)
    yield at("ssd_scan", "T=1", 64, 1, stores="S y", quick=(90,))
    yield at("ssd_scan", "T=6", 64, 6, stores="S y")
    yield at("ssd_scan", "T=6 verify", 64, 6, stores="y", quick=(80, 90, 100), write_state=False)
    h, p, *_ = SSD[shape]
    gate: dict[str, Any] = {"z": meta(64, 1, h, p), "weight": meta(h, p)}
    yield at("ssd_gated", "T=1", 64, 1, stores="S y squares", quick=(90,), **gate)
    for b, t in ((1, 6), (4, 6), (1, 13)):
        gate = {"z": meta(b, t, h, p), "weight": meta(h, p)}
        gate |= {"ancestors": meta(b, t, t, dtype=BOOL)} if t > 6 else {}
        quick = (90,) if (b, t) == (1, 6) else ()
        yield at("ssd_gated_window", f"B={b} T={t}", b, t, stores="y squares", quick=quick, **gate)
    yield at("ssd_window", "B=1 T=6", 1, 6, stores="S y")
    yield at("ssd_window", "B=64 T=6", 64, 6, stores="S y", quick=(90,))
    yield at("ssd_window", "B=64 T=6 verify", 64, 6, stores="y", write_state=False)
    for b, t in ((1, 13), (64, 13)):
        ancestors = meta(b, t, t, dtype=BOOL)
        yield at("ssd_tree_scan", f"B={b} T={t}", b, t, ancestors, stores="y", quick=(90,) if (b, t) == (64, 13) else ())
    # Large trees have their own kernel on sm_90; other shapes and devices take that of windows.
    nodes = meta(64, 63, 63, dtype=BOOL)
    yield at("ssd_tree_scan", "B=64 T=63", 64, 63, nodes, stores="y", quick=(90,), on=(90,))
    yield at("ssd_tree_scan", "B=64 T=63 as a window", 64, 63, nodes, stores="y", large=False)
    yield from ssd_prefill(shape)
    yield at("ssd_snapshots", "T=6", 64, 6, meta(64, 6, dtype=I32), stores="kept y", quick=(90,))
    yield from ssd_coded(shape)


def ssd_coded(shape: str) -> Iterator[Entry]:
    """One token from a state in integer codes, rounded to the nearest number and at random."""
    b, (h, p, n, g) = 64, SSD[shape]
    token = meta(b, h, p), meta(b, h), meta(h, dtype=FP32), meta(b, g, n), meta(b, g, n)
    given = {"D": meta(h, dtype=FP32), "dt_bias": meta(h, dtype=FP32), "slots": meta(b, dtype=I32)}
    call = {"call": meta(1, dtype=I64)}
    quick = (90,) if shape == next(iter(SSD)) else ()
    for name, code, more in (("int8", torch.int8, {}), ("int8 at random", torch.int8, call), ("int16", torch.int16, {})):
        states = meta(b, h, p, n, dtype=code), meta(b, h, p, 1, dtype=FP32)
        at = partial(entry, "ssd_coded_step", name, shape, (*states, *token), given | more)
        yield at(stores="codes scales y", wide="codes", quick=quick if name == "int8" else ())


def ssd_prefill(shape: str) -> Iterator[Entry]:
    """A packed run of 4096 tokens."""
    (h, p, n, g), t = SSD[shape], 4096
    for b in (1, 8):
        run = meta(t, h, p), meta(t, h), meta(h, dtype=FP32), meta(t, g, n), meta(t, g, n), meta(b + 1, dtype=I32)
        given = {"D": meta(h, dtype=FP32), "dt_bias": meta(h, dtype=FP32), "slots": meta(b, dtype=I32)}
        args = (meta(b, h, p, n, dtype=FP32), *run)
        quick = (90,) if (shape, b) == ("mamba2-2.7b", 8) else ()
        stores = "S scratch states y"
        yield entry("ssd_chunk_scan", f"B={b} T={t}", shape, args, given, stores=stores, wide="S", quick=quick)
    yield entry("ssd_chunk_scan", "B=8 in bf16", shape, args, given | ROUNDED, stores=stores, wide="S")


def delta(shape: str) -> Iterator[Entry]:
    """The gated delta rule, the gates as projections."""
    at = partial(delta_entry, shape)
    yield at("delta_scan", "T=1", 64, 1, stores="S o", quick=(90,))
    yield at("delta_scan", "T=6", 64, 6, stores="S o")
    yield at("delta_scan", "T=6 verify", 64, 6, stores="o", write_state=False)
    # A lane reads 8 bytes of the small tiles, which were chosen by measurement: eight lanes a row, in the order of the
    # products.
    yield at("delta_chunked", "T=6", 64, 6, stores="S o", quick=(90,), width=8, two_launches=False)
    yield at("delta_chunked", "T=6 verify", 64, 6, stores="o", write_state=False, two_launches=False)
    yield at("delta_chunked", "T=32", 64, 32, stores="S o", width=8)
    # Two launches are for sm_90 only.
    for t, write, stores in ((6, True, "S parts factors o"), (6, False, "parts factors o"), (10, True, "S parts factors o")):
        name, quick = f"T={t}{'' if write else ' verify'}, two launches", (90,) if t == 10 else ()
        yield at(
            "delta_chunked", name, 64, t, stores=stores, quick=quick, width=8, on=(90,), write_state=write, two_launches=True
        )
    name, stores = "T=10, two launches, 16 rows", "S parts factors o"
    yield at("delta_chunked", name, 16, 10, stores=stores, width=8, on=(90,), two_launches=True)
    for b in (1, 8):
        g, h, k, v = DELTA[shape]
        keys, gates = meta(4096, g, k), meta(4096, h)
        args = meta(b, h, k, v, dtype=FP32), keys, keys, meta(4096, h, v), gates, gates, meta(b + 1, dtype=I32)
        given = {"A": meta(h, dtype=FP32), "dt_bias": meta(h, dtype=FP32), "slots": meta(b, dtype=I32)}
        stores, quick = "S scratch o", (90,) if b == 8 else ()
        yield entry("delta_chunk_scan", f"B={b} T=4096", shape, args, given, stores=stores, wide="S", quick=quick)
    wide: dict[str, Any] = {"stores": stores, "wide": "S", "on": (80, 90)}  # sm_100 refuses chunks of 64
    yield entry("delta_chunk_scan", "B=8 chunks of 64", shape, args, given | {"chunk": 64}, **wide)
    yield entry("delta_chunk_scan", "B=8 in bf16", shape, args, given | ROUNDED, stores=stores, wide="S")
    small = meta(64, 13, 13, dtype=BOOL)
    yield at("delta_tree", "T=13", 64, 13, small, stores="o", quick=(90,), two_launches=False)
    yield at(
        "delta_tree", "T=13, two launches", 64, 13, small, stores="parts factors o", width=8, on=(90,), two_launches=True
    )
    # Triton 3.7.1 compiles the inverse to a trap on sm_100, where the launcher avoids it.
    large = meta(64, 63, 63, dtype=BOOL)
    yield at("delta_tree", "T=63", 64, 63, large, stores="o", on=(80, 90))
    yield at("delta_tree", "T=63 without the inverse", 64, 63, large, stores="o", on=(100,), inverse=False)
    g, h, k, v = DELTA[shape]
    nodes = meta(64, 63, g, k), meta(64, 63, g, k), meta(64, 63, h, v), meta(64, 63, h, k), meta(64, 63, h)
    args = meta(64, h, k, v, dtype=FP32), *nodes, meta(64, 63, 63, dtype=BOOL)
    yield entry("delta_tree", "T=63, a gate per channel", shape, args, {"slots": meta(64, dtype=I32)}, stores="o", wide="S")
    yield at("delta_snapshots", "T=6", 64, 6, meta(64, 6, dtype=I32), stores="S o", quick=(90,))


def kda(shape: str) -> Iterator[Entry]:
    """Kimi Delta Attention, the gates as projections, with and without a lower bound."""
    at, (g, h, k, v) = partial(delta_entry, shape), KDA[shape]
    low: dict[str, Any] = {"lower_bound": KDA_BOUND}
    yield at("kda_scan", "T=1", 64, 1, stores="S o", quick=(90,), **low)
    yield at("kda_scan", "T=5", 64, 5, stores="S o", **low)
    yield at("kda_scan", "T=5 without a bound", 64, 5, stores="S o")
    yield at("kda_scan", "T=5 verify", 64, 5, stores="o", write_state=False, **low)
    yield at("kda_scan", "T=5 as written", 64, 5, stores="S o", fused=False, **low)
    yield at("kda_snapshots", "T=5", 64, 5, meta(64, 5, dtype=I32), stores="S o", quick=(90,), **low)
    for b in (1, 64):
        quick = (90,) if b == 64 else ()
        nodes = meta(b, 13, 13, dtype=BOOL)
        yield at("kda_tree", f"B={b} T=13", b, 13, nodes, stores="o pairs", quick=quick, width=8 if b == 1 else 16, **low)
    run = meta(2, 64, 5, g, k), meta(2, 64, 5, h, v), meta(2, 64, 5, h, k), meta(2, 64, 5, h)
    given = {"advanced": meta(64, dtype=I32), "A": meta(2, h, dtype=FP32), "dt_bias": meta(2, h, k, dtype=FP32)}
    args, given = (meta(2, 64, h, k, v, dtype=FP32), *run), given | {"slots": meta(64, dtype=I32)} | low
    yield entry("kda_commit", "T=5", shape, args, given, stores="S", wide="S", quick=(90,))


def delta_by_channel(shape: str) -> Iterator[Entry]:
    """The delta rule's kernels of windows, rings and prompts for Kimi Delta Attention: a decay per key channel."""
    (g, h, k, v), b, L = KDA[shape], 64, 22
    cursors = meta(b, dtype=I32), meta(b, dtype=I32)
    ring = kernel_module("delta_ring").Ring(
        meta(b, L, h, v, dtype=FP32), meta(b, L, g, k), meta(b, L, h, k, dtype=FP32), *cursors
    )
    at, written = partial(delta_entry, shape), "S ring_u ring_k ring_g o"
    yield at("delta_chunked", "T=5 verify by channel", b, 5, stores="o", write_state=False)
    yield at("delta_buffered", "T=5 L=22 by channel", b, 5, stores=written, between=(ring,))
    for route in (True, False):
        name = f"L=22{'' if route else ' state'} by channel"
        yield at("delta_buffered_step", name, b, 1, stores=written, between=(ring,), output_only=route)
    state = meta(b, h, k, v, dtype=FP32)
    yield entry("delta_flush", "L=22 by channel", shape, (state, ring, b), {}, stores="S", wide="S")
    keys, gates = meta(4096, g, k), (meta(4096, h, k), meta(4096, h))
    args = meta(8, h, k, v, dtype=FP32), keys, keys, meta(4096, h, v), *gates, meta(9, dtype=I32)
    given = {"A": meta(h, dtype=FP32), "dt_bias": meta(h, k, dtype=FP32), "slots": meta(8, dtype=I32)}
    yield entry("delta_chunk_scan", "B=8 T=4096 by channel", shape, args, given, stores="S scratch o", wide="S")


def replay_cache(shape: str, b: int, t: int, io: torch.dtype = BF16) -> Any:
    """The cache of two windows of t tokens."""
    h, p, n, g = SSD[shape]
    kept = meta(b, 2 * t, h, p, dtype=io), meta(b, 2 * t, h, dtype=io), meta(b, 2 * t, g, n, dtype=io)
    return kernel_module("ssd_replay_scan").Cache(*kept, meta(b, dtype=I32))


def rings() -> Iterator[Entry]:
    """Buffered decoding: verification of 6 tokens, single steps in both ways, the flush, the cursors.

    Buffered kernels also write the state, for rows whose ring is full.
    """
    L, b = 32, 64
    cursors = meta(b, dtype=I32), meta(b, dtype=I32)
    ssd_ring = kernel_module("ssd_ring").Ring
    delta_ring = kernel_module("delta_ring").Ring
    for shape, (h, p, n, g) in SSD.items():
        ring = ssd_ring(meta(b, L, h, p), meta(b, L, h, dtype=FP32), meta(b, L, g, n), *cursors)
        at = partial(ssd_entry, shape, between=(ring,))
        quick = (90,) if shape == "mamba2-2.7b" else ()
        yield at("ssd_buffered", "T=6 L=32", b, 6, stores="S ring_x ring_dt ring_B y", quick=quick)
        yield at("ssd_buffered", "T=6 L=32 due apart", b, 6, stores="S ring_x ring_dt ring_B y", apart=True)
        yield at("ssd_buffered", "T=13 L=32", b, 13, stores="S ring_x ring_dt ring_B y")
        yield at("ssd_buffered_step", "L=32", b, 1, stores="S ring_x ring_dt ring_B y", quick=quick)
        yield at("ssd_buffered_step", "L=32 state", b, 1, stores="S ring_x ring_dt ring_B y", output_only=False)
        short = meta(b, 16, h, p), meta(b, 16, h, dtype=FP32), meta(b, 16, g, n)
        at = partial(ssd_entry, shape, between=(ssd_ring(*short, *cursors),))
        yield at("ssd_buffered_step", "L=16", b, 1, stores="S ring_x ring_dt ring_B y")
        flush = meta(b, h, p, n, dtype=FP32), ring, meta(h, dtype=FP32), b
        yield entry("ssd_flush", "L=32", shape, flush, {}, stores="S", wide="S", quick=quick)
        given = {"advanced": meta(b, dtype=I64), "dt_bias": meta(2, h, dtype=FP32), "slots": meta(b, dtype=I64)}
        inputs = meta(2, b, 6, h, p), meta(2, b, 6, h), meta(2, h, dtype=FP32), meta(2, b, 6, g, n)
        states = meta(2, b, h, p, n, dtype=FP32)
        yield entry("ssd_commit", "T=6", shape, (states, *inputs), given, stores="S", wide="S", quick=quick)
        stores = "S cache_x cache_dt cache_B y"
        at = partial(ssd_entry, shape, between=(replay_cache(shape, b, 6), meta(b, dtype=I32)))
        yield at("ssd_replay_scan", "T=6", b, 6, stores=stores, quick=quick)
        for t in (13, 30):
            more: dict[str, Any] = {"ancestors": meta(b, t, t, dtype=BOOL), "path": meta(b, t, dtype=I32)}
            at = partial(ssd_entry, shape, between=(replay_cache(shape, b, t), meta(b, dtype=I32)))
            yield at("ssd_replay_scan", f"T={t} tree", b, t, stores=stores, **more)
        x, dt, B = meta(b, 6, h, p, dtype=FP16), meta(b, 6, h, dtype=FP16), meta(b, 6, g, n, dtype=FP16)
        state, cache = meta(b, h, p, n, dtype=FP32), replay_cache(shape, b, 6, FP16)
        walked = state, cache, meta(b, dtype=I32), x, dt, meta(h, dtype=FP32), B, B
        given = {"D": meta(h, dtype=FP32), "dt_bias": meta(h, dtype=FP32), "slots": meta(b, dtype=I32)}
        yield entry("ssd_replay_scan", "T=6 in fp16", shape, walked, given, stores=stores, wide="S")
    for shape, (g, h, k, v) in DELTA.items():
        ring = delta_ring(meta(b, L, h, v), meta(b, L, g, k), meta(b, L, h, dtype=FP32), *cursors)
        at = partial(delta_entry, shape, between=(ring,))
        written = "S ring_u ring_k ring_g o"
        yield at("delta_buffered", "T=6 L=32", b, 6, stores=written, quick=(90,))
        yield at("delta_buffered", "T=6 L=32, any window", b, 6, stores=written, short=False)
        yield at("delta_buffered_step", "L=32", b, 1, stores=written, quick=(90,))
        yield at("delta_buffered_step", "L=32, streamed", b, 1, stores=written, short=False)
        yield at("delta_buffered_step", "L=32 state", b, 1, stores=written, output_only=False)
        state = meta(b, h, k, v, dtype=FP32)
        yield entry("delta_flush", "L=32", shape, (state, ring, b), {}, stores="S", wide="S", quick=(90,))
    accepted, window = (*cursors, meta(b, dtype=I32)), {"capacity": L, "window": 6}
    halves = {"rows": b, "slots": meta(b, dtype=I32)}
    yield entry("commit_halves", "T=6", "any", cursors[:1], halves, stores="half", quick=(90,), module="double_buffer")
    yield entry("commit_window", "T=6 L=32", "any", accepted, window, stores="origin held", quick=(90,), module="cursors")


def batches() -> Iterator[Entry]:
    """Tiles that launchers choose for 4 or 256 rows but not for 64, as timed on an H200."""
    ssd_ring = kernel_module("ssd_ring").Ring
    delta_ring = kernel_module("delta_ring").Ring

    def cursors(b: int) -> tuple[torch.Tensor, ...]:
        return meta(b, dtype=I32), meta(b, dtype=I32)

    for shape, (h, p, n, g) in SSD.items():
        for b in (4, 256):
            at = partial(ssd_entry, shape, on=(90,))
            yield at("ssd_window", f"B={b} T=5 verify", b, 5, stores="y", write_state=False)
            if b == 256:
                for L in (22, 32):
                    ring = ssd_ring(meta(b, L, h, p), meta(b, L, h, dtype=FP32), meta(b, L, g, n), *cursors(b))
                    at = partial(ssd_entry, shape, on=(90,), between=(ring,))
                    yield at("ssd_buffered", f"B={b} T=6 L={L}", b, 6, stores="S ring_x ring_dt ring_B y")
            else:
                ring = ssd_ring(meta(b, 16, h, p), meta(b, 16, h, dtype=FP32), meta(b, 16, g, n), *cursors(b))
                at = partial(ssd_entry, shape, on=(90,), between=(ring,))
                yield at("ssd_buffered_step", f"B={b} L=16", b, 1, stores="S ring_x ring_dt ring_B y")
    for shape, (g, h, k, v) in DELTA.items():
        yield delta_entry(shape, "delta_chunked", "B=4 T=10", 4, 10, stores="S parts factors o", width=8, on=(90,))
        for t, L in ((1, 16), (6, 22), (6, 32)):
            b, name = 256, "delta_buffered_step" if t == 1 else "delta_buffered"
            ring = delta_ring(meta(b, L, h, v), meta(b, L, g, k), meta(b, L, h, dtype=FP32), *cursors(b))
            at = partial(delta_entry, shape, on=(90,), between=(ring,))
            yield at(name, f"B={b} {f'T={t} ' if t > 1 else ''}L={L}", b, t, stores="S ring_u ring_k ring_g o")


def trees() -> Iterator[Entry]:
    """Trees of 13 nodes over the vocabulary of Mamba2-2.7B, and the cache of a Nemotron-3-Nano-4B attention layer."""
    b, t, i = 64, 13, 50288
    nodes, row = meta(b, t, dtype=I64), meta(b, dtype=I64)
    laws = {"law": "without_replacement", "q": meta(b, t, i, dtype=FP32), "coins": meta(b, t, dtype=FP32)}
    emitted = "y_tokens y_path y_advanced y_ended"
    yield entry("tree_mask", "T=13", "any", (nodes,), {}, stores="ancestors depths", quick=(90,))
    written, bigrams = (meta(b, 4096, dtype=I64), row, 6, 2), {"table": meta(i, 2, 6, dtype=I64), "slots": row}
    yield entry("ngram_drafts", "PNG(6,2)", "mamba2-2.7b", written, bigrams, stores="y lengths places", quick=(90,))
    greedy, eos = (nodes, nodes, nodes, row), {"eos": meta(2, dtype=I64)}
    yield entry("accept_greedy", "T=13", "any", greedy, eos, stores=emitted, quick=(90,))
    run = kernel_module("accept_greedy").Emitted(nodes, nodes, row, meta(b, dtype=BOOL))
    args = run, meta(b, 4096, dtype=I64), row
    given = {"root": row, "cursor": row, "budget": row, "ended": meta(b, dtype=BOOL)}
    owned = "sequences length root cursor budget ended"
    yield entry("commit_tokens", "T=13", "any", args, given, stores=owned, quick=(90,))
    sampled = nodes, nodes, meta(b, t, i, dtype=FP32), meta(b, t, dtype=FP32), row
    yield entry("accept_sampled", "T=13", "mamba2-2.7b", sampled, laws, stores=emitted, quick=(90,))
    cache = meta(b, 4096, 8, 128)
    prompt = meta(4096, 40, 128), cache, cache, meta(b + 1, dtype=I32)
    length = {"length": meta(b, dtype=I32)}
    prompts, near = partial(entry, "causal_attention", stores="y", wide="K V", quick=(90,)), {"descriptors": True}
    yield prompts("T=4096", "nemotron-4b", prompt, length)
    yield prompts("T=4096 in bf16", "nemotron-4b", prompt, length | ROUNDED | {"descriptors": False}, quick=())
    yield prompts("T=4096 by descriptors", "nemotron-4b", prompt, length | ROUNDED | near, on=(90, 100))
    window = meta(b, t, 40, 128), meta(b, t, 8, 128), meta(b, t, 8, 128), cache, cache, meta(b, dtype=I32)
    mask, owned = {"ancestors": meta(b, t, t, dtype=BOOL)}, "o_s m_s d_s y"
    yield entry("tree_attention", "T=13", "nemotron-4b", window, mask, stores=owned, wide="K V", quick=(90,))
    turns = meta(b, t, 64, dtype=FP32), meta(b, t, 64, dtype=FP32)
    yield entry("rotary", "T=13", "nemotron-4b", (*window[:2], *turns), {}, stores="out_q out_k", quick=(90,))
    yield entry("kv_compact", "T=13", "nemotron-4b", (cache, cache, nodes, row), {}, stores="K V", wide="K V", quick=(90,))


def conv(shape: str) -> Iterator[Entry]:
    """The causal convolution: windows (b, c, 4) in bf16, as engines keep them."""
    c, b = CONV[shape], 64
    M, weight, u = meta(b, c, 4), meta(c, 4), meta(b, 6, c)
    given = {"bias": meta(c), "slots": meta(b, dtype=I32)}
    replay = {"previous": u, "advanced": meta(b, dtype=I32), "keep": "committed"}
    tree = M, meta(b, 13, c), meta(b, 13, dtype=I32), weight
    run = M, meta(4096, c), meta(b + 1, dtype=I32), weight
    quick = (90,) if shape == "mamba2-2.7b" else ()
    yield entry("conv_step", "T=1", shape, (M, meta(b, c), weight), given, stores="M y", quick=quick)
    yield entry("conv_window", "T=6", shape, (M, u, weight), given, stores="M y")
    yield entry("conv_window", "T=6 replay", shape, (M, u, weight), given | replay, stores="M y", quick=quick)
    yield entry("conv_window", "T=6 verify", shape, (M, u, weight), given | {"keep": "none"}, stores="y")
    yield entry("conv_tree", "T=13", shape, tree, given, stores="y", quick=quick)
    yield entry("conv_packed", "T=4096", shape, run, given, stores="M y", quick=quick)
    yield entry("conv_commit", "T=6", shape, (M, u), {"advanced": meta(b, dtype=I32)}, stores="M", quick=quick)


def shortconv(shape: str) -> Iterator[Entry]:
    """The short convolution of LFM2: columns in fp32, B | C | x as one projection writes them."""
    (d, w), b, L = SHORTCONV[shape], 64, 32
    S, weight, slots = meta(b, d, w - 1, dtype=FP32), meta(d, w), {"slots": meta(b, dtype=I32)}

    def window(*axes: int) -> tuple[torch.Tensor, ...]:
        return (S, *meta(*axes, 3 * d).chunk(3, dim=-1), weight)

    at = partial(entry, shape=shape, options=slots)
    yield at("shortconv_scan", "T=1", args=window(b, 1), stores="S y", quick=(90,))
    yield at("shortconv_scan", "T=6", args=window(b, 6), stores="S y")
    yield at("shortconv_scan", "T=6 verify", args=window(b, 6), stores="y", options=slots | {"write_state": False})
    yield at("shortconv_scan", "T=64", args=window(b, 64), stores="S y")
    places = meta(b, 6, dtype=I32)
    yield at("shortconv_snapshots", "T=6", args=(*window(b, 6), places), stores="S y", quick=(90,))
    for t in (13, 63):
        nodes = meta(b, t, dtype=I32)
        yield at("shortconv_tree", f"T={t}", args=(*window(b, t), nodes), stores="y", quick=(90,) if t == 13 else ())
    run = (*window(4096), meta(b + 1, dtype=I32))
    yield at("shortconv_packed", "T=4096", args=run, stores="S y", quick=(90,))
    B, _, x = meta(2, b, 6, 3 * d).chunk(3, dim=-1)
    accepted, states = slots | {"advanced": meta(b, dtype=I32)}, meta(2, b, d, w - 1, dtype=FP32)
    yield at("shortconv_commit", "T=6", args=(states, B, x), stores="S", options=accepted, quick=(90,))
    ring = kernel_module("shortconv_ring").Ring(meta(b, L, d, dtype=FP32), meta(b, dtype=I32), meta(b, dtype=I32))
    first, *rest = window(b, 6)
    yield at("shortconv_buffered", "T=6 L=32", args=(first, ring, *rest), stores="S ring_u y", quick=(90,))
    yield at("shortconv_flush", "L=32", args=(S, ring, b), stores="S", quick=(90,))


def mamba3(shape: str) -> Iterator[Entry]:
    """Mamba-3: SISO by pairs of neighbours without a gate, MIMO by halves with maps and gate; one projection writes all."""
    (h, p, n, g, f, r), b = MAMBA3[shape], 64
    exact = partial(meta, dtype=FP32)
    e, quick = p * n + f + r * n + p, (90,) if r == 1 else ()
    S, norms, biases, maps = exact(b, h, e), exact(n), exact(h, r, n), exact(h, r, p)

    def window(*lead: int) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
        sizes = h * p, h * p, r * g * n, r * g * n, h, h, h, f
        z, x, B, C, dt, A, trap, angle = torch.split(meta(*lead, sum(sizes)), list(sizes), dim=-1)
        B, C = (a.view(*lead, r, g, n) for a in (B, C))
        return (x.view(*lead, h, p), dt, A, trap, angle, B, C), z.view(*lead, h, p)

    def given(*lead: int) -> dict[str, Any]:
        many = {"halves": True, "up": maps, "gate": maps, "down": maps, "z": window(*lead)[1]} if r > 1 else {}
        return {"D": exact(h), "slots": meta(b, dtype=I32), **many}

    weights, at = (norms, norms, biases, biases, exact(h)), partial(entry, shape=shape)
    kinds: tuple[tuple[str, int, dict[str, Any]], ...] = (("T=1", 1, {}), ("T=6 verify", 6, {"write_state": False}))
    for name, t, options in kinds:
        stores, fast = "y" if options else "S y", quick if t == 1 else ()
        inputs = (S, *window(b, t)[0], *weights)
        yield at("mamba3_scan", name, args=inputs, options=given(b, t) | options, stores=stores, quick=fast)
    places = meta(b, 6, dtype=I32)
    inputs = (S, *window(b, 6)[0], *weights, places)
    yield at("mamba3_snapshots", "T=6", args=inputs, options=given(b, 6), stores="S y", quick=quick)
    inputs = (exact(2, b, h, e), *window(2, b, 6)[0][:6], exact(2, n), exact(2, h, r, n), exact(2, h))
    accepted: dict[str, Any] = {"advanced": meta(b, dtype=I32), "slots": meta(b, dtype=I32)}
    accepted |= {"halves": True, "up": exact(2, h, r, p)} if r > 1 else {}
    yield at("mamba3_commit", "T=6", args=inputs, options=accepted, stores="S", quick=quick)
    inputs = (S, *window(b, 13)[0], *weights, meta(b, 13, 13, dtype=BOOL))
    yield at("mamba3_tree", "T=13", args=inputs, options=given(b, 13), stores="y", quick=quick)
    if r > 1:
        return
    inputs, prompts = (S, *window(4096)[0], *weights, meta(9, dtype=I32)), {"slots": meta(8, dtype=I32)}
    yield at("mamba3_packed", "B=8 T=4096", args=inputs, options=given(4096) | prompts, stores="S y", quick=quick)
    L, cursors, heads = 32, (meta(b, dtype=I32), meta(b, dtype=I32)), (meta(b, 32, h) for _ in range(3))
    ring = kernel_module("mamba3_ring").Ring(meta(b, L, h, p), *heads, meta(b, L, f), meta(b, L, r, g, n), *cursors)
    entries = " ".join(f"ring_{name}" for name in ("x", "dt", "A", "trap", "angle", "B"))
    inputs = (S, ring, *window(b, 6)[0], *weights)
    yield at("mamba3_buffered", "T=6 L=32", args=inputs, options=given(b, 6), stores=f"S {entries} y", quick=quick)
    yield at("mamba3_flush", "L=32", args=(S, ring, norms, biases, exact(h), b), options={}, stores="S", quick=quick)


def selective(shape: str) -> Iterator[Entry]:
    """Mamba-1."""
    at = partial(selective_entry, shape)
    yield at("selective_scan", "T=1", 64, 1, stores="S y", quick=(90,))
    yield at("selective_scan", "T=6", 64, 6, stores="S y")
    yield at("selective_scan", "T=6 verify", 64, 6, stores="y", write_state=False)
    # 16 channels by 16 states are two a lane.
    yield at("selective_tree", "T=13", 64, 13, meta(64, 13, dtype=I32), stores="y", width=8, quick=(90,))


def layers() -> Iterator[Entry]:
    """The layers between the recurrences, at the widths of Mamba2-2.7B and Qwen3.5-4B."""
    for m in (1, 32, 128):
        args = meta(m, 5120), meta(2560, 5120)
        early, late = {"overlap": True}, {"overlap": False}
        yield entry("linear_rows", f"M={m}", "mamba2-2.7b", args, late, stores="y", wide="W", quick=(90,) if m == 1 else ())
        yield entry("linear_rows", f"M={m} overlapped", "mamba2-2.7b", args, early, stores="y", wide="W", on=(90,))
    for m in (1, 32):
        given = {"residual": meta(m, 2560, dtype=FP32), "weight": meta(2560)}
        args, quick = (meta(m, 5120), meta(2560, 5120)), (90,) if m == 1 else ()
        writes = "y residual sums"
        yield entry("linear_added", f"M={m}", "mamba2-2.7b", args, given, stores=writes, wide="W", quick=quick)
        args, given = (meta(m, 2560), meta(10576, 2560)), {"squares": meta(m, 160, dtype=FP32)}
        yield entry("linear_rows", f"M={m} squares", "mamba2-2.7b", args, given, stores="y", wide="W", quick=quick)
        yield entry("linear_rows", f"M={m} in_proj overlapped", "mamba2-2.7b", args, early, stores="y", wide="W", on=(90,))
    x = meta(64, 6, 2560)
    given = {"residual": meta(64, 6, 2560, dtype=FP32)}
    yield entry("norm", "T=6", "mamba2-2.7b", (x, meta(2560)), given, stores="residual y", quick=(90,))
    y, heads = meta(64, 6, 5120), meta(64, 6, 32, 128)
    yield entry("gated_norm", "T=6", "mamba2-2.7b", (y, y, meta(5120)), {}, stores="out")
    yield entry("gated_norm", "T=6", "qwen3.5-4b", (heads, heads, meta(128)), {"norm_first": True}, stores="out", quick=(90,))
