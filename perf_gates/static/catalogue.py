"""Every kernel of the package at the shapes of models, with the arguments that it may write.

`compiled` compiles what is listed here and compares it with its budget.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from ssmspec_ref.mamba3 import width

from .entry import BF16, BOOL, FP16, FP32, I64, SSD, Entry, Kind, entry, meta
from .kernel_modules import kernel_module
from .shapes import CONV, DELTA, KDA, KDA_BOUND, MAMBA3, SELECTIVE, SHORTCONV

ROUNDED: dict[str, Any] = {"products": "bf16"}
IO = {"weight": BF16, "bias": BF16}
"""Weights in the type of the activations."""
ANY = Kind(give="", wide="")
HEADS = Kind("h p n g", SSD, "D dt_bias slots", {"weight": BF16}, quick="mamba2-2.7b")
RULE = Kind("g h k v", DELTA, "A dt_bias slots", out="o")
CHANNEL = replace(RULE, sizes=KDA, form=1, types={"ring.u": FP32})
TAPS = Kind("c w", {shape: (c, 4) for shape, c in CONV.items()}, "bias slots", IO | {"M": BF16}, wide="", quick="mamba2-2.7b")
COLUMNS = Kind(
    "d w",
    SHORTCONV,
    types=IO | {"ring.u": FP32},
    beside="B C x",
    projected="shortconv_scan",
    wide="",
    derived=lambda axes: {"q": axes["w"] - 1},
)
TRAPEZOID = Kind(
    "h p n g f r",
    MAMBA3,
    "D slots",
    beside="z x B C dt A trap angle",
    projected="mamba3_scan",
    apart="z",
    same=("B_norm C_norm", "B_bias C_bias", "up gate down"),
    wide="",
    quick="mamba3-siso",
    derived=lambda axes: {"e": width(*(axes[letter] for letter in "pnfr"))},
)
CHANNELS = Kind("d n", SELECTIVE, "D z dt_bias slots")
TOKENS = Kind(give="", ints=I64, wide="")
CACHE = Kind("h g e l", {"nemotron-4b": (40, 8, 128, 4096)}, "", same=("K V",), wide="K V")
NORMED = Kind(give="", types={"weight": BF16, "residual": FP32}, wide="W")


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
    at = partial(entry, HEADS, shape)
    yield at("ssd_scan", "T=1", quick=(90,))
    yield at("ssd_scan", "T=6", 64, 6)
    yield at("ssd_scan", "T=6 verify", 64, 6, quick=(80, 90, 100), write_state=False)
    yield at("ssd_gated", "T=1", also="squares", quick=(90,))
    for b, t in ((1, 6), (4, 6), (1, 13)):
        quick, give = (90,) if (b, t) == (1, 6) else (), "ancestors" if t > 6 else ""
        yield at("ssd_gated_window", f"B={b} T={t}", b, t, also="squares", quick=quick, give=give)
    yield at("ssd_window", "B=1 T=6", 1, 6)
    yield at("ssd_window", "B=64 T=6", 64, 6, quick=(90,))
    yield at("ssd_window", "B=64 T=6 verify", 64, 6, write_state=False)
    for b, t in ((1, 13), (64, 13)):
        yield at("ssd_tree_scan", f"B={b} T={t}", b, t, quick=(90,) if (b, t) == (64, 13) else ())
    # Large trees have their own kernel on sm_90; other shapes and devices take that of windows.
    yield at("ssd_tree_scan", "B=64 T=63", 64, 63, quick=(90,), on=(90,))
    yield at("ssd_tree_scan", "B=64 T=63 as a window", 64, 63, large=False)
    for b in (1, 8):  # a packed run
        yield at("ssd_chunk_scan", f"B={b} T=4096", b, 4096, also="scratch states", quick=(90,) if b == 8 else ())
    yield at("ssd_chunk_scan", "B=8 in bf16", 8, 4096, also="scratch states", **ROUNDED)
    yield at("ssd_snapshots", "T=6", 64, 6, stores="kept y", quick=(90,))
    yield from ssd_coded(shape)


def ssd_coded(shape: str) -> Iterator[Entry]:
    """One token from a state in integer codes, rounded to the nearest number and at random."""
    for name, code, give in (("int8", "int8", ""), ("int8 at random", "int8", "call"), ("int16", "int16", "")):
        of = replace(HEADS, types={"codes": getattr(kernel_module("ssd_coded_step").torch, code), "call": I64})
        how: dict[str, Any] = {"wide": "codes", "quick": (90,) if name == "int8" else (), "stores": "codes scales y"}
        yield entry(of, shape, "ssd_coded_step", name, give=give, axes={"i": 1, "j": 1}, **how)


def delta(shape: str) -> Iterator[Entry]:
    """The gated delta rule, the gates as projections."""
    at = partial(entry, RULE, shape)
    yield at("delta_scan", "T=1", quick=(90,))
    yield at("delta_scan", "T=6", 64, 6)
    yield at("delta_scan", "T=6 verify", 64, 6, write_state=False)
    # A lane reads 8 bytes of the small tiles, which were chosen by measurement: eight lanes a row, in the order of the
    # products.
    yield at("delta_chunked", "T=6", 64, 6, quick=(90,), width=8, two_launches=False)
    yield at("delta_chunked", "T=6 verify", 64, 6, write_state=False, two_launches=False)
    yield at("delta_chunked", "T=32", 64, 32, width=8)
    # Two launches are for sm_90 only.
    two: dict[str, Any] = {"also": "parts factors", "width": 8, "on": (90,), "two_launches": True}
    for t, write in ((6, True), (6, False), (10, True)):
        name, quick = f"T={t}{'' if write else ' verify'}, two launches", (90,) if t == 10 else ()
        yield at("delta_chunked", name, 64, t, quick=quick, write_state=write, **two)
    yield at("delta_chunked", "T=10, two launches, 16 rows", 16, 10, **two)
    run = partial(entry, replace(RULE, same=("q k", "g beta")), shape, "delta_chunk_scan", t=4096, also="scratch")
    for b in (1, 8):
        yield run(f"B={b} T=4096", b=b, quick=(90,) if b == 8 else ())
    yield run("B=8 chunks of 64", b=8, on=(80, 90), chunk=64)  # sm_100 refuses chunks of 64
    yield run("B=8 in bf16", b=8, **ROUNDED)
    yield at("delta_tree", "T=13", 64, 13, quick=(90,), two_launches=False)
    yield at("delta_tree", "T=13, two launches", 64, 13, **two)
    # Triton 3.7.1 compiles the inverse to a trap on sm_100, where the launcher avoids it.
    yield at("delta_tree", "T=63", 64, 63, on=(80, 90))
    yield at("delta_tree", "T=63 without the inverse", 64, 63, on=(100,), inverse=False)
    channel = replace(RULE, form=1, give="slots")
    yield entry(channel, shape, "delta_tree", "T=63, a gate per channel", 64, 63)
    yield at("delta_snapshots", "T=6", 64, 6, quick=(90,))


def kda(shape: str) -> Iterator[Entry]:
    """Kimi Delta Attention, the gates as projections, with and without a lower bound."""
    at = partial(entry, CHANNEL, shape)
    low: dict[str, Any] = {"lower_bound": KDA_BOUND}
    yield at("kda_scan", "T=1", quick=(90,), **low)
    yield at("kda_scan", "T=5", 64, 5, **low)
    yield at("kda_scan", "T=5 without a bound", 64, 5)
    yield at("kda_scan", "T=5 verify", 64, 5, write_state=False, **low)
    yield at("kda_scan", "T=5 as written", 64, 5, fused=False, **low)
    yield at("kda_snapshots", "T=5", 64, 5, quick=(90,), **low)
    for b in (1, 64):
        quick = (90,) if b == 64 else ()
        yield at("kda_tree", f"B={b} T=13", b, 13, also="pairs", quick=quick, width=8 if b == 1 else 16, **low)
    yield at("kda_commit", "T=5", 64, 5, give="advanced", axes={"m": 64}, quick=(90,), **low)


def delta_by_channel(shape: str) -> Iterator[Entry]:
    """The delta rule's kernels of windows, rings and prompts for Kimi Delta Attention: a decay per key channel."""
    at, ring = partial(entry, CHANNEL, shape), {"l": 22}
    yield at("delta_chunked", "T=5 verify by channel", 64, 5, write_state=False)
    yield at("delta_buffered", "T=5 L=22 by channel", 64, 5, axes=ring)
    for route in (True, False):
        yield at("delta_buffered_step", f"L=22{'' if route else ' state'} by channel", axes=ring, output_only=route)
    yield at("delta_flush", "L=22 by channel", axes=ring, without="slots", rows=64)
    packed = replace(CHANNEL, same=("q k",))
    yield entry(packed, shape, "delta_chunk_scan", "B=8 T=4096 by channel", 8, 4096, also="scratch")


