"""Every axis of a kernel's tensors with its last entries beyond 2^31 elements: the bits of the same tensors close together.

Slots, rows, tokens, heads and channels each reach their place by a product that 32 bits do not hold. Few pages are touched.
One axis of all tensors is spread at a time. Tensors that are read dense, and axes of one entry, stay as they are.
"""

from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from ssmspec_kernels.row import Entry, row_of
from tests.kernels.calls import LAUNCHERS, Form, call, replaced, tensors
from tests.kernels.delta_cases import untouched
from tests.kernels.mutants import caught, mutated
from tests.kernels.tensors import far

pytestmark = pytest.mark.interpreter  # where memory that nobody touches takes none

NEAR = {"s": 3, "b": 3, "t": 3, "h": 3, "g": 3, "p": 5, "n": 4, "k": 4, "v": 6, "d": 5, "c": 5, "u": 6, "o": 9, "e": 5}
NEAR |= {"l": 7, "f": 2, "i": 3, "j": 3, "m": 3}
"""Three or more entries on each axis; the last slot is taken."""
RUN, KEPT = {"t": 9, "m": 4}, {"s": 12}
"""A packed run of three sequences; a pool with room for a state of every token."""
PATH, LARGE = {"l": 3, "i": 3}, {"t": 33, "j": 33}


def near(without: str = "", io: torch.dtype = torch.bfloat16, sizes: dict[str, int] | None = None, **options: Any) -> Form:
    return Form(NEAR | (sizes or {}), options, without, io)


def chunks(rows: int, each: int) -> dict[str, int]:
    return RUN | {"s": 9, "c": 3, "chunks": 3, "rows": rows, "tokens": 16, "numbers": each}


