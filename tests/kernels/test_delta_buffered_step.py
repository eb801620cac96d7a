"""Standard decode of the delta rule from a checkpoint and a ring, by both routes, beside the oracle."""

from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from triton.runtime.errors import InterpreterError

from conformance.interpreter.memory import watch
from ssmspec_kernels.delta.ring import delta_buffered_step as kernel
from ssmspec_kernels.shared import cursors
from ssmspec_ref.error_bounds.arithmetic import Approx
from tests.kernels import delta_cases as cases
from tests.kernels import delta_rings as rings
from tests.kernels.delta_cases import Options
from tests.kernels.delta_checks import assert_one_product
from tests.kernels.delta_rings import TYPES, assert_untouched, kept, untouchables, window_case
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
    first, ring = cases.draw(o), rings.ring_of(o, capacity, TYPES[u])
    oracles = [rings.Oracle(o, first.state()[i : i + 1], ring=u) for i in range(len(first.rows))]
    dead = untouchables(first, ring)
    for n in range(tokens):
        case = window_case(first, o, n)
        lengths = torch.tensor([int((n + r) % 3 != 2) for r in range(o.b)], dtype=torch.int32)
        rings.absent(case, lengths)
        before, rest = case.S.clone(), kept(ring)
        case.call(module.delta_buffered_step, ring=ring, lengths=lengths, output_only=output_only, **changes)
        cursors.commit_step(ring.origin, ring.held, capacity=capacity, rows=o.b, slots=case.slots, lengths=lengths)
        for oracle, row, i in zip(oracles, case.rows, range(o.b), strict=False):
            slot = int(case.slots[row])
            flushed = oracle.held + 1 == capacity and bool(lengths[row])
            if lengths[row]:
                cases.assert_within(f"o {n} {row}", case.out[row : row + 1], oracle.read(*rings.row(case, i, 1))[0])
                oracle.take(*rings.row(case, i, 1), 1)
            else:
                assert not case.out[row].any()
                assert all(cases.untouched(x[slot], y[slot]) for x, y in zip(rest, kept(ring), strict=True))
            if flushed:
                oracle.flush()
                cases.assert_within(f"S {n} {row}", case.S[slot][None], Approx(oracle.S, oracle.error, oracle.contract))
                oracle.S, oracle.error = cases.doubles(case.S[slot][None]), np.zeros_like(oracle.S)
            else:
                assert cases.untouched(before[slot], case.S[slot])
            assert int(ring.held[slot]) == oracle.held
    assert_untouched(dead, first, ring)


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


def test_a_planted_decay_of_a_row_without_a_token_is_caught() -> None:
    mutant = mutated(kernel, "tl.where(real, g_t, 0.0)", "tl.where(real, g_t, 1.0)")
    with pytest.raises(AssertionError):
        check_without_token(mutant, False)


def check_step_bytes(module: ModuleType, o: Options, held: int, output_only: bool, capacity: int = 5, **changes: Any) -> None:
    case, ring = cases.draw(o, padding=False), rings.ring_of(replace(o, poison=0.25), capacity, torch.bfloat16)
    ring.held.fill_(held)
    named = {name: getattr(case, name) for name in ("S", "q", "k", "v", "g", "beta", "out")}
    with watch(**named, **rings.tensors(ring), slots=case.slots) as seen:
        case.call(module.delta_buffered_step, ring=ring, output_only=output_only, **changes)
    cursor = sum(seen.loaded(name).distinct for name in ("slots", "origin", "held"))
    sizes = {"io": case.q.element_size(), "channel": o.channel}
    expected = module.traffic_bytes([held] * o.b, o.g, o.h, o.k, o.v, capacity=capacity, **sizes)
    assert seen.distinct_bytes() - cursor == expected
    states = o.b * o.h * o.k * o.v * 4
    again = output_only and o.io == "bf16" and not o.channel  # a flush asks the level-2 cache for a tile that was read
    assert seen.loaded("S").requested == states * (2 if again and held == capacity - 1 else 1)
    assert seen.stored("S").requested == (states if held == capacity - 1 else 0)
    assert seen.outside == seen.races == []


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


def test_a_planted_write_behind_the_channels_of_a_head_is_caught() -> None:
    mutant = mutated(kernel, "inside = ((i < K) | (K == BLOCK_K))", "inside = ((i < K) | (CAPACITY == BLOCK_K))", at="walk")
    with pytest.raises(AssertionError):
        check_full_ring(mutant)


@pytest.mark.parametrize("output_only", [True, False])
def test_rows_of_a_state_beyond_2_to_the_31_elements_are_read_and_written(output_only: bool) -> None:
    o = Options(b=1, t=1, g=1, h=1, k=6, v=9, state="bf16", spare=0)
    (near, ring), (case, other) = ((cases.draw(o, padding=False), rings.ring_of(o, 1, torch.float32)) for _ in range(2))
    case.S = far(near.S, 2)
    near.call(kernel.delta_buffered_step, ring=ring, output_only=output_only)
    case.call(kernel.delta_buffered_step, ring=other, output_only=output_only)
    assert torch.equal(case.S, near.S)
    assert torch.equal(case.out, near.out)


def check_far_rows(module: ModuleType) -> None:
    rings.check_far_rows(module.delta_buffered_step, t=1, capacity=3, short=False)


def test_rows_that_stream_from_beyond_2_to_the_31_elements_are_read_and_written() -> None:
    check_far_rows(kernel)