def rings() -> Iterator[Entry]:
    """Buffered decoding: verification of 6 tokens, single steps in both ways, the flush, the cursors.

    Buffered kernels also write the state, for rows whose ring is full.
    """
    L = {"l": 32}
    for shape in SSD:
        at = partial(entry, HEADS, shape)
        yield at("ssd_buffered", "T=6 L=32", 64, 6, axes=L, quick=(90,))
        yield at("ssd_buffered", "T=6 L=32 due apart", 64, 6, axes=L, apart=True)
        yield at("ssd_buffered", "T=13 L=32", 64, 13, axes=L)
        yield at("ssd_buffered_step", "L=32", axes=L, quick=(90,))
        yield at("ssd_buffered_step", "L=32 state", axes=L, output_only=False)
        yield at("ssd_buffered_step", "L=16", axes={"l": 16})
        yield at("ssd_flush", "L=32", axes=L, without="slots", rows=64, quick=(90,))
        of, layered = replace(HEADS, ints=I64), {"m": 64, "e": SSD[shape][0]}
        yield entry(of, shape, "ssd_commit", "T=6", 64, 6, give="advanced", axes=layered, quick=(90,))
        yield at("ssd_replay_scan", "T=6", 64, 6, axes={"l": 12}, quick=(90,))
        for t in (13, 30):
            yield at("ssd_replay_scan", f"T={t} tree", 64, t, axes={"l": 2 * t, "k": t}, give="ancestors path")
        half = dict.fromkeys(("x", "dt", "B", "C", "cache.x", "cache.dt", "cache.B"), FP16)
        of = replace(HEADS, types=half, same=("B C",))
        yield entry(of, shape, "ssd_replay_scan", "T=6 in fp16", 64, 6, axes={"l": 12})
    for shape in DELTA:
        at = partial(entry, RULE, shape)
        yield at("delta_buffered", "T=6 L=32", 64, 6, axes=L, quick=(90,))
        yield at("delta_buffered", "T=6 L=32, any window", 64, 6, axes=L, short=False)
        yield at("delta_buffered_step", "L=32", axes=L, quick=(90,))
        yield at("delta_buffered_step", "L=32, streamed", axes=L, short=False)
        yield at("delta_buffered_step", "L=32 state", axes=L, output_only=False)
        yield at("delta_flush", "L=32", axes=L, without="slots", rows=64, quick=(90,))
    at = partial(entry, ANY, "any", quick=(90,))
    yield at("commit_halves", "T=6", give="slots", rows=64, module="double_buffer")
    yield at("commit_window", "T=6 L=32", module="cursors", capacity=32, window=6)