SSD = {"p": 5, "n": 6}
GRAMS = {"i": 4, "k": 3, "n": 3, "a": 2, "v": 7}
"""Of sequences in which nothing repeats, so that all drafts come from the table."""
CASES: dict[str, tuple[str, Form]] = {
    "accept greedy": ("accept_greedy", near()),
    "accept sampled": ("accept_sampled", near(law="without_replacement")),
    "commit tokens": ("commit_tokens", near(sizes={"l": 12})),
    "tree mask": ("tree_mask", near()),
    "prompt's attention": ("causal_attention", near(sizes=RUN | {"l": 24}, block_l=16, block_t=16)),
    "prompt's attention, rounded": ("causal_attention", near(sizes=RUN | {"l": 24}, block_l=16, block_t=16, products="bf16")),
    "tree's attention": ("tree_attention", near("parts", sizes={"l": 10}, append=True)),
    "compaction": ("kv_compact", near("advanced_length", sizes={"l": 10})),
    "n-grams": ("ngram_drafts", near(sizes=GRAMS, tokens=3, drafts=3, sequences=torch.arange(7).repeat(3, 1))),
    "rotary": ("rotary", near(sizes={"f": 2})),
    "conv step": ("conv_step", near()),
    "conv packed": ("conv_packed", near(sizes=RUN)),
    "conv commit": ("conv_commit", near("advanced", sizes=PATH)),
    "convolution": ("conv_window", near("previous advanced path")),
    "convolution, tree": ("conv_tree", near("previous advanced path")),
    "selective scan": ("selective_scan", near()),
    "selective tree": ("selective_tree", near()),
    "scan": ("ssd_scan", near("live", sizes=SSD)),
    "scan, marked": ("ssd_scan", near(sizes=SSD)),
    "snapshots": ("ssd_snapshots", near(sizes=SSD | {"kept": 12})),
    "gated": ("ssd_gated", near("squares", sizes=SSD)),
    "gated window": ("ssd_gated_window", near("squares ancestors", sizes=SSD)),
    "chain": ("ssd_window", near("live", sizes=SSD)),
    "window": ("ssd_window", near("live", sizes=SSD, write_state=False)),
    "window, fp16": ("ssd_window", near("live", torch.float16, SSD)),
    "tree": ("ssd_tree_scan", near(sizes=SSD)),
    "large tree": ("ssd_tree_scan", near("z", sizes=LARGE | {"p": 80, "n": 128})),
    "replay": ("ssd_replay_scan", near("ancestors path", sizes=SSD | {"l": 6})),
    "replay, fp16": ("ssd_replay_scan", near("ancestors path", torch.float16, SSD | {"l": 6})),
    "replay of trees, fp16": ("ssd_replay_scan", near("path", torch.float16, SSD | {"l": 6})),
    "buffered": ("ssd_buffered", near(sizes=SSD | {"l": 6})),
    "buffered, open": ("ssd_buffered", near(sizes=SSD | {"l": 9})),
    "buffered, apart": ("ssd_buffered", near(sizes=SSD | {"l": 6}, apart=True)),
    "buffered, apart, open": ("ssd_buffered", near(sizes=SSD | {"l": 9}, apart=True)),
    "buffered, fp16": ("ssd_buffered", near("", torch.float16, SSD | {"l": 6})),
    "ssd, codes": ("ssd_coded_step", near("call", sizes={"j": 4}, block=1)),
    "ssd prompt": ("ssd_chunk_scan", near("scratch places", sizes=RUN)),
    "ssd prompt, kept": ("ssd_chunk_scan", near("scratch", sizes=chunks(0, 0))),
    "ssd step, held": ("ssd_buffered_step", near(sizes={"t": 1})),
    "ssd step, due": ("ssd_buffered_step", near(sizes={"t": 1, "l": 3})),
    "ssd step, state": ("ssd_buffered_step", near(sizes={"t": 1}, output_only=False)),
    "ssd flush": ("ssd_flush", near(rows=3)),
    "ssd commit": ("ssd_commit", near("advanced", sizes=PATH | {"e": 3})),
    "delta scan": ("delta_scan", near("live")),
    "delta, marked, in registers": ("delta_scan", near()),
    "delta window": ("delta_chunked", near("live solved", two_launches=False)),
    "delta in two launches": ("delta_chunked", near("live solved", two_launches=True)),
    "delta, marked, in two launches": ("delta_chunked", near("solved", two_launches=True)),
    "delta snapshots": ("delta_snapshots", near(sizes=KEPT)),
    "delta tree": ("delta_tree", near("solved")),
    "delta, large tree": ("delta_tree", near("solved", sizes=LARGE, inverse=False)),
    "delta, large tree, products": ("delta_tree", near("solved", sizes=LARGE, inverse=True)),
    "delta prompt": ("delta_chunk_scan", near("scratch places", sizes=RUN)),
    "delta prompt, kept": ("delta_chunk_scan", near("scratch", sizes=chunks(0, 0))),
    "delta, due": ("delta_buffered", near(sizes={"l": 6})),
    "delta, open": ("delta_buffered", near(sizes={"l": 9})),
    "delta, due, short": ("delta_buffered", near(sizes={"l": 6, "k": 128}, short=True)),
    "delta, open, short": ("delta_buffered", near(sizes={"l": 9, "k": 128}, short=True)),
    "delta step, held": ("delta_buffered_step", near(sizes={"t": 1}, short=False)),
    "delta step, due": ("delta_buffered_step", near(sizes={"t": 1, "l": 3}, short=False)),
    "delta step, short": ("delta_buffered_step", near(sizes={"t": 1}, short=True)),
    "delta step, short, due": ("delta_buffered_step", near(sizes={"t": 1, "l": 3}, short=True)),
    "delta step, state": ("delta_buffered_step", near(sizes={"t": 1}, output_only=False)),
    "delta flush": ("delta_flush", near(rows=3)),
    "delta by channel": ("kda_scan", near()),
    "delta by channel, tree": ("kda_tree", near("pairs")),
    "delta by channel, snapshots": ("kda_snapshots", near(sizes=KEPT)),
    "delta by channel, commit": ("kda_commit", near("advanced", sizes=PATH)),
    "short convolution": ("shortconv_scan", near()),
    "short convolution, looped": ("shortconv_scan", near("live", sizes={"t": 33})),
    "short convolution, snapshots": ("shortconv_snapshots", near(sizes=KEPT)),
    "short convolution, tree": ("shortconv_tree", near()),
    "short convolution, packed": ("shortconv_packed", near(sizes=RUN)),
    "short convolution, commit": ("shortconv_commit", near("advanced", sizes=PATH)),
    "short convolution, ring": ("shortconv_buffered", near(sizes={"l": 9})),
    "short convolution, due": ("shortconv_buffered", near(sizes={"l": 6})),
    "short convolution, flush": ("shortconv_flush", near(rows=3)),
    "norm": ("norm", near("residual")),
    "gated norm": ("gated_norm", near()),
    "linear": ("linear_rows", near(sizes={"k": 16})),
    "linear, added": ("linear_added", near(sizes={"k": 16, "j": 1, "i": 2})),
}


def dense(entry: Entry, x: Tensor) -> bool:
    """Whether kernels read the last axis with stride 1."""
    return bool(entry.argument.layout) or x.is_floating_point() or x.dtype in (torch.int8, torch.int16)


