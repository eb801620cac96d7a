"""SSD's replay buffer beside the oracle: windows in a row, the ring, the cursors, the flush."""

from dataclasses import replace
from importlib import import_module
from types import ModuleType
from typing import Any

import pytest
import torch

from conformance.interpreter.memory import watch
from ssmspec_kernels.ssd.ring import ssd_buffered as kernel
from ssmspec_kernels.ssd.ring import ssd_flush
from ssmspec_kernels.ssd.ring.ssd_ring import Ring
from tests.kernels import ssd_cases as cases
from tests.kernels import ssd_rings as rings
from tests.kernels.mutants import mutated
from tests.kernels.ssd_buffered_checks import (
    WINDOWS,
    check_all,
    check_bytes,
    check_cancelling,
    check_exact,
    check_flush,
    check_shared,
    check_short,
    check_strong,
    check_strong_flush,
    check_windows,
)
from tests.kernels.ssd_cases import Options
from tests.kernels.tensors import far


@pytest.mark.parametrize(("o", "capacity"), WINDOWS, ids=str)
def test_windows_in_a_row_equal_plain_decoding_within_the_bound(o: Options, capacity: int) -> None:
    check_windows(kernel, o, capacity)
    if o.io == "bf16":
        check_windows(kernel, o, capacity, short=False)


SPLITS = [(16, 16, 1, False, False), (16, 48, 2, True, False), (32, 64, 2, False, False)]
SHORT_SPLITS = [(16, 16, 1, False, True), (16, 48, 1, False, True), (16, 80, 1, True, True), (16, 640, 1, False, True)]
UNSPLIT = (None, None, 1, None, True)  # one head a program, and whatever channels


@pytest.mark.parametrize("tiles", [*SPLITS, *SHORT_SPLITS, UNSPLIT], ids=str)
def test_every_split_of_the_channels_lies_within_the_bound(tiles: tuple[Any, ...]) -> None:
    block, program, heads, apart, short = tiles
    o = Options(b=2, t=3, p=50, n=35, h=4, io="bf16", z=True, D="channel")
    check_windows(kernel, o, 7, 4, block_p=block, program_p=program, heads=heads, apart=apart, short=short)


@pytest.mark.parametrize("t", [1, 8])
def test_the_shortest_and_the_longest_of_the_short_windows_lie_within_the_bound(t: int) -> None:
    check_windows(kernel, Options(b=2, t=t, io="bf16", h=2, g=1, p=18, n=40), 19, short=True)


@pytest.mark.interpreter  # a tile that one warp's registers do not hold: what it names, not how fast
def test_wide_states_lie_within_the_bound_in_the_short_windows_where_they_are_asked_for() -> None:
    check_windows(kernel, Options(b=1, t=2, io="bf16", h=1, g=1, p=3, n=260), 5, 4, short=True)


@pytest.mark.parametrize("short", [True, False])
def test_tokens_beyond_2_to_the_31_elements_are_read(short: bool) -> None:
    o = Options(b=1, t=3, io="bf16", g=1, h=1, p=5, n=6)
    (near, ring), (case, other) = ((cases.draw(o, padding=False), rings.ring_of(o, 7)) for _ in range(2))
    tokens = {name: far(getattr(case, name), 1) for name in cases.TOKENS}
    near.call(kernel.ssd_buffered, ring=ring, short=short)
    case.call(kernel.ssd_buffered, ring=other, short=short, **tokens)
    assert torch.equal(case.out, near.out)
    for name, x in rings.tensors(ring).items():
        assert cases.untouched(x, rings.tensors(other)[name])


@pytest.mark.parametrize("short", [True, False])
def test_a_flush_keeps_the_bits_of_fp32_however_strong_the_decay(short: bool) -> None:
    check_strong(kernel, short)


@pytest.mark.parametrize(("capacity", "held"), [(16, 12), (40, 37)])
def test_a_flush_by_hand_keeps_the_bits_of_fp32_however_strong_the_decay(capacity: int, held: int) -> None:
    check_strong_flush(ssd_flush, capacity, held)