def batches() -> Iterator[Entry]:
    """Tiles that launchers choose for 4 or 256 rows but not for 64, as timed on an H200."""
    for shape in SSD:
        at = partial(entry, HEADS, shape, on=(90,))
        for b in (4, 256):
            yield at("ssd_window", f"B={b} T=5 verify", b, 5, write_state=False)
            for L in (22, 32) if b == 256 else ():
                yield at("ssd_buffered", f"B={b} T=6 L={L}", b, 6, axes={"l": L})
            if b == 4:
                yield at("ssd_buffered_step", f"B={b} L=16", b, axes={"l": 16})
    for shape in DELTA:
        at = partial(entry, RULE, shape, on=(90,))
        yield at("delta_chunked", "B=4 T=10", 4, 10, also="parts factors", width=8)
        yield at("delta_buffered_step", "B=256 L=16", 256, axes={"l": 16})
        for L in (22, 32):
            yield at("delta_buffered", f"B=256 T=6 L={L}", 256, 6, axes={"l": L})


def trees() -> Iterator[Entry]:
    """Trees of 13 nodes over the vocabulary of Mamba2-2.7B, and the cache of a Nemotron-3-Nano-4B attention layer."""
    b, t, i, run = 64, 13, 50288, "y_tokens y_path y_advanced y_ended"
    at, nodes, row = partial(entry, TOKENS, quick=(90,)), meta(b, t, dtype=I64), meta(b, dtype=I64)
    yield at("any", "tree_mask", "T=13", b, t, stores="ancestors depths")
    drafts: dict[str, Any] = {"tokens": 6, "drafts": 2, "stores": "y lengths places"}
    bigrams = replace(TOKENS, same=("length slots",))
    grams = {"l": 4096, "v": i, "n": 2, "k": 6}
    yield entry(
        bigrams, "mamba2-2.7b", "ngram_drafts", "PNG(6,2)", b, t, give="table slots", axes=grams, quick=(90,), **drafts
    )
    trio = replace(TOKENS, same=("tokens parents choice",))
    yield entry(trio, "any", "accept_greedy", "T=13", b, t, give="eos", axes={"o": 2}, stores=run, quick=(90,))
    made = kernel_module("accept_greedy").Emitted(nodes, nodes, row, meta(b, dtype=BOOL))
    counters: dict[str, Any] = dict.fromkeys(("length", "root", "cursor", "budget"), row)
    owned = "sequences length root cursor budget ended"
    yield at("any", "commit_tokens", "T=13", b, t, give="ended", axes={"l": 4096}, stores=owned, run=made, **counters)
    pair = replace(TOKENS, same=("tokens parents",))
    laws: dict[str, Any] = {"law": "without_replacement"}
    yield entry(
        pair, "mamba2-2.7b", "accept_sampled", "T=13", b, t, give="q coins", axes={"i": i}, stores=run, quick=(90,), **laws
    )
    prompts = partial(entry, CACHE, "nemotron-4b", "causal_attention", t=4096, b=64, give="length")
    yield prompts("T=4096", quick=(90,))
    yield prompts("T=4096 in bf16", **ROUNDED, descriptors=False)
    yield prompts("T=4096 by descriptors", **ROUNDED, quick=(90,), on=(90, 100), descriptors=True)
    at = partial(entry, CACHE, "nemotron-4b", b=b, t=t, quick=(90,))
    yield at("tree_attention", "T=13", give="ancestors", stores="o_s m_s d_s y")
    yield at("rotary", "T=13", axes={"f": 64}, stores="out_q out_k", wide="")
    yield entry(replace(CACHE, ints=I64), "nemotron-4b", "kv_compact", "T=13", b, t, quick=(90,))


