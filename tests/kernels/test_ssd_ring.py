"""SSD's buffered launchers beside the oracle: windows and tokens in a row, the ring, the cursors, the flush."""

from dataclasses import replace
from importlib import import_module
from types import ModuleType
from typing import Any

import pytest
import torch

from ssmspec_kernels.shared import cursors
from ssmspec_kernels.ssd.ring import ssd_buffered, ssd_buffered_step, ssd_flush
from ssmspec_kernels.ssd.ring.ssd_ring import Ring
from tests.kernels.laws import (  # noqa: F401
    bits,
    moved,
    pytest_generate_tests,
    same,
    test_bytes_equal_the_formula_and_the_state_is_read_once,
    test_planted_fault_is_caught,
    test_what_a_launcher_alone_is_held_to,
)
from tests.kernels.mutants import mutated
from tests.kernels.ssd_plot import Options
from tests.kernels.ssd_ring_faults import BUFFERED as FAULTS  # noqa: F401
from tests.kernels.ssd_ring_subjects import (
    STEPS,
    SUBJECTS,  # noqa: F401
    WINDOWS,
    check_cancelling,
    check_flush,
    check_strong,
    check_strong_flush,
    check_strong_step,
)
from tests.kernels.ssd_rings import Held, check_exact, check_run, held
from tests.kernels.tensors import far, watch

# --- windows ---


@pytest.mark.parametrize(("o", "capacity"), WINDOWS, ids=str)
def test_windows_in_a_row_equal_plain_decoding_within_the_bound(o: Options, capacity: int) -> None:
    check_run(ssd_buffered, o, capacity)
    if o.io == "bf16":
        check_run(ssd_buffered, o, capacity, short=False)


SPLITS = [(16, 16, 1, False, False), (16, 48, 2, True, False), (32, 64, 2, False, False)]
SHORT_SPLITS = [(16, 16, 1, False, True), (16, 48, 1, False, True), (16, 80, 1, True, True), (16, 640, 1, False, True)]
UNSPLIT = (None, None, 1, None, True)  # one head a program, and whatever channels


@pytest.mark.parametrize("tiles", [*SPLITS, *SHORT_SPLITS, UNSPLIT], ids=str)
def test_every_split_of_the_channels_lies_within_the_bound(tiles: tuple[Any, ...]) -> None:
    how = dict(zip(("block_p", "program_p", "heads", "apart", "short"), tiles, strict=True))
    check_run(ssd_buffered, Options(b=2, t=3, p=50, n=35, h=4, io="bf16", z=True, D="channel"), 7, 4, **how)


@pytest.mark.parametrize("t", [1, 8])
def test_the_shortest_and_the_longest_of_the_short_windows_lie_within_the_bound(t: int) -> None:
    check_run(ssd_buffered, Options(b=2, t=t, io="bf16", h=2, g=1, p=18, n=40), 19, short=True)


@pytest.mark.interpreter  # a tile that one warp's registers do not hold: what it names, not how fast
def test_wide_states_lie_within_the_bound_in_the_short_windows_where_they_are_asked_for() -> None:
    check_run(ssd_buffered, Options(b=1, t=2, io="bf16", h=1, g=1, p=3, n=260), 5, 4, short=True)


@pytest.mark.parametrize("short", [True, False])
def test_tokens_beyond_2_to_the_31_elements_are_read(short: bool) -> None:
    near, call = (held("ssd_buffered", Held(b=1, io="bf16", g=1, h=1, p=5, n=6, capacity=7)) for _ in range(2))
    near.run(ssd_buffered, short=short)
    call.run(ssd_buffered, short=short, **{name: far(call[name], 1) for name in ("x", "dt", "B", "C")})
    assert torch.equal(call["out"], near["out"])
    assert all(torch.equal(x, y) for x, y in zip(call["ring"].tensors, near["ring"].tensors, strict=True))


@pytest.mark.parametrize("short", [True, False])
def test_a_flush_keeps_the_bits_of_fp32_however_strong_the_decay(short: bool) -> None:
    check_strong(ssd_buffered, short)


@pytest.mark.parametrize(("capacity", "count"), [(16, 12), (40, 37)])
def test_a_flush_by_hand_keeps_the_bits_of_fp32_however_strong_the_decay(capacity: int, count: int) -> None:
    check_strong_flush(ssd_flush, capacity, count)


INTEGERS = Options(t=6, p=3, n=5, exact=True, padding=False)


@pytest.mark.parametrize("capacity", [4, 5, 7])
def test_integers_come_out_exactly(capacity: int) -> None:
    check_exact(ssd_buffered, "ssd_buffered", INTEGERS, capacity, 2)


def test_an_fp32_checkpoint_is_kept_as_fp32_after_many_flushes() -> None:
    """bf16 activations: neither the checkpoint nor what scales B passes through bf16."""
    check_run(ssd_buffered, Options(b=2, t=2, io="bf16", gentle=True, h=2), 4, windows=5)