@pytest.mark.parametrize("capacity", [4, 5, 7])
def test_integers_come_out_exactly(capacity: int) -> None:
    check_exact(kernel, Options(t=6, p=3, n=5), capacity)


def test_an_fp32_checkpoint_is_kept_as_fp32_after_many_flushes() -> None:
    """bf16 activations: neither the checkpoint nor what scales B passes through bf16."""
    check_windows(kernel, Options(b=2, t=2, io="bf16", gentle=True, h=2), 4, windows=5)


@pytest.mark.parametrize(("t", "capacity"), [(3, 7), (18, 37)])
def test_a_flush_by_hand_is_the_state_after_the_history(t: int, capacity: int) -> None:
    """A history of one block of 16 entries, and one of two."""
    check_flush(ssd_flush, t, capacity)


def test_a_flush_by_hand_moves_the_bytes_of_the_formula() -> None:
    o = Options(b=2, t=1, io="bf16")
    case, ring = cases.draw(o, padding=False), rings.ring_of(replace(o, poison=0.25), 5)
    ring.held.fill_(4)
    with watch(S=case.S, **rings.tensors(ring), slots=case.slots, A=case.A) as seen:
        ssd_flush.ssd_flush(case.S, ring, case.A, o.b, slots=case.slots)
    left_out = sum(seen.loaded(name).distinct for name in ("slots", "origin", "held", "A"))
    assert seen.distinct_bytes() - left_out == ssd_flush.traffic_bytes([4] * o.b, o.h, o.p, o.n, o.g)
    assert seen.outside == seen.races == []