def conv(shape: str) -> Iterator[Entry]:
    """The causal convolution: windows (b, c, 4) in bf16, as engines keep them."""
    at = partial(entry, TAPS, shape)
    yield at("conv_step", "T=1", quick=(90,))
    yield at("conv_window", "T=6", 64, 6)
    after = replace(TAPS, same=("u previous",))
    yield entry(after, shape, "conv_window", "T=6 replay", 64, 6, give="previous advanced", quick=(90,), keep="committed")
    yield at("conv_window", "T=6 verify", 64, 6, keep="none")
    yield at("conv_tree", "T=13", 64, 13, give="parents", stores="y", quick=(90,))
    yield at("conv_packed", "T=4096", 64, 4096, quick=(90,))
    yield at("conv_commit", "T=6", 64, 6, give="advanced", without="slots", quick=(90,))


def shortconv(shape: str) -> Iterator[Entry]:
    """The short convolution of LFM2: columns in fp32, B | C | x as one projection writes them."""
    at, L = partial(entry, COLUMNS, shape), {"l": 32}
    yield at("shortconv_scan", "T=1", quick=(90,))
    yield at("shortconv_scan", "T=6", 64, 6)
    yield at("shortconv_scan", "T=6 verify", 64, 6, write_state=False)
    yield at("shortconv_scan", "T=64", 64, 64)
    yield at("shortconv_snapshots", "T=6", 64, 6, quick=(90,))
    for t in (13, 63):
        yield at("shortconv_tree", f"T={t}", 64, t, quick=(90,) if t == 13 else ())
    yield at("shortconv_packed", "T=4096", 64, 4096, quick=(90,))
    yield at("shortconv_commit", "T=6", 64, 6, give="advanced", axes={"m": 64}, quick=(90,))
    yield at("shortconv_buffered", "T=6 L=32", 64, 6, axes=L, quick=(90,))
    yield at("shortconv_flush", "L=32", axes=L, rows=64, quick=(90,))


