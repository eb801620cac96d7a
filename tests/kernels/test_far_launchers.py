"""Every launcher that `test_far` leaves out: each axis of its tensors beyond 2^31 elements, and the bits of the near ones.

One axis of all tensors is spread at a time. Tensors that are read dense, and axes of one entry, stay as they are.
"""

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.kernels.delta_cases import untouched
from tests.kernels.far_cases import CASES, Make
from tests.kernels.mutants import caught, mutated
from tests.kernels.tensors import far

pytestmark = pytest.mark.interpreter  # where memory that nobody touches takes none


def leaves(x: Any) -> list[Tensor]:
    """Every tensor inside arguments, records and tuples, in order."""
    if isinstance(x, Tensor):
        return [x]
    parts = [getattr(x, f.name) for f in fields(x)] if is_dataclass(x) else list(x.values()) if isinstance(x, dict) else x
    return [leaf for part in parts for leaf in leaves(part)] if isinstance(parts, list | tuple) else []


def each(x: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same arguments with every tensor changed."""
    if isinstance(x, Tensor):
        return change(x)
    if isinstance(x, dict):
        return {name: each(value, change) for name, value in x.items()}
    if is_dataclass(x) and not isinstance(x, type):
        return replace(x, **{f.name: each(getattr(x, f.name), change) for f in fields(x)})
    if isinstance(x, tuple) and any(isinstance(part, Tensor) for part in x):
        parts = [each(part, change) for part in x]
        return type(x)(*parts) if hasattr(x, "_fields") else tuple(parts)
    return x


def dense(x: Tensor) -> bool:
    """Whether kernels read the last axis with stride 1: that of floats, and of codes."""
    return x.is_floating_point() or x.dtype in (torch.int8, torch.int16)


def spread(x: Tensor, axis: int) -> Tensor:
    """The tensor with that axis apart, where it may be: vectors are dense, and floats and codes on their last axis."""
    apart = x.dim() > 1 and axis < x.dim() - dense(x) and x.shape[axis] > 1
    return far(x, axis) if apart else x


def axes_of(make: Make) -> list[int]:
    return list(range(max(x.dim() - dense(x) for x in leaves(make()) if x.dim() > 1)))


def check(module: Any, case: tuple[str, int]) -> None:
    """The bits of all that a launcher takes are the same when an axis is spread."""
    name, axis = case
    given, launcher = CASES[name][1], getattr(module, module.__name__.rpartition(".")[2])
    near, apart = given(), each(given(), lambda x: spread(x, axis))
    for arguments in (near, apart):
        launcher(**arguments)
    for x, y in zip(leaves(near), leaves(apart), strict=True):
        assert untouched(x, y)


@pytest.mark.parametrize(("name", "axis"), [(n, axis) for n, (_, make) in CASES.items() for axis in axes_of(make)])
def test_an_axis_beyond_2_to_the_31_elements_is_reached(name: str, axis: int) -> None:
    check(CASES[name][0], (name, axis))


SLOT, ROW = "slot = tl.load(slots + b).to(tl.int64)", "b = tl.program_id(0).to(tl.int64)"
FAULTS = [
    ("accept greedy", 0, ROW, "_accept_greedy_kernel"),
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
    ("short convolution, tree", 1, "t = i.to(tl.int64)", "_shortconv_tree_kernel"),
    ("short convolution, packed", 0, "begin = tl.load(bounds + b).to(tl.int64)", "_shortconv_commit_kernel"),
    ("short convolution, commit", 0, "tl.program_id(2).to(tl.int64)", "_shortconv_commit_kernel"),
    ("n-grams", 1, "tl.cast(n, tl.int64)", "_ngram_drafts_kernel"),
    ("norm", 0, "row = tl.program_id(0).to(tl.int64)", "_norm_kernel"),
    ("linear", 0, "tl.arange(0, BLOCK_O)).to(tl.int64)", "linear_rows_kernel"),
]


@pytest.mark.parametrize(("name", "axis", "wide", "at"), FAULTS)
def test_an_offset_of_32_bits_is_caught(name: str, axis: int, wide: str, at: str) -> None:
    narrow = mutated(CASES[name][0], wide, wide.replace("int64", "int32"), at=at)
    assert caught(narrow, check, [(name, axis)])