@pytest.mark.parametrize("held", [0, 3, 6])
@pytest.mark.parametrize("o", [Options(b=2, h=2, z=True), Options(b=1, t=2, io="bf16", g=1, p=33)], ids=str)
def test_a_window_moves_the_bytes_of_the_formula_and_no_program_reads_what_another_appends(o: Options, held: int) -> None:
    check_bytes(kernel, o, held)
    check_bytes(kernel, o, held, block_p=16, program_p=16, apart=False, short=False)
    check_bytes(kernel, o, held, block_p=16, program_p=48, heads=o.h // o.g, apart=True, short=False)
    check_bytes(kernel, o, held, block_p=16, program_p=32, apart=True, short=True)
    check_bytes(kernel, o, held, block_p=16, program_p=16, apart=False, short=True)


@pytest.mark.parametrize("short", [True, False])
def test_a_window_shorter_than_the_longest_is_flushed_as_that_one(short: bool) -> None:
    check_bytes(kernel, Options(b=2, h=2, t=2, io="bf16"), 3, window=4, short=short)


FAULTS = [
    ("(length > 0) & is_due(count, WINDOW, CAPACITY)", "(length > 0) & (count + WINDOW > CAPACITY)", None),
    ("(length > 0) & is_due(count, WINDOW, CAPACITY)", "is_due(count, WINDOW, CAPACITY)", None),
    ("(due == FLUSHED)", "OPEN", None),
    ("if due:", "if due or not AGAIN:", None),
    ("G_q[:, None] - pick(G_e, here)[None, :]", "G_q[:, None]", None),
    ("tl.exp(G_q)[:, None] *", "1.0 *", None),
    ("place(first + e, CAPACITY)", "place(first + e + 1, CAPACITY)", None),
    ("count, length, CAPACITY)", "count, T, CAPACITY)", None),
    ("(i[None, :] <= t[:, None])", "(i[None, :] < t[:, None])", None),
    ("dot_left(W, x_e)", "dot_left(0.0 * W, x_e)", None),
    ("tl.where(here[None, :] & past[:, None], lds, 0.0)", "tl.where(here[None, :], lds, 0.0)", None),
    (") & past[None, :]).to(tl.bfloat16)", ")).to(tl.bfloat16)", None),
    ("if tl.program_id(0) == 0:", "if tl.program_id(0) >= 0:", None),
    ("if h_0 % HEADS_PER_GROUP == 0:", "if h_0 >= 0:", None),
    ("in_n, in_h, heads = n < N, k < HEADS, h_0 + k", "in_n, in_h, heads = n < N, k <= HEADS, h_0 + k", None),
    ("x_e, mask=new[:, None] & in_p[None, :]", "x_e, mask=in_p[None, :]", None),
    ("state.to(S.dtype.element_ty)", "state.to(tl.bfloat16).to(S.dtype.element_ty)", None),
    ("tl.exp(total) * state", "state", None),
    ("weight = tl.exp(pick(since, here)) * step", "weight = step", None),
    ("weight[:, None] * x_e.to(tl.float32)", "(weight[:, None] * x_e.to(tl.float32)).to(x_e.dtype).to(tl.float32)", None),
    ("p_t = p + tile * BLOCK_P", "p_t = p", None),
    ("h, here = h_0 + head, k == head", "h, here = h_0 + head, k == 0", None),
    ("g = h_0 // HEADS_PER_GROUP", "g = h_0 * 0", None),
    ("W + tl.sum(tl.where(here, skips, 0.0), axis=0)", "W", None),
    ("at >= CAPACITY, at - CAPACITY, at)", "at >= CAPACITY, at - CAPACITY + 1, at)", "place"),
    ("tl.where(new, at_B_t + row * stride.B.t,", "tl.where(new, at_B + at * stride_ring.B.l,", None),
    ("tl.where(new, at_x_t + row * stride.x.t,", "tl.where(new, at_x + at * stride_ring.x.l,", None),
    ("load_at(rows_x, p_t, past | new, in_p)", "load_at(rows_x, p_t, new, in_p)", None),
    ("mask=in_rows[:, None] & in_cols[None, :], other=0.0)", "mask=in_cols[None, :], other=0.0)", "load_at"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "at"), FAULTS, ids=[new for _, new, _ in FAULTS])
def test_planted_fault_is_caught(old: str, new: str, at: str | None) -> None:
    mutant = mutated(kernel, old, new, at=at)
    with pytest.raises(AssertionError):
        check_all(mutant)


CANCELLING = "tl.exp(tl.sum(step * decay, axis=0) - tl.cumsum(step * decay, axis=0))"


def test_planted_sums_that_cancel_are_caught_by_strong_decays() -> None:
    with pytest.raises(AssertionError, match="of the largest element"):
        check_strong(mutated(kernel, "tl.exp(since)", CANCELLING, at="_head_weights"), True)
    cancelling = "tl.exp(since + tl.cumsum(step * decay, axis=0) - step * decay)"
    with pytest.raises(AssertionError, match="of the largest element"):
        check_strong_flush(
            mutated(ssd_flush, "tl.exp(since + tl.cumsum(behind * decay, axis=0))", cancelling, at="fold"), 16, 12
        )


def test_a_planted_entry_of_the_block_before_is_caught_by_a_history_of_two_blocks() -> None:
    mutant = mutated(ssd_flush, "(l + 1 < count - start)", "(l + 1 < count)", at="fold")
    with pytest.raises(AssertionError):
        check_flush(mutant, 18, 37)


SHORT_FAULTS = [
    ("(length > 0) & is_due(count, WINDOW, CAPACITY)", "(length > 0) & (count + WINDOW > CAPACITY)",
     "ssd_buffered_short_kernel"),
    ("(length > 0) & is_due(count, WINDOW, CAPACITY)", "is_due(count, WINDOW, CAPACITY)", "ssd_buffered_short_kernel"),
    ("is_due(count, WINDOW, CAPACITY)", "(count + WINDOW > CAPACITY)", "rows_in_order"),
    ("live & (length > 0) &", "live & (length >= 0) &", "rows_in_order"),
    ("mine = live & (due == DUE)", "mine = live", "ranks"),
    ("rank == begin // (GROUPS * of_group) + 1", "rank == 1", "ssd_buffered_short_kernel"),
    ("(begin // of_group % GROUPS)", "(begin % GROUPS)", "ssd_buffered_short_kernel"),
    (".to(tl.int64), begin % of_group", ".to(tl.int64), 0 * begin", "ssd_buffered_short_kernel"),
    ("tl.max(rank, axis=0) * (GROUPS * of_group)", "tl.max(rank, axis=0) * of_group", "ssd_buffered_short_kernel"),
    ("tiles, tl.num_programs(0) * run, num", "tiles, tl.num_programs(0) * run + 1, num", "ssd_buffered_short_kernel"),
    ("(P % BLOCK_P == 0) &", "(P > 0) &", "ssd_buffered_short_kernel"),
    (" & (N == 2 * HALF_N)", "", "ssd_buffered_short_kernel"),
    ("row_in_turn(\n            tl.program_id(2),", "row_in_turn(\n            0,", "_own_row"),
    ("place(first + e, CAPACITY), i.to", "place(first + e + 1, CAPACITY), i.to", "verify_open"),
    ("(i >= 0) & (i < length), t < length", "(i >= 0) & (i < T), t < T", "verify_open"),
    ("(i[:, None] <= t[None, :])", "(i[:, None] < t[None, :])", "verify_open"),
    ("tl.where(i < 0, start + place(first + e, CAPACITY) * stride,", "tl.where(i < 0, window,", "load_entries"),
    ("window + i.to(tl.int64) * stride_t)", "start + place(first + e, CAPACITY) * stride)", "load_entries"),
    ("return load_operand(rows, n, (i < length)[:, None]", "return load_operand(rows, n, (i < 8)[:, None]", "load_entries"),
    ("mask = (t < length)[:, None] &", "mask = (t < length - 1)[:, None] &", "load_window"),
    ("tl.where(real, behind + t, 0)", "tl.where(real, t, 0)", "append"),
    ("mask=real[:, None] & in_n[None, :]", "mask=in_n[None, :]", "append"),
    ("if begin == 0:", "if begin >= 0:", "verify_open"),
    ("tl.where(new, x + tok * stride.x.t,", "tl.where(new, ring_x + at * stride_ring.x.l,", "verify_open"),
    ("rows_h.to(tl.int64), p, live, in_p)", "rows_h.to(tl.int64), p, new, in_p)", "verify_open"),
    ("scores += dot_inputs(", "scores = dot_inputs(", "verify_open"),
    ("step, mask=new & (p_0 == 0))", "step, mask=new)", "verify_open"),
    ("G_j[None, :] - G_i[:, None]", "G_j[None, :]", "weights_by_entry"),
    ("weights_by_entry(G_e, G_t, step,", "weights_by_entry(G_e, G_t, step * step,", "verify_open"),
    ("if (p_0 == 0) | (index == begin):", "if p_0 == 0:", "verify_open"),
    ("if (p_0 == 0) | (index == begin):", "if index == begin:", "verify_open"),
    ("ahead, more = h + 1,", "ahead, more = h,", "verify_open"),
    ("i[:, None] == t[None, :]\n", "i[:, None] == t[None, :] - 1\n", "verify_open"),
    ("growth[None, :] *", "1.0 *", "verify_open"),
    ("to_mma(right, HALF_N), C_right)", "to_mma(left, HALF_N), C_right)", "verify_open"),
    ("(hi + (mid + lo))", "(hi + mid)", "verify_open"),
    ("return dot_onto(hi, x, y), mid, lo", "return hi, mid, lo", "dot_parts"),
    ("W + skip, W)", "W, W)", "weights_by_entry"),
    ("x_e, mask=new[:, None] & in_p[None, :]", "x_e, mask=in_p[None, :]", "verify_open"),
    ("past, follows, new = e < count,", "past, follows, new = e < count - 1,", "verify_flush"),
    ("e + 1 < count", "e + 1 <= count", "verify_flush"),
    ("place(first + e + 1, CAPACITY)", "place(first + e, CAPACITY)", "verify_flush"),
    ("axis=0, reverse=True)", "axis=0)", "_head_weights"),
    ("tl.exp(since) * step", "step", "_head_weights"),
    ("tl.exp(tl.sum(step * decay, axis=0))", "1.0", "_head_weights"),
    ("first + count + i, 0)", "first + i, 0)", "verify_flush"),
    ("(i[:, None] <= t[None, :])", "(i[:, None] < t[None, :])", "verify_flush"),
    ("i[:, None] == t[None, :]\n", "i[:, None] == t[None, :] - 1\n", "verify_flush"),
    ("if (p_0 == 0) | (index == begin):", "if p_0 == 0:", "verify_flush"),
    ("if (p_0 == 0) | (index == begin):", "if index == begin:", "verify_flush"),
    ("ahead, more = h + 1,", "ahead, more = h,", "verify_flush"),
    ("weighted, B_right)", "weighted, B_left)", "verify_flush"),
    ("scale * to_mma(right,", "to_mma(right,", "verify_flush"),
    ("state, p_0, HALF_N, stride.S.p", "state, p_0, 0, stride.S.p", "verify_flush"),
    ("growth[None, :] *", "1.0 *", "verify_flush"),
    ("weights_by_entry(G_s, G_t, own_step,", "weights_by_entry(G_s, G_t, own_step * own_step,", "_own_weights"),
    ("if begin == 0:", "if begin >= 0:", "verify_flush"),
    ("own_step, mask=new & (p_0 == 0))", "own_step, mask=new)", "verify_flush"),
    ("x_t, mask=new[:, None] & in_p[None, :]", "x_t, mask=in_p[None, :]", "_append_x"),
    ("state.shape[0], HALF_N).to(start", "state.shape[0], HALF_N).to(tl.bfloat16).to(start", "store_half"),
    ("(n_0 + n < N) & wanted", "(n_0 + n < N + 1) & wanted", "store_half"),
    ("(3, 1, 0, 2, 5, 4, 6)", "(3, 1, 0, 2, 4, 5, 6)", "to_memory"),
    ("(0, 1, 3, 2, 4)", "(0, 1, 2, 3, 4)", "permuted"),
    ("ROWS, 4, 2, 2)), (1, 0, 3, 2, 4)), (ROWS, BLOCK_N))", "ROWS, 4, 2, 2)), (1, 0, 2, 3, 4)), (ROWS, BLOCK_N))",
     "load_operand"),
    ("n_0 + (row // ROWS * 16)[:, None]", "(row // ROWS * 16)[:, None]", "operand_rows"),
]  # fmt: skip


@pytest.mark.parametrize("short", [True, False])
def test_the_last_bits_of_the_state_reach_the_outputs(short: bool) -> None:
    check_cancelling(kernel, short=short)


def check_few_heads(module: ModuleType) -> None:
    """Heads of whole tiles of 64 channels have one limit, all others another."""
    whole, ragged = ({module.few_heads(p) for p in sizes} for sizes in ((64, 128, 256), (16, 48, 80, 96, 200)))
    assert len(whole) == len(ragged) == 1
    assert whole != ragged


def test_heads_that_fill_their_tiles_have_a_limit_of_their_own() -> None:
    check_few_heads(kernel)


def test_a_planted_limit_by_the_number_of_tiles_is_caught() -> None:
    with pytest.raises(AssertionError):
        check_few_heads(mutated(kernel, 'if p % 64 else "few_heads"', 'if p // 64 else "few_heads"', at="few_heads"))


def test_few_programs_share_the_tiles_of_many_rows() -> None:
    check_shared(kernel)


def test_bits_of_short_windows_do_not_depend_on_which_row_starts_first() -> None:
    """Rows that are due, rows that are not, one without a token and padding among them."""
    o = Options(io="bf16", t=3, g=1, h=2, b=5, p=18, n=35, seed=8)
    found = []
    for in_turn in (False, True):
        case, ring = cases.draw(o), rings.ring_of(replace(o, poison=0.5), 12)
        ring.held.copy_(torch.arange(len(ring.held)) * 3 % 10)
        lengths = torch.tensor([3, 0, 2, 3, 1], dtype=torch.int32)
        case.call(kernel.ssd_buffered, ring=ring, lengths=lengths, short=True, flushed_first=in_turn)
        found.append([case.out[case.rows], case.S, ring.x, ring.dt, ring.B])
    assert all(torch.equal(x.nan_to_num(7.0), y.nan_to_num(7.0)) for x, y in zip(*found, strict=True))


@pytest.mark.parametrize("short", [True, False])
def test_what_is_not_finite_in_a_history_reaches_no_output_behind_the_last_token(short: bool) -> None:
    o = Options(io="bf16", t=3, g=1, h=2, b=2, p=18, n=35, seed=8)
    case, ring = cases.draw(o, padding=False), rings.ring_of(replace(o, poison=0.5), 12)
    ring.held.fill_(2)
    ring.B.fill_(float("nan"))
    case.call(kernel.ssd_buffered, ring=ring, lengths=torch.tensor([1, 2], dtype=torch.int32), short=short)
    for row, length in enumerate((1, 2)):
        assert case.out[row, :length].isnan().all()
        assert not case.out[row, length:].any()


@pytest.mark.parametrize(
    ("b", "asked", "expected"),
    [(32, None, 32), (16, None, 1), (16, True, 16), (32, False, 1), (64, None, 64), (1025, False, 1)],
)
def test_rows_that_are_due_start_first_where_programs_come_in_rounds(
    b: int, asked: bool | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """96 heads of five tiles: 16 rows are 1024 programs, 32 rows 3072, and 1056 are resident."""
    given: dict[str, Any] = {}

    class Launched:
        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            return lambda *args, **options: given.update(options)

    monkeypatch.setattr(import_module("ssmspec_kernels.ssd.ring.ssd_buffered_short"), "ssd_buffered_short_kernel", Launched())
    with torch.device("meta"):
        x, B, C = (torch.empty(b, 6, *axes, dtype=torch.bfloat16) for axes in ((96, 80), (8, 128), (8, 128)))
        S, dt, A = torch.empty(b, 96, 80, 128), torch.empty(b, 6, 96), torch.empty(96)
        ring_x, ring_dt, ring_B = (torch.empty(b, 32, *axes) for axes in ((96, 80), (96,), (8, 128)))
        ring = Ring(ring_x.bfloat16(), ring_dt, ring_B.bfloat16(), *(torch.empty(b, dtype=torch.int32) for _ in range(2)))
        kernel.ssd_buffered(S, ring, x, dt, A, B, C, apart=False, flushed_first=asked)
    assert given["BLOCK_B"] == expected


@pytest.mark.parametrize(("old", "new", "at"), SHORT_FAULTS, ids=[new for _, new, _ in SHORT_FAULTS])
def test_planted_fault_of_the_short_windows_is_caught(old: str, new: str, at: str) -> None:
    mutant = mutated(kernel, old, new, at=at)
    with pytest.raises(AssertionError):
        check_short(mutant)


FLUSH_FAULTS = [
    ("past, at = l < count", "past, at = l < count - 1"),
    ("tl.sum(ld, axis=0)", "0.0 * tl.sum(ld, axis=0)"),
    ("first, count, p, n,", "first, count - 1, p, n,"),
    ("(h // HEADS_PER_GROUP)", "(h % HEADS_PER_GROUP)"),
    ("in_p, in_n = p < P, n < N", "in_p, in_n = p < P - 1, n < N"),
    ("if slot >= 0:", "if slot > 0:"),
    ("state.to(S.dtype.element_ty)", "state.to(tl.bfloat16).to(S.dtype.element_ty)"),
]


@pytest.mark.parametrize(("old", "new"), FLUSH_FAULTS, ids=[new for _, new in FLUSH_FAULTS])
def test_planted_fault_of_the_flush_by_hand_is_caught(old: str, new: str) -> None:
    mutant = mutated(ssd_flush, old, new)
    with pytest.raises(AssertionError):
        check_flush(mutant)