@pytest.mark.parametrize(("t", "capacity"), [(3, 7), (18, 37)])
def test_a_flush_by_hand_is_the_state_after_the_history(t: int, capacity: int) -> None:
    """A history of one block of 16 entries, and one of two."""
    check_flush(ssd_flush, t, capacity)


def test_a_flush_by_hand_moves_the_bytes_of_the_formula() -> None:
    call = held("ssd_buffered", Held(b=2, t=1, io="bf16", capacity=5, held=4))
    ring = call["ring"]
    with watch(S=call["S"], **ring.tensors._asdict(), slots=call["slots"], A=call["A"]) as seen:
        ssd_flush.ssd_flush(call["S"], ring, call["A"], 2, slots=call["slots"])
    left_out = sum(seen.loaded(name).distinct for name in ("slots", "origin", "held", "A"))
    assert seen.distinct_bytes() - left_out == moved(ssd_flush.traffic_bytes, call, held=[4, 4])
    assert seen.outside == seen.races == []


def test_the_last_bits_of_the_state_reach_the_outputs_of_long_windows_too() -> None:
    check_cancelling(ssd_buffered, short=False)


def check_few_heads(module: ModuleType) -> None:
    """Heads of whole tiles of 64 channels have one limit, all others another."""
    whole, ragged = ({module.few_heads(p) for p in sizes} for sizes in ((64, 128, 256), (16, 48, 80, 96, 200)))
    assert len(whole) == len(ragged) == 1
    assert whole != ragged


def test_heads_that_fill_their_tiles_have_a_limit_of_their_own() -> None:
    check_few_heads(ssd_buffered)


def test_bits_of_short_windows_do_not_depend_on_which_row_starts_first() -> None:
    """Rows that are due, rows that are not, one without a token and padding among them."""
    found = []
    for in_turn in (False, True):
        call = held("ssd_buffered", Held(io="bf16", t=3, g=1, h=2, b=5, p=18, n=35, capacity=12, seed=8, padding=True))
        count = call["ring"].held
        count.copy_(torch.arange(len(count)) * 3 % 10)
        lengths = torch.tensor([3, 0, 2, 3, 1], dtype=torch.int32)
        call.run(ssd_buffered, lengths=lengths, short=True, flushed_first=in_turn)
        found.append(bits(call))
    assert same(*found)


@pytest.mark.parametrize("short", [True, False])
def test_what_is_not_finite_in_a_history_reaches_no_output_behind_the_last_token(short: bool) -> None:
    call = held("ssd_buffered", Held(io="bf16", t=3, g=1, h=2, b=2, p=18, n=35, capacity=12, held=2, seed=8))
    call["ring"].B.fill_(float("nan"))
    call.run(ssd_buffered, lengths=torch.tensor([1, 2], dtype=torch.int32), short=short)
    for row, length in enumerate((1, 2)):
        assert call["out"][row, :length].isnan().all()
        assert not call["out"][row, length:].any()


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
        ssd_buffered.ssd_buffered(S, ring, x, dt, A, B, C, apart=False, flushed_first=asked)
    assert given["BLOCK_B"] == expected


# --- standard decode, a token at a time ---


@pytest.mark.parametrize("output_only", [True, False])
@pytest.mark.parametrize(("o", "capacity"), STEPS, ids=str)
def test_standard_decode_equals_plain_decoding_within_the_bound(o: Options, capacity: int, output_only: bool) -> None:
    check_run(ssd_buffered_step, o, capacity, 7, step=True, output_only=output_only)


@pytest.mark.parametrize("capacity", [17, 64])
def test_long_rings_of_any_size_lie_within_the_bound(capacity: int) -> None:
    o = Options(b=1, t=1, io="bf16", h=1, g=1, p=9, n=40, gentle=True)
    check_run(ssd_buffered_step, o, capacity, capacity + 4, step=True)


@pytest.mark.parametrize("output_only", [True, False])
def test_entries_beyond_2_to_the_31_elements_are_written_and_read(output_only: bool) -> None:
    o = Held(b=1, t=1, io="bf16", g=1, h=1, p=5, n=6, spare=0, capacity=4)
    near, call = (held("ssd_buffered_step", o) for _ in range(2))
    call["ring"] = replace(call["ring"], x=far(call["ring"].x, 1), B=far(call["ring"].B, 1))
    for _ in range(6):
        for one in (near, call):
            one.run(ssd_buffered_step, output_only=output_only)
            cursors.commit_step(one["ring"].origin, one["ring"].held, capacity=4, rows=1, slots=one["slots"])
        assert same(bits(call, "S", "out"), bits(near, "S", "out"))


