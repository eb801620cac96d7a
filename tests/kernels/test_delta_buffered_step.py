"""Standard decode of the delta rule from a checkpoint and a ring, by both routes, beside the oracle."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Any

import pytest
import torch
from triton.runtime.errors import InterpreterError

from ssmspec_kernels.delta.ring import delta_buffered_step as kernel
from tests.kernels import delta_cases as cases
from tests.kernels import delta_rings as rings
from tests.kernels.covers import rejected
from tests.kernels.delta_plot import Options
from tests.kernels.delta_rings import kept, sizes_of
from tests.kernels.mutants import mutated
from tests.kernels.tensors import far

STEPS = [
    (Options(t=1, k=6, v=9, poison=7.0), 3, "fp32"),
    (Options(t=1, io="bf16", l2_norm=False, scale=0.6, k=6, v=9, seed=1), 5, "bf16"),
    (Options(t=1, channel=True, io="bf16", g=1, h=2, k=5, v=18, raw=True, bias=True, seed=2), 4, "fp32"),
    (Options(t=1, state="bf16", io="fp16", g=1, h=3, k=6, v=9, seed=4, poison=-2.0), 1, "fp32"),
    (Options(t=1, io="bf16", g=1, h=2, b=2, k=32, v=32, seed=5, poison=3.0), 3, "bf16"),
    (Options(t=1, io="bf16", g=1, h=2, b=2, k=128, v=36, raw=True, bias=True, seed=7), 4, "fp32"),
    (Options(t=1, g=1, h=2, b=2, k=64, v=32, gentle=True, seed=6), 4, "fp32"),
]


def check_steps(
    module: ModuleType, o: Options, capacity: int, u: str, output_only: bool, tokens: int = 7, **changes: Any
) -> None:
    """Standard decode: every token beside the oracle, the checkpoint at every flush."""
    rings.check_windows(module.delta_buffered_step, o, capacity, u, tokens, True, output_only=output_only, **changes)


@pytest.mark.parametrize("output_only", [True, False])
@pytest.mark.parametrize(("o", "capacity", "u"), STEPS, ids=str)
def test_standard_decode_equals_plain_decoding_within_the_bound(o: Options, capacity: int, u: str, output_only: bool) -> None:
    check_steps(kernel, o, capacity, u, output_only)


STREAMED = STEPS[4]


def test_steps_that_stream_the_state_equal_plain_decoding_within_the_bound() -> None:
    check_steps(kernel, *STREAMED, True, short=False)


def test_steps_that_stream_the_state_beside_a_ring_longer_than_their_tiles() -> None:
    check_steps(kernel, STREAMED[0], 20, STREAMED[2], True, short=False)


def check_without_token(module: ModuleType, output_only: bool) -> None:
    """The output of a row without a token is 0 whatever finite numbers its state holds."""
    o = Options(t=1, k=6, v=9)
    case, ring = cases.draw(o, padding=False), rings.ring_of(o, 5, torch.float32)
    case.S.fill_(torch.finfo(torch.float32).max)
    case.call(module.delta_buffered_step, ring=ring, lengths=torch.zeros(o.b, dtype=torch.int32), output_only=output_only)
    assert torch.equal(case.out, torch.zeros(case.out.shape))


@pytest.mark.parametrize("output_only", [True, False])
def test_a_row_without_a_token_has_output_0_however_large_its_state(output_only: bool) -> None:
    check_without_token(kernel, output_only)


def check_without_tokens(module: ModuleType) -> None:
    check_without_token(module, False)


def check_step_bytes(module: ModuleType, o: Options, held: int, output_only: bool, capacity: int = 5, **changes: Any) -> None:
    case, ring = cases.draw(o, padding=False), rings.ring_of(replace(o, poison=0.25), capacity, torch.bfloat16)
    ring.held.fill_(held)
    expected = module.traffic_bytes([held] * o.b, o.g, o.h, o.k, o.v, capacity=capacity, **sizes_of(module, case))
    due = held == capacity - 1
    again = due and output_only and o.io == "bf16" and not o.channel  # a flush asks the cache for a tile that was read
    run = partial(case.call, module.delta_buffered_step, ring=ring, output_only=output_only, **changes)
    rings.check_moved(case, ring, run, expected, 1 + again, int(due))


@pytest.mark.parametrize("output_only", [True, False])
@pytest.mark.parametrize("held", [0, 3, 4])
@pytest.mark.parametrize(
    "o", [Options(t=1, v=33), Options(t=1, channel=True, io="bf16", g=1), Options(t=1, io="bf16", k=32, v=64)], ids=str
)
def test_a_token_moves_the_bytes_of_the_formula(o: Options, held: int, output_only: bool) -> None:
    check_step_bytes(kernel, o, held, output_only)


@pytest.mark.parametrize("held", [3, 4])
def test_a_token_that_streams_the_state_moves_the_bytes_of_the_formula(held: int) -> None:
    check_step_bytes(kernel, Options(t=1, io="bf16", k=32, v=64), held, True, short=False)


@pytest.mark.parametrize("held", [3, 4])
def test_a_token_of_a_short_ring_moves_the_bytes_of_the_formula(held: int) -> None:
    check_step_bytes(kernel, Options(t=1, io="bf16", k=32, v=36), held, True, short=True)


def check_full_ring(module: ModuleType) -> None:
    """A ring of as many entries as a tile has channels k, of which a head has fewer: none is written behind them."""
    check_step_bytes(module, Options(b=1, t=1, io="bf16", g=1, h=2, k=6, v=36), 15, True, 16, short=True)


def test_a_flush_writes_no_channel_that_a_head_has_not() -> None:
    check_full_ring(kernel)


@pytest.mark.parametrize("output_only", [True, False])
def test_rows_of_a_state_beyond_2_to_the_31_elements_are_read_and_written(output_only: bool) -> None:
    o = Options(b=1, t=1, g=1, h=1, k=6, v=9, state="bf16", spare=0)
    (near, ring), (case, other) = ((cases.draw(o, padding=False), rings.ring_of(o, 1, torch.float32)) for _ in range(2))
    case.S = far(near.S, 2)
    near.call(kernel.delta_buffered_step, ring=ring, output_only=output_only)
    case.call(kernel.delta_buffered_step, ring=other, output_only=output_only)
    assert torch.equal(case.S, near.S)
    assert torch.equal(case.out, near.out)


FAR = "\n        at_r += ROWS * row_stride"
"""In the loop that reads, and in the one that folds."""


def check_far_rows(module: ModuleType) -> None:
    rings.check_far_rows(module.delta_buffered_step, t=1, capacity=3, short=False)


def test_rows_that_stream_from_beyond_2_to_the_31_elements_are_read_and_written() -> None:
    check_far_rows(kernel)


STRONG = [
    (Options(t=1, k=6, v=9, gentle=True), 14),
    (Options(t=1, k=6, v=9, io="bf16", channel=True, gentle=True), 14),
    (Options(t=1, io="bf16", g=1, h=2, b=2, k=32, v=32), 8),
    (Options(t=1, k=6, v=9, gentle=True), 16),
]


def check_last(module: ModuleType, o: Options, capacity: int, output_only: bool) -> None:
    """The newest entry that is held, behind strong decays and before a token of weak decay, weighs what it does alone."""
    rings.check_last(
        o, capacity, capacity - 1,
        lambda case, ring: case.call(module.delta_buffered_step, ring=ring, output_only=output_only),
    )  # fmt: skip


@pytest.mark.parametrize("output_only", [True, False])
@pytest.mark.parametrize(("o", "capacity"), STRONG, ids=str)
def test_the_newest_entry_has_its_own_weight_however_strong_the_decay(o: Options, capacity: int, output_only: bool) -> None:
    check_last(kernel, o, capacity, output_only)


@pytest.mark.parametrize(("old", "i"), [("tl.exp(since - G_l + g_t)", 0), ("tl.exp(since[None, :] - G_l + g_t[None, :])", 1)])
def test_planted_differences_of_totals_are_caught_by_strong_decays(old: str, i: int) -> None:
    mutant = mutated(kernel, old, "tl.exp(total[None, :] - G_l)" if i else "tl.exp(total - G_l)")
    with pytest.raises(AssertionError, match="the newest token's weight"):
        check_last(mutant, *STRONG[i], True)


def test_a_planted_total_behind_the_last_entry_is_caught_where_the_ring_fills_its_tile() -> None:
    mutant = mutated(kernel, "since = last(G_l, count - 1)", "since = last(G_l, count + 1)")
    with pytest.raises(AssertionError, match="the newest token's weight"):
        check_last(mutant, *STRONG[-1], True)


def check_narrow_gates(module: ModuleType, channel: bool, output_only: bool, short: bool = False) -> None:
    """Gates in bf16, formed without a bias, are those of the same numbers in fp32."""
    o, found = Options(t=1, io="bf16", raw=True, channel=channel, k=6, v=9, seed=2), []
    for wide in (False, True):
        case, ring = cases.draw(o), rings.ring_of(replace(o, poison=0.25), 5, torch.float32)
        ring.held.fill_(3)
        case.g, case.beta = case.g.bfloat16(), case.beta.bfloat16()
        if wide:
            case.g, case.beta = case.g.float(), case.beta.float()
        case.call(module.delta_buffered_step, ring=ring, output_only=output_only, short=short)
        found.append([case.out[case.rows], *kept(ring)])
    assert all(torch.equal(x, y) for x, y in zip(*found, strict=True))


@pytest.mark.parametrize(
    ("channel", "output_only", "short"),
    [(False, True, True), (False, True, False), (False, False, False), (True, True, False), (True, False, False)],
)
def test_gates_in_bf16_are_taken_as_the_fp32_numbers_that_they_are(channel: bool, output_only: bool, short: bool) -> None:
    check_narrow_gates(kernel, channel, output_only, short)


@pytest.mark.parametrize(("at", "channel"), [("at_g", False), ("at_g + i, mask=in_k & real, other=0.0", True)])
def test_planted_gates_in_bf16_are_caught(at: str, channel: bool) -> None:
    """exp takes none."""
    mutant = mutated(kernel, f"g_t = tl.load({at}).to(tl.float32)", f"g_t = tl.load({at})")
    with pytest.raises(InterpreterError, match="got bf16"):
        check_narrow_gates(mutant, channel, True)


def check_short(module: ModuleType) -> None:
    for held in (3, 4):
        check_step_bytes(module, Options(t=1, io="bf16", k=32, v=36), held, True)
    for i, tokens in ((1, 6), (5, 6)):
        check_steps(module, *STEPS[i], True, tokens=tokens)


def check_all_steps(module: ModuleType) -> None:
    for output_only in (True, False):
        check_step_bytes(module, Options(t=1, v=9), 4, output_only)
        for i, tokens in ((0, 5), (3, 2), (2, 5), (1, 5), (4, 5)):
            check_steps(module, *STEPS[i], output_only, tokens=tokens, short=False)


FAULTS: dict[Callable[[ModuleType], object], list[tuple[str, str, str | None]]] = {
    check_all_steps: [
        ("full = (count + 1 == CAPACITY) & real", "full = count + 1 == CAPACITY", None),
        ("full = (count + 1 == CAPACITY) & real", "full = (count == CAPACITY) & real", None),
        ("real & (count + 1 < CAPACITY)", "real & (count < CAPACITY)", None),
        ("real & (count + 1 < CAPACITY)", "(count + 1 < CAPACITY)", None),
        (" + tl.sum(k_t * q_t, axis=0) * (r_k * u)", "", None),
        ("total = since + g_t", "total = since", None),
        ("since = last(G_l, count - 1)", "since = last(G_l, count - 2)", None),
        ("part += k_r[:, None] * u[None, :]", "pass", "fold_stream"),
        ("part = left * part", "part = part", "fold_stream"),
        ("for n in range(count):", "for n in range(count - 1):", None),
        ("real, u, raw, g_t", "real, u, k_t * r_k, g_t", "_delta_buffered_step_kernel"),
        ("read_key = pairs(left * sum_k + ", "read_key = pairs(sum_k + ", None),
        ("sum_q += fours(part * x_q[:, None])", "sum_q += fours(part * x_k[:, None])", None),
        ("        state += k_t[:, None] * (r_k * u)[None, :]\n        o_t", "        o_t", None),
    ],
    check_short: [
        ("full = count + 1 == CAPACITY", "full = count == CAPACITY", None),
        ("if full & real:", "if full:", None),
        ("(full == 0) & real & (tl.program_id(0) == 0)", "(full == 0) & (tl.program_id(0) == 0)", None),
        ("(full == 0) & real & (tl.program_id(0) == 0)", "real & (tl.program_id(0) == 0)", None),
        ("if h % HEADS_PER_KEY == 0:", "if h >= 0:", None),
        ("return g_t, beta_t, left, r_q", "return since, beta_t, left, r_q", None),
        ("+ i, k_t, mask=in_k)", "+ i, q_t, mask=in_k)", None),
        ("l == count - 1, G_l, 0.0)", "l == count - 2, G_l, 0.0)", None),
        ("left = tl.exp(since + g_t)", "left = tl.exp(since)", None),
        ("r_l * tl.exp(since - G_l + g_t)", "r_l * tl.exp(since - G_l)", "_entry_weights"),
        ("r_l * tl.exp(since - G_l + g_t)", "tl.exp(since - G_l + g_t)", "_entry_weights"),
        ("tl.where(new, r_k, 0.0))", "0.0)", None),
        ("(e < count) | ((e == count) & real)", "e < count", None),
        ("tl.where(e < count, at_kept + place(first + e", "tl.where(e < count, at_kept + place(first + e + 1", None),
        ("tl.where(which == 0, at_k, at_q)", "tl.where(which == 1, at_k, at_q)", None),
        ("key_l = of_entries(to_key)", "key_l = of_entries(to_query)", None),
        ("sum_q += left * tl.sum(", "sum_q += tl.sum(", None),
        ("x * x_q[part].to", "x * x_q[0].to", None),
        ("v_t - r_k * tl.sum(sum_k, axis=1)", "v_t - tl.sum(sum_k, axis=1)", None),
        ("tl.sum(sum_q, axis=1) + own * u", "tl.sum(sum_q, axis=1)", None),
        ("tl.where(is_new, u[None, None, :, None, :], u_l)", "u_l", None),
        ("tl.where(l < count, ring + place(", "tl.where(l <= count, ring + place(", None),
        ("dot_cut_onto(left * to_left(", "dot_cut_onto(to_left(", None),
        ("hi, mid, lo, keys))", "hi, lo, lo, keys))", None),
        ("l_u, quad = beside(BLOCK_L)", "l_u, quad = beside(BLOCK_L, 4, 1)", None),
        ("(j + cols < V) | (V % 32 == 0)", "(j + cols < V) | (V % 4 == 0)", None),
        ("(j + cols < V) | (V % 32 == 0)", "(j - cols < V) | (V % 32 == 0)", None),
        ("WHOLE: tl.constexpr = V % 32 == 0", "WHOLE: tl.constexpr = V % 4 == 0", None),
    ],
    check_without_tokens: [("tl.where(real, g_t, 0.0)", "tl.where(real, g_t, 1.0)", None)],
    check_full_ring: [("inside = ((i < K) | (K == BLOCK_K))", "inside = ((i < K) | (CAPACITY == BLOCK_K))", "walk")],
    check_far_rows: [
        (FAR, FAR.replace("row_stride", "tl.cast(row_stride, tl.int32)"), at) for at in ("_read_stream", "fold_stream")
    ],
}  # fmt: skip


@pytest.mark.parametrize(("check", "old", "new", "at"), [(check, *row) for check, rows in FAULTS.items() for row in rows])
def test_planted_fault_is_caught(check: Callable[[ModuleType], object], old: str, new: str, at: str | None) -> None:
    assert rejected(mutated(kernel, old, new, at=at), check)