def may_be_far(entry: Entry, x: Tensor, axis: int) -> bool:
    apart = entry.argument.layout != "whole" and 1 < x.dim() > axis + dense(entry, x)
    return apart and x.shape[axis] > 2


def axes_of(name: str) -> list[int]:
    launcher, form = CASES[name]
    row, given = row_of(vars(LAUNCHERS[launcher])[launcher]), call(launcher, form)
    found = [(e, x) for e in row if (x := e.of(given)) is not None]
    return [axis for axis in range(5) if any(may_be_far(e, x, axis) for e, x in found)]


def check(module: ModuleType, case: tuple[str, int]) -> None:
    """The bits of all that a launcher takes are the same when an axis is spread."""
    name, axis = case
    launcher, form = CASES[name]
    near, apart = call(launcher, form), call(launcher, form)
    for entry in row_of(vars(LAUNCHERS[launcher])[launcher]):
        if (x := entry.of(apart)) is not None and may_be_far(entry, x, axis):
            apart = replaced(apart, entry, far(x, axis))
    for arguments in (near, apart):
        vars(module)[launcher](**arguments)
    there = tensors(launcher, apart)
    for tensor, x in tensors(launcher, near).items():
        assert untouched(x, there[tensor]), tensor


@pytest.mark.parametrize(("name", "axis"), [(name, axis) for name in CASES for axis in axes_of(name)])
def test_an_axis_beyond_2_to_the_31_elements_is_reached(name: str, axis: int) -> None:
    check(LAUNCHERS[CASES[name][0]], (name, axis))


def test_every_launcher_with_two_axes_is_spread() -> None:
    """But those of Mamba-3, which are compared over pools and windows of their own."""
    wide = {name for name, module in LAUNCHERS.items() if any(" " in e.argument.axes for e in row_of(vars(module)[name]))}
    assert {n for n in wide if not n.startswith("mamba3")} == {launcher for launcher, _ in CASES.values()}