@pytest.mark.parametrize("output_only", [True, False])
@pytest.mark.parametrize(("p", "block_p", "program_p"), [(50, 16, 16), (50, 16, 50), (80, 16, 32), (50, 64, 64)])
def test_every_split_of_a_tokens_channels_lies_within_the_bound(
    p: int, block_p: int, program_p: int, output_only: bool
) -> None:
    """Tiles that end inside the channels and beyond them, and a program whose last tile holds none."""
    how: dict[str, Any] = {"step": True, "output_only": output_only, "block_p": block_p, "program_p": program_p}
    check_run(ssd_buffered_step, Options(b=2, t=1, p=p, io="bf16", z=True, D="channel"), 2, 4, **how)


@pytest.mark.parametrize("weak", [True, False])
@pytest.mark.parametrize("output_only", [True, False])
def test_a_full_ring_keeps_the_bits_of_fp32_however_strong_the_decay(output_only: bool, weak: bool) -> None:
    check_strong_step(ssd_buffered_step, output_only, weak)


@pytest.mark.parametrize(
    ("programs", "each"), [(1, 4), (1280, 4), (1536, 5), (1583, 2), (1584, 4), (5120, 4), (6144, 5), (20480, 4)]
)
def test_heads_are_cut_to_fill_the_first_round_or_to_be_the_last(programs: int, each: int) -> None:
    whole = ssd_buffered_step.whole_programs(programs, each)
    assert 0 <= whole <= programs
    cut = (programs - whole) * each
    assert cut <= ssd_buffered_step.RESIDENT
    assert programs > ssd_buffered_step.RESIDENT or whole + cut <= ssd_buffered_step.RESIDENT


def test_tiles_take_two_warps_where_more_than_twelve_a_multiprocessor_would_come() -> None:
    """Of 80 channels five each: 316 heads of rows are 1580 of the 1584 that 132 multiprocessors hold."""
    assert ssd_buffered_step.tile(316, 80, 128, True) == (16, 16, 1)
    assert ssd_buffered_step.tile(317, 80, 128, True) == (16, 16, 2)


@pytest.mark.parametrize("output_only", [True, False])
@pytest.mark.parametrize("capacity", [1, 3])
def test_integers_of_single_tokens_come_out_exactly(capacity: int, output_only: bool) -> None:
    o = replace(INTEGERS, t=7)
    check_exact(ssd_buffered_step, "ssd_buffered_step", o, capacity, 1, output_only=output_only)


# --- planted faults of one law ---

CANCELLING = "tl.exp(tl.sum(step * decay, axis=0) - tl.cumsum(step * decay, axis=0))"
OF_ALL = "tl.exp(tl.sum(steps * decay, axis=0) - tl.cumsum(steps * decay, axis=0)) * steps"
SUMS = [
    (lambda module: check_strong(module, True), ssd_buffered, "tl.exp(since)", CANCELLING, "_head_weights"),
    (lambda module: check_strong_flush(module, 16, 12), ssd_flush, "tl.exp(since + tl.cumsum(behind * decay, axis=0))",
     "tl.exp(since + tl.cumsum(step * decay, axis=0) - step * decay)", "fold"),
    (lambda module: check_strong_step(module, True, True), ssd_buffered_step, "tl.exp(since) * steps", OF_ALL),
    (lambda module: check_strong_step(module, True, False), ssd_buffered_step, "tl.exp(since) * steps", OF_ALL),
]  # fmt: skip
OTHERS = [
    (lambda module: check_flush(module, 18, 37), ssd_flush, "(l + 1 < count - start)", "(l + 1 < count)", "fold"),
    (check_few_heads, ssd_buffered, 'if p % 64 else "few_heads"', 'if p // 64 else "few_heads"', "few_heads"),
    (check_flush, ssd_flush, "past, at = l < count", "past, at = l < count - 1"),
    (check_flush, ssd_flush, "tl.sum(ld, axis=0)", "0.0 * tl.sum(ld, axis=0)"),
    (check_flush, ssd_flush, "first, count, p, n,", "first, count - 1, p, n,"),
    (check_flush, ssd_flush, "(h // HEADS_PER_GROUP)", "(h % HEADS_PER_GROUP)"),
    (check_flush, ssd_flush, "in_p, in_n = p < P, n < N", "in_p, in_n = p < P - 1, n < N"),
    (check_flush, ssd_flush, "if slot >= 0:", "if slot > 0:"),
    (check_flush, ssd_flush, "state.to(S.dtype.element_ty)", "state.to(tl.bfloat16).to(S.dtype.element_ty)"),
]  # fmt: skip


@pytest.mark.parametrize("fault", [*SUMS, *OTHERS], ids=[str(fault[3]) for fault in [*SUMS, *OTHERS]])
def test_planted_fault_of_one_law_is_caught(fault: Any) -> None:
    check, module, old, new, *at = fault
    mutant = mutated(module, old, new, at=at[0] if at else None)
    with pytest.raises(AssertionError, match="of the largest element" if fault in SUMS else None):
        check(mutant)
