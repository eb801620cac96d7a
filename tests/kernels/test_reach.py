"""Kernels at the ends of what they take: windows of 32 tokens, rings of 64 and of odd sizes, states in fp16."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch

from ssmspec_kernels.attention import tree_attention
from ssmspec_kernels.conv import conv_window
from ssmspec_kernels.delta import delta_snapshots, delta_tree
from ssmspec_kernels.delta.ring import delta_buffered, delta_buffered_step, delta_flush
from ssmspec_kernels.ssd import ssd_gated, ssd_gated_window, ssd_snapshots
from ssmspec_kernels.ssd.replay import ssd_replay_scan
from ssmspec_kernels.ssd.ring import ssd_buffered, ssd_flush
from tests.kernels import (
    conv_plot,
    conv_subjects,
    delta_cases,
    delta_plot,
    delta_rings,
    delta_subjects,
    ssd_plot,
    ssd_replay_checks,
    ssd_rings,
    ssd_subjects,
    test_delta_buffered,
    test_delta_buffered_step,
    test_tree_attention,
)
from tests.kernels.laws import check_bound
from tests.kernels.mutants import mutated
from tests.kernels.tensors import Kept, check_within, doubles

Check = Callable[[Any], object]


def ssd(**changes: Any) -> ssd_plot.Options:
    return ssd_plot.Options(**{"b": 2, "h": 2, "g": 1, "p": 5, "n": 6, "gentle": True, **changes})


def delta(**changes: Any) -> delta_plot.Options:
    """Of decays that forget: the bound of the delta rule doubles with every few tokens that are kept."""
    return delta_plot.Options(**{"b": 2, "h": 2, "g": 1, "k": 6, "v": 9, **changes})


def law(name: str, **changes: Any) -> Check:
    """The bound of a launcher of SSD, of the delta rule or of a convolution."""
    subjects = [*ssd_subjects.SUBJECTS, *delta_subjects.SUBJECTS, *conv_subjects.SUBJECTS]
    drawn: dict[str, Callable[..., Any]] = {"ssd": ssd, "delta": delta, "conv": conv_plot.Options}
    subject, o = {one.name: one for one in subjects}[name], drawn[name.partition("_")[0]](**changes)
    return lambda module: check_bound(subject, module, o)


def flush_ssd(kernel: Any, state: str) -> None:
    """The state behind a window of 32 that a ring of 64 holds, stored in a narrow type."""
    o = ssd(t=32, state=state, io="bf16")
    call, ring = ssd_plot.drawn("ssd_buffered", o), ssd_rings.ring_of(o, 64)
    _, S = ssd_plot.scanned(call, order="output_only")
    call.run(ssd_buffered, ring=ring)
    ring.held[call.named] = 32
    kept = Kept(S=call["S"], **ring.tensors._asdict())
    kernel.ssd_flush(call["S"], ring, call["A"], o.b, slots=call["slots"])
    check_within(doubles(call["S"][call.named]), S)
    kept.check(S=call.named)


def flush_delta(kernel: Any, state: str) -> None:
    """The same for the delta rule."""
    o = delta(t=32, state=state, io="bf16")
    case, ring = delta_cases.draw(o), delta_rings.ring_of(o, 64, torch.float32)
    _, S = case.bound(order="output_only", ring="fp32")
    case.call(delta_buffered.delta_buffered, ring=ring)
    ring.held[case.slots[case.rows].long()] = 32
    dead = delta_rings.untouchables(case, ring)
    kernel.delta_flush(case.S, ring, o.b, slots=case.slots)
    delta_cases.assert_within("S", case.S, S, case.slots.numpy()[case.rows])
    delta_rings.assert_untouched(dead, case, ring)


CASES: dict[str, tuple[ModuleType, Check]] = {
    "conv, 32 tokens": (conv_window, law("conv_window", t=32, b=3, c=3, replay="path", live=True)),
    "ssd ring of 64, 32 tokens": (
        ssd_buffered,
        lambda m: ssd_rings.check_run(m, ssd(t=32, io="bf16"), 64, 4),
    ),
    "ssd ring of 51, 17 tokens": (
        ssd_buffered,
        lambda m: ssd_rings.check_run(m, ssd(t=17, D="channel", z=True), 51, 5),
    ),
    "ssd replay, 32 tokens": (
        ssd_replay_scan,
        lambda m: ssd_replay_checks.check_windows(m, ssd(t=32, io="bf16"), 32, False, 3),
    ),
    "ssd replay, 32 tokens, fp32": (
        ssd_replay_scan,
        lambda m: ssd_replay_checks.check_windows(m, ssd(t=32), 32, False, 3),
    ),
    "ssd replay, tree of 33": (
        ssd_replay_scan,
        lambda m: ssd_replay_checks.check_windows(m, ssd(t=33), 33, True, 3),
    ),
    "ssd flush, fp16": (ssd_flush, lambda m: flush_ssd(m, "fp16")),
    "ssd flush, bf16": (ssd_flush, lambda m: flush_ssd(m, "bf16")),
    "ssd snapshots, 32 tokens": (
        ssd_snapshots,
        law("ssd_snapshots", t=32, spare=64, live=True),
    ),
    "ssd snapshots, nothing beside": (
        ssd_snapshots,
        law("ssd_snapshots", spare=9, D="", bias=False, softplus=False),
    ),
    "ssd gated, fp16": (
        ssd_gated,
        law("ssd_gated", t=2, state="fp16", io="bf16", z=True),
    ),
    "ssd gated window of 32, fp16": (
        ssd_gated_window,
        law("ssd_gated_window", t=32, state="fp16", io="bf16", z=True),
    ),
    "tree attention, 128 nodes": (
        tree_attention,
        lambda m: test_tree_attention.check(m, (6, 2, 128, 2, 1, 5, "bf16", torch.int32, True, True, None)),
    ),
    "delta ring of 64, 32 tokens": (
        delta_buffered,
        lambda m: test_delta_buffered.check_windows(m, delta(t=32, io="bf16"), 64, "fp32", 4),
    ),
    "delta ring of 51, 17 tokens": (
        delta_buffered,
        lambda m: test_delta_buffered.check_windows(m, delta(t=17, channel=True), 51, "bf16", 5),
    ),
    "delta ring, fp16": (
        delta_buffered,
        lambda m: test_delta_buffered.check_windows(m, delta(t=3, state="fp16", io="bf16"), 7, "fp16"),
    ),
    "delta step, ring of 64": (
        delta_buffered_step,
        lambda m: test_delta_buffered_step.check_steps(m, delta(b=1, t=1, io="bf16"), 64, "bf16", True, 98),
    ),
    "delta step, ring of 37, fp16": (
        delta_buffered_step,
        lambda m: test_delta_buffered_step.check_steps(m, delta(b=1, t=1, state="fp16"), 37, "fp32", False, 57),
    ),
    "delta flush, fp16": (delta_flush, lambda m: flush_delta(m, "fp16")),
    "delta flush, bf16": (delta_flush, lambda m: flush_delta(m, "bf16")),
    "delta snapshots, 32 tokens": (delta_snapshots, law("delta_snapshots", t=32, spare=64, live=True)),
    "delta tree, fp16": (delta_tree, law("delta_tree", t=21, state="fp16", io="bf16", tree="several", seed=1)),
    "delta tree of 40, fp16": (delta_tree, law("delta_tree", t=40, state="fp16", io="fp16", tree="several", seed=2)),
}


@pytest.mark.parametrize("name", CASES)
def test_the_ends_of_what_a_kernel_takes_lie_within_the_bound(name: str) -> None:
    module, check = CASES[name]
    check(module)


STORED, NARROWED = "state.to(S.dtype.element_ty)", "state.to(tl.bfloat16).to(S.dtype.element_ty)"
FAULTS = [
    ("conv, 32 tokens", "for t in tl.static_range(T):", "for t in tl.static_range(min(T, 16)):", None),
    ("ssd ring of 64, 32 tokens", "BLOCK_L=max(16, triton.next_power_of_2(ring.capacity))", "BLOCK_L=32", None),
    ("ssd ring of 51, 17 tokens", "BLOCK_T=max(16, triton.next_power_of_2(t))", "BLOCK_T=16", None),
    ("ssd replay, 32 tokens", "BLOCK_K=max(16, triton.next_power_of_2(replayed))", "BLOCK_K=16", None),
    ("ssd replay, 32 tokens, fp32", "BLOCK_T=max(16, triton.next_power_of_2(t))", "BLOCK_T=16", None),
    ("ssd replay, tree of 33", "BLOCK_T=max(16, triton.next_power_of_2(t))", "BLOCK_T=32", None),
    ("ssd flush, fp16", STORED, NARROWED, None),
    ("ssd flush, bf16", "BLOCK_L=max(16, triton.next_power_of_2(ring.capacity))", "BLOCK_L=16", None),
    ("ssd snapshots, 32 tokens", "for t in range(T):", "for t in range(min(T, 16)):", "_walk_tokens"),
    ("ssd snapshots, nothing beside", "if place >= 0:", "if place >= 1:", "_walk_tokens"),
    ("ssd gated, fp16", STORED, NARROWED, "ssd_scan_kernel"),
    ("ssd gated window of 32, fp16", "BLOCK_T=max(16, triton.next_power_of_2(t))", "BLOCK_T=16", "launch"),
    ("tree attention, 128 nodes", "for j0 in range(0, T, BLOCK_L):", "for j0 in range(0, min(T, 96), BLOCK_L):", None),
    ("delta ring of 64, 32 tokens", "max(8, triton.next_power_of_2(t))", "16", None),
    ("delta ring of 51, 17 tokens", "max(16, triton.next_power_of_2(ring.capacity - window))", "16", None),
    ("delta ring, fp16", "state.to(at.dtype.element_ty), mask", "state.to(tl.bfloat16).to(at.dtype.element_ty), mask",
     "store_tile"),
    ("delta step, ring of 64", "block_l = max(16, triton.next_power_of_2(ring.capacity))", "block_l = 32", None),
    ("delta step, ring of 37, fp16", "block_l = max(16, triton.next_power_of_2(ring.capacity))", "block_l = 32", None),
    ("delta flush, fp16", STORED, NARROWED, None),
    ("delta flush, bf16", "BLOCK_L=max(16, triton.next_power_of_2(ring.capacity))", "BLOCK_L=16", None),
    ("delta snapshots, 32 tokens", "for t in range(T):", "for t in range(min(T, 16)):", "delta_scan_kernel"),
    ("delta tree, fp16", "BLOCK_T=max(16, triton.next_power_of_2(t))", "BLOCK_T=16", "launch_window"),
    ("delta tree of 40, fp16", "BLOCKS=triton.cdiv(t, 16)", "BLOCKS=2", None),
]  # fmt: skip


@pytest.mark.parametrize(("name", "old", "new", "at"), FAULTS, ids=[fault[0] for fault in FAULTS])
def test_a_planted_fault_of_the_ends_is_caught(name: str, old: str, new: str, at: str | None) -> None:
    module, check = CASES[name]
    mutant = mutated(module, old, new, at=at)
    with pytest.raises(AssertionError):
        check(mutant)