ROW, HEAD = "b = tl.program_id(2).to(tl.int64)", "h = tl.program_id(1).to(tl.int64)"
SLOT = "slot = tl.load(slots + b).to(tl.int64)"
FIRST = "b = tl.program_id(0).to(tl.int64)"
FAULTS = [
    ("scan", 0, ROW, "ssd_scan_kernel"),
    ("scan", 1, "    t = tl.cast(t, tl.int64)", "_token"),
    ("scan", 2, "(row_p.to(tl.int64) * stride.S.p)", "ssd_scan_kernel"),
    ("snapshots", 0, "* stride_places.t).to(tl.int64)", "_walk_tokens"),
    ("gated window", 0, ROW, "ssd_window_kernel"),
    ("window", 0, SLOT, "ssd_window_kernel"),
    ("window", 2, "first = tl.program_id(1).to(tl.int64)", "ssd_window_kernel"),
    ("tree", 1, "t, heads = i.to(tl.int64)", "ssd_window_kernel"),
    ("large tree", 1, "return token.to(tl.int64)", "places"),
    ("chain", 1, "e.to(tl.int64), t.to(tl.int64)", "ssd_window_chain_kernel"),
    ("chain", 2, "((p_0 + p).to(tl.int64) * stride_p)", "store_half"),
    ("replay", 2, "tl.program_id(1).to(tl.int64)", "ssd_replay_short_kernel"),
    ("replay, fp16", 1, "at_t = tl.cast(t, tl.int64)", "_walk_window"),
    ("replay of trees, fp16", 2, HEAD, "_ssd_replay_scan_kernel"),
    ("buffered", 1, "at - CAPACITY, at).to(tl.int64)", "place"),
    ("buffered", 1, "tok, at_new = i.to(tl.int64)", "verify_flush"),
    ("buffered, open", 1, "place(first + e, CAPACITY), i.to(tl.int64)", "verify_open"),
    ("buffered, apart", 2, "% GROUPS).to(tl.int64)", "ssd_buffered_short_kernel"),
    ("buffered, apart, open", 0, "tl.arange(0, BLOCK_B), 0), axis=0).to(tl.int64)", "ssd_buffered_short_kernel"),
    ("buffered, fp16", 2, "h_0 = tl.program_id(1).to(tl.int64)", "ssd_buffered_kernel"),
    ("delta scan", 2, ".to(tl.int64) * ROW", "delta_scan_kernel"),
    ("delta scan", 1, "t = tl.cast(t, tl.int64)", "load_token"),
    ("delta window", 0, SLOT, "delta_window_kernel"),
    ("delta in two launches", 2, HEAD, "_delta_apply_kernel"),
    ("delta in two launches", 0, "b = tl.program_id(1).to(tl.int64)", "_delta_solve_kernel"),
    ("delta, large tree", 1, "every = tl.arange(0, ALL).to(tl.int64)", "_delta_tree_kernel"),
    ("delta, large tree, products", 0, ROW, "delta_tree_products_kernel"),
    ("delta by channel", 2, ".to(tl.int64) * ROW", "delta_scan_kernel"),
    ("delta by channel", 2, "tl.program_id(1).to(tl.int64)", "delta_scan_kernel"),
    ("delta by channel, tree", 1, "n, t = tl.arange(0, BLOCK_T), tl.arange(0, BLOCK_T).to(tl.int64)", "kda_tree_kernel"),
    ("convolution", 1, "c = tl.program_id(0).to(tl.int64)", "_conv_window_kernel"),
    ("convolution, tree", 1, "t = i.to(tl.int64)", "_conv_tree_kernel"),
    ("accept greedy", 0, FIRST, "_accept_greedy_kernel"),
    ("accept sampled", 1, "i = tl.arange(0, BLOCK_T).to(tl.int64)", "_accept_sampled_kernel"),
    ("commit tokens", 0, SLOT, "_commit_tokens_kernel"),
    ("prompt's attention", 0, "mask=b >= 0, other=-1).to(tl.int64)", "_causal_attention_kernel"),
    ("compaction", 2, "g = tl.program_id(1).to(tl.int64)", "_kv_compact_kernel"),
    ("rotary", 2, "tl.arange(0, BLOCK_H)).to(tl.int64)", "_rotate_heads"),
    ("conv step", 0, SLOT, "_conv_step_kernel"),
    ("conv packed", 0, "begin = tl.load(bounds + b).to(tl.int64)", "conv_commit_kernel"),
    ("conv commit", 1, "i = tl.arange(0, BLOCK_L).to(tl.int64)", "accepted_count"),
    ("selective scan", 1, "t = tl.cast(t, tl.int64)", "_token"),
    ("selective tree", 0, SLOT, "_selective_tree_kernel"),
    ("ssd, codes", 0, "slot = tl.load(slots + b).to(tl.int64)", "ssd_coded_step_kernel"),
    ("ssd, codes", 2, "row = p.to(tl.int64)", "ssd_coded_step_kernel"),
    ("ssd prompt", 2, "tl.arange(0, BLOCK_P)).to(tl.int64)", "_chunk_starts_kernel"),
    ("ssd step, due", 2, "p.to(tl.int64)[:, None]", "_read_and_flush"),
    ("ssd flush", 1, "h = tl.program_id(1).to(tl.int64)", "_ssd_flush_kernel"),
    ("delta prompt, kept", 0, "place = tl.load(places + first + c).to(tl.int64)", "_chunk_walk_kernel"),
    ("delta, due", 1, "at - CAPACITY, at).to(tl.int64)", "place"),
    ("delta, due, short", 2, "S + (k.to(tl.int64) * stride.S.k)", "fold"),
    ("delta step, held", 0, SLOT, "slot_of"),
    ("delta step, short", 2, "S + (i.to(tl.int64) * stride)", "load_part"),
    ("delta flush", 2, "i = tl.arange(0, BLOCK_K).to(tl.int64)", "_delta_flush_kernel"),
    ("delta by channel, commit", 2, "tl.load(path + node * stride_path).to(tl.int64)", "_accepted"),
    ("delta snapshots", 1, "tl.cast(t, tl.int64) * stride_places.t", "delta_scan_kernel"),
    ("short convolution", 1, "t = tl.cast(t, tl.int64)", "_token"),
    ("short convolution, tree", 1, "t = i.to(tl.int64)", "_conv_tree_kernel"),
    ("short convolution, packed", 0, "begin = tl.load(bounds + b).to(tl.int64)", "_shortconv_commit_kernel"),
    ("short convolution, commit", 0, "tl.program_id(2).to(tl.int64)", "_shortconv_commit_kernel"),
    ("n-grams", 1, "tl.cast(n, tl.int64)", "_ngram_drafts_kernel"),
    ("norm", 0, "row = tl.program_id(0).to(tl.int64)", "_norm_kernel"),
    ("linear", 0, "tl.arange(0, BLOCK_O)).to(tl.int64)", "linear_rows_kernel"),
]


@pytest.mark.parametrize(("name", "axis", "wide", "at"), FAULTS)
def test_an_offset_of_32_bits_is_caught(name: str, axis: int, wide: str, at: str) -> None:
    narrow = mutated(LAUNCHERS[CASES[name][0]], wide, wide.replace("int64", "int32"), at=at)
    assert caught(narrow, check, [(name, axis)])