@pytest.mark.parametrize(("at", "indent"), [("_read_stream", 8), ("fold_stream", 8)])
def test_a_planted_product_of_32_bits_is_caught(at: str, indent: int) -> None:
    """In the loop that reads, and in the one that folds."""
    step = f"\n{' ' * indent}at_r += ROWS * row_stride"
    mutant = mutated(kernel, step, step.replace("row_stride", "tl.cast(row_stride, tl.int32)"), at=at)
    with pytest.raises(AssertionError):
        check_far_rows(mutant)


STRONG = [
    (Options(t=1, k=6, v=9, gentle=True), 14),
    (Options(t=1, k=6, v=9, io="bf16", channel=True, gentle=True), 14),
    (Options(t=1, io="bf16", g=1, h=2, b=2, k=32, v=32), 8),
    (Options(t=1, k=6, v=9, gentle=True), 16),
]


def check_last(module: ModuleType, o: Options, capacity: int, output_only: bool) -> None:
    """The newest entry that is held, behind strong decays and before a token of weak decay, weighs what it does alone."""
    (case, other), whole, alone = rings.strong(o, capacity, capacity - 1, "fp32")
    case.call(module.delta_buffered_step, ring=whole, output_only=output_only)
    other.call(module.delta_buffered_step, ring=alone, output_only=output_only)
    named = case.slots.long()
    assert_one_product(case.S[named], other.S[named])


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


STEP_FAULTS = [
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
]


SHORT_FAULTS = [
    ("full = count + 1 == CAPACITY", "full = count == CAPACITY"),
    ("if full & real:", "if full:"),
    ("(full == 0) & real & (tl.program_id(0) == 0)", "(full == 0) & (tl.program_id(0) == 0)"),
    ("(full == 0) & real & (tl.program_id(0) == 0)", "real & (tl.program_id(0) == 0)"),
    ("if h % HEADS_PER_KEY == 0:", "if h >= 0:"),
    ("return g_t, beta_t, left, r_q", "return since, beta_t, left, r_q"),
    ("+ i, k_t, mask=in_k)", "+ i, q_t, mask=in_k)"),
    ("l == count - 1, G_l, 0.0)", "l == count - 2, G_l, 0.0)"),
    ("left = tl.exp(since + g_t)", "left = tl.exp(since)"),
    ("r_l * tl.exp(since - G_l + g_t)", "r_l * tl.exp(since - G_l)"),
    ("r_l * tl.exp(since - G_l + g_t)", "tl.exp(since - G_l + g_t)"),
    ("tl.where(new, r_k, 0.0))", "0.0)"),
    ("(e < count) | ((e == count) & real)", "e < count"),
    ("tl.where(e < count, at_kept + place(first + e", "tl.where(e < count, at_kept + place(first + e + 1"),
    ("tl.where(which == 0, at_k, at_q)", "tl.where(which == 1, at_k, at_q)"),
    ("key_l = of_entries(to_key)", "key_l = of_entries(to_query)"),
    ("sum_q += left * tl.sum(", "sum_q += tl.sum("),
    ("x * x_q[part].to", "x * x_q[0].to"),
    ("v_t - r_k * tl.sum(sum_k, axis=1)", "v_t - tl.sum(sum_k, axis=1)"),
    ("tl.sum(sum_q, axis=1) + own * u", "tl.sum(sum_q, axis=1)"),
    ("tl.where(is_new, u[None, None, :, None, :], u_l)", "u_l"),
    ("tl.where(l < count, ring + place(first + l, CAPACITY) * stride, k)", "ring + place(first + l, CAPACITY) * stride"),
    ("dot_cut_onto(left * to_left(", "dot_cut_onto(to_left("),
    ("hi, mid, lo, keys))", "hi, lo, lo, keys))"),
    ("l_u, quad = beside(BLOCK_L)", "l_u, quad = beside(BLOCK_L, 4, 1)"),
    ("(j + cols < V) | (V % 32 == 0)", "(j + cols < V) | (V % 4 == 0)"),
    ("(j + cols < V) | (V % 32 == 0)", "(j - cols < V) | (V % 32 == 0)"),
    ("WHOLE: tl.constexpr = V % 32 == 0", "WHOLE: tl.constexpr = V % 4 == 0"),
]


IN_SHORT = {"r_l * tl.exp(since - G_l + g_t)"}
"""Of these, what the kernel for many rows has too."""


def check_short(module: ModuleType) -> None:
    for held in (3, 4):
        check_step_bytes(module, Options(t=1, io="bf16", k=32, v=36), held, True)
    for i, tokens in ((1, 6), (5, 6)):
        check_steps(module, *STEPS[i], True, tokens=tokens)


@pytest.mark.parametrize(("old", "new"), SHORT_FAULTS, ids=[new for _, new in SHORT_FAULTS])
def test_planted_fault_of_short_rings_is_caught(old: str, new: str) -> None:
    with pytest.raises(AssertionError):
        check_short(mutated(kernel, old, new, at="_entry_weights" if old in IN_SHORT else None))


def check_all_steps(module: ModuleType) -> None:
    for output_only in (True, False):
        check_step_bytes(module, Options(t=1, v=9), 4, output_only)
        for i, tokens in ((0, 5), (3, 2), (2, 5), (1, 5), (4, 5)):
            check_steps(module, *STEPS[i], output_only, tokens=tokens, short=False)


@pytest.mark.parametrize(("old", "new", "at"), STEP_FAULTS, ids=[new for _, new, _ in STEP_FAULTS])
def test_planted_fault_of_standard_decode_is_caught(old: str, new: str, at: str | None) -> None:
    mutant = mutated(kernel, old, new, at=at)
    with pytest.raises(AssertionError):
        check_all_steps(mutant)