def mamba3(shape: str) -> Iterator[Entry]:
    """Mamba-3: SISO by pairs of neighbours without a gate, MIMO by halves with maps and gate; one projection writes all."""
    many = MAMBA3[shape][-1] > 1
    maps: dict[str, Any] = {"give": "z up gate down", "halves": True} if many else {}
    at: Any = partial(entry, TRAPEZOID, shape, **maps)
    yield at("mamba3_scan", "T=1", quick=(90,))
    yield at("mamba3_scan", "T=6 verify", 64, 6, write_state=False)
    yield at("mamba3_snapshots", "T=6", 64, 6, quick=(90,))
    given = maps | {"give": f"advanced {maps.get('give', '')}"}
    yield entry(TRAPEZOID, shape, "mamba3_commit", "T=6", 64, 6, axes={"m": 64}, quick=(90,), **given)
    yield at("mamba3_tree", "T=13", 64, 13, quick=(90,))
    if not many:
        yield at("mamba3_packed", "B=8 T=4096", 8, 4096, axes={"s": 64}, quick=(90,))
        yield at("mamba3_buffered", "T=6 L=32", 64, 6, axes={"l": 32}, quick=(90,))
        yield at("mamba3_flush", "L=32", axes={"l": 32}, without="slots", rows=64, quick=(90,))


def selective(shape: str) -> Iterator[Entry]:
    """Mamba-1."""
    at = partial(entry, CHANNELS, shape)
    yield at("selective_scan", "T=1", quick=(90,))
    yield at("selective_scan", "T=6", 64, 6)
    yield at("selective_scan", "T=6 verify", 64, 6, write_state=False)
    # 16 channels by 16 states are two a lane.
    yield at("selective_tree", "T=13", 64, 13, width=8, quick=(90,))


def layers() -> Iterator[Entry]:
    """The layers between the recurrences, at the widths of Mamba2-2.7B and Qwen3.5-4B."""
    at, out = partial(entry, NORMED, "mamba2-2.7b"), {"k": 5120, "o": 2560}
    for m in (1, 32, 128):
        quick = (90,) if m == 1 else ()
        yield at("linear_rows", f"M={m}", axes=out | {"m": m}, quick=quick, overlap=False)
        yield at("linear_rows", f"M={m} overlapped", axes=out | {"m": m}, on=(90,), overlap=True)
    for m in (1, 32):
        rows, quick = {"m": m, "k": 2560, "o": 10576}, (90,) if m == 1 else ()
        yield at("linear_added", f"M={m}", axes=out | {"m": m}, also="sums", quick=quick)
        yield at("linear_rows", f"M={m} squares", axes=rows | {"j": 160}, give="squares", quick=quick)
        yield at("linear_rows", f"M={m} in_proj overlapped", axes=rows, on=(90,), overlap=True)
    yield at("norm", "T=6", 64, 6, axes={"u": 2560}, give="residual", wide="", quick=(90,))
    gated = replace(NORMED, out="out", wide="", same=("y z",))
    yield entry(replace(gated, form=1), "mamba2-2.7b", "gated_norm", "T=6", 64, 6, axes={"c": 5120})
    heads = {"h": 32, "v": 128}
    yield entry(gated, "qwen3.5-4b", "gated_norm", "T=6", 64, 6, axes=heads, norm_first=True, quick=(90,))
