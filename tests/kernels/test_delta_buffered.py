"""The delta rule's replay buffer beside the oracle: windows in a row, the ring, the flush."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from conformance.interpreter.memory import watch
from ssmspec_kernels.delta.ring import delta_buffered as verify
from ssmspec_kernels.delta.ring import delta_flush
from ssmspec_kernels.delta.ring.delta_ring import Ring
from ssmspec_kernels.shared import cursors, flush_order
from ssmspec_kernels.shared.flush_order import row_in_turn
from tests.kernels import delta_cases as cases
from tests.kernels import delta_rings as rings
from tests.kernels.covers import rejected
from tests.kernels.delta_cases import Case
from tests.kernels.delta_plot import Options
from tests.kernels.delta_rings import assert_untouched, kept, sizes_of, untouchables, window_case
from tests.kernels.mutants import mutated
from tests.kernels.tensors import DTYPES

STREAMED = (Options(io="bf16", g=1, h=2, b=2, k=64, v=32, seed=5, poison=7.0), 7, "bf16")
WINDOWS = [
    (Options(poison=7.0, k=6, v=9), 8, "fp32"),
    (Options(io="bf16", t=4, l2_norm=False, scale=0.6, k=6, v=9, seed=1), 11, "bf16"),
    (Options(channel=True, io="bf16", t=2, g=1, h=2, k=5, v=18, seed=2), 7, "fp32"),
    (Options(channel=True, b=2, t=1, g=1, h=2, k=5, v=3, seed=7), 9, "fp32"),
    (Options(raw=True, bias=True, io="bf16", gentle=True, t=2, k=6, v=9, seed=3), 5, "fp32"),
    (Options(state="bf16", io="fp16", t=1, g=1, h=3, k=6, v=9, seed=4, poison=-2.0), 2, "fp16"),
    STREAMED,
    (Options(gentle=True, t=2, g=1, h=2, b=2, k=64, v=16, seed=6), 5, "fp32"),
]

SHORT = [
    (Options(io="bf16", t=3, g=1, h=2, b=3, k=128, v=36, seed=8, poison=7.0), 8, "bf16", 5),
    (Options(io="bf16", t=2, g=2, h=2, b=2, k=128, v=8, raw=True, bias=True, gentle=True, seed=9), 23, "fp32", 17),
    (Options(io="bf16", t=8, state="bf16", l2_norm=False, scale=0.6, g=1, h=1, b=1, k=128, v=16, seed=10), 17, "bf16", 3),
]


def check_windows(module: ModuleType, o: Options, capacity: int, u: str, windows: int = 6, **changes: Any) -> None:
    rings.check_windows(module.delta_buffered, o, capacity, u, windows, **changes)


@pytest.mark.parametrize(("o", "capacity", "u"), WINDOWS, ids=str)
def test_windows_in_a_row_equal_plain_decoding_within_the_bound(o: Options, capacity: int, u: str) -> None:
    check_windows(verify, o, capacity, u)


@pytest.mark.parametrize(("o", "capacity", "u", "windows"), SHORT, ids=str)
def test_short_windows_in_a_row_equal_plain_decoding_within_the_bound(
    o: Options, capacity: int, u: str, windows: int
) -> None:
    check_windows(verify, o, capacity, u, windows, short=True)


def check_steep(module: ModuleType) -> None:
    for channel in (False, True):
        check_steep_gates(module, channel)


def check_steep_gates(module: ModuleType, channel: bool) -> None:
    """The gate of a token that is not there is in no output, even where its bias alone decays to 0."""
    o = Options(t=3, k=6, v=9, raw=True, bias=True, channel=channel)
    case, ring = cases.draw(o, padding=False), rings.ring_of(o, 8, torch.float32)
    cases.steepen(case, 3e38)
    oracles = [rings.Oracle(o, case.state()[i : i + 1], ring="fp32") for i in range(o.b)]
    lengths = torch.arange(1, o.b + 1)
    case.call(module.delta_buffered, ring=ring, lengths=lengths)
    for i, (oracle, length) in enumerate(zip(oracles, lengths.tolist(), strict=True)):
        cases.assert_within(f"o {i}", case.out[i : i + 1, :length], oracle.read(*rings.row_of(case, i, length))[0])
        assert not case.out[i, length:].any()


@pytest.mark.parametrize("channel", [False, True])
def test_tokens_that_are_not_there_decay_nothing_however_large_the_bias(channel: bool) -> None:
    check_steep_gates(verify, channel)


def check_tiles(module: ModuleType) -> None:
    """Tiles of a program, of which the last may lie outside, have a say in no bit, be a row due or not."""
    o = Options(io="bf16", t=2, g=1, h=2, b=2, k=128, v=72, seed=11)
    found = []
    for tiles in (1, 2, 4):
        case, ring = cases.draw(o), rings.ring_of(replace(o, poison=0.5), 7, torch.bfloat16)
        live = case.slots[case.rows].long()
        ring.held[live] = torch.tensor([5, 2][: len(live)], dtype=torch.int32)
        with watch(**case.tensors, **rings.tensors(ring), slots=case.slots) as seen:
            case.call(module.delta_buffered, ring=ring, tiles=tiles)
        assert seen.outside == seen.races == []
        found.append([case.out[case.rows], *(x[live] for x in (case.S, *kept(ring)))])
    for other in found[1:]:
        assert all(torch.equal(x, y) for x, y in zip(found[0], other, strict=True))


def test_bits_of_short_windows_do_not_depend_on_the_tiles_of_a_program() -> None:
    check_tiles(verify)


def check_turns(module: ModuleType) -> None:
    """Rows that are due, rows that are not, one without a token and padding among them: their order has a say in no bit."""
    o = Options(io="bf16", t=3, g=1, h=2, b=5, k=128, v=36, seed=8)
    found = []
    for in_turn in (False, True):
        case, ring = cases.draw(o), rings.ring_of(replace(o, poison=0.5), 12, torch.bfloat16)
        ring.held.copy_(torch.arange(len(ring.held)) * 3 % 10)
        lengths = torch.tensor([3, 0, 2, 3, 1], dtype=torch.int32)
        case.call(module.delta_buffered, ring=ring, lengths=lengths, short=True, flushed_first=in_turn)
        found.append([case.out[case.rows], case.S, *kept(ring)])
    assert all(torch.equal(x.nan_to_num(7.0), y.nan_to_num(7.0)) for x, y in zip(*found, strict=True))


def test_bits_of_short_windows_do_not_depend_on_which_row_starts_first() -> None:
    check_turns(verify)


@pytest.mark.parametrize(
    ("b", "asked", "expected"),
    [(33, None, 0), (34, None, 64), (1024, None, 1024), (1025, None, 0), (2, True, 2), (64, False, 0)],
)
def test_rows_that_are_due_start_first_where_programs_come_in_rounds(
    b: int, asked: bool | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """32 heads of one program each, of which 1056 are resident."""
    given: dict[str, Any] = {}
    monkeypatch.setattr(verify, "delta_buffered_short_kernel", {(1, 32, b): lambda *args, **options: given.update(options)})
    with torch.device("meta"):
        window = [torch.empty(b, 6, n, 128, dtype=torch.bfloat16) for n in (16, 16, 32)]
        gates = [torch.empty(b, 6, 32) for _ in range(2)]
        S, u, k, g = (torch.empty(b, *axes) for axes in ((32, 128, 128), (32, 32, 128), (32, 16, 128), (32, 32)))
        ring = Ring(u, k.bfloat16(), g, *(torch.empty(b, dtype=torch.int32) for _ in range(2)))
        verify.delta_buffered(S, ring, *window, *gates, tiles=4, short=True, flushed_first=asked)
    assert given["BLOCK_B"] == expected


def check_order() -> None:
    """Row 2 is padding, whose cursor would be another's; row 3 has no token."""
    held = torch.tensor([9, 9, 7, 8, 2, 0, 1], dtype=torch.int32)[1:]
    slots, lengths = (torch.tensor(x, dtype=torch.int32) for x in ([0, 3, -1, 2, 5, 1], [1, 2, 2, 0, 1, 2]))
    found = torch.full((6, 5), -1)
    _turns_kernel[(6,)](found, slots, lengths, torch.arange(10, 16, dtype=torch.int32), held)
    rows = [0, 5, 1, 2, 3, 4]
    of_slots = [((10 + s, int(held[s])) if s >= 0 else (0, 0)) for s in slots.tolist()]
    assert found.tolist() == [[row, int(slots[row]), int(lengths[row]), *of_slots[row]] for row in rows]


@triton.jit
def _turns_kernel(found, slots, lengths, origin, held):  # type: ignore[no-untyped-def]
    p = tl.program_id(0)
    what = row_in_turn(p, slots, lengths, origin, held, 6, 2, 2, 10, 8)
    for i in tl.static_range(5):
        tl.store(found + 5 * p + i, what[i])


def test_rows_that_are_due_come_first_both_kinds_in_order() -> None:
    check_order()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("before - 1,", "before,"),
        ("axis=0) + row - before", "axis=0) + row"),
        ("mask=row < rows, other=-1", "mask=row < rows - 1, other=-1"),
        ("(row < rows) & (slot >= 0)", "(row < rows)"),
        ("_at(here, row).to", "_at(here, slot).to"),
        ("_at(here, length)", "_at(here, count)"),
        ("_at(here, first)", "_at(here, count)"),
        (" & (length > 0)", ""),
        ("+ 2 * WINDOW >", "+ WINDOW >"),
    ],
)
def test_a_planted_fault_of_the_order_of_rows_is_caught(old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "row_in_turn", mutated(flush_order, old, new).row_in_turn)
    with pytest.raises(AssertionError):
        check_order()


def test_a_flush_by_hand_is_the_state_after_the_history() -> None:
    o = Options(t=3, io="bf16", gentle=True, k=18)
    case, ring = cases.draw(o), rings.ring_of(o, 7, torch.float32)
    _, S = case.bound(order="output_only", ring="fp32")
    dead = untouchables(case, ring)
    case.call(verify.delta_buffered, ring=ring)
    took = torch.full((o.b,), 3)
    cursors.commit_window(ring.origin, ring.held, took, capacity=7, window=3, slots=case.slots)
    start = ring.origin.clone()
    delta_flush.delta_flush(case.S, ring, o.b, slots=case.slots)
    cases.assert_within("S", case.S, S, case.slots.numpy()[case.rows])
    cursors.commit_flush(ring.origin, ring.held, capacity=7, rows=o.b, slots=case.slots)
    own = case.slots[case.slots >= 0].long()
    assert not ring.held[own].any()
    assert torch.equal(ring.origin[own], (start[own] + 3) % 7)
    assert_untouched(dead, case, ring)


STRONG = [
    (Options(t=2, k=6, v=9), 16, 13),
    (Options(t=2, k=6, v=9, channel=True, io="bf16"), 16, 13),
    (Options(t=2, io="bf16", b=2, g=1, h=2, k=64, v=32), 9, 7),
    (Options(t=2, io="bf16", b=2, g=1, h=2, k=128, v=32), 9, 7),
]


def by_window(module: ModuleType) -> Callable[[Case, Ring], Any]:
    return lambda case, ring: case.call(module.delta_buffered, ring=ring, short=case.options.k == 128)


def by_hand(module: ModuleType) -> Callable[[Case, Ring], Any]:
    return lambda case, ring: module.delta_flush(case.S, ring, case.options.b, slots=case.slots)


@pytest.mark.parametrize("flush", [by_window(verify), by_hand(delta_flush)], ids=["window", "hand"])
@pytest.mark.parametrize(("o", "capacity", "held"), STRONG, ids=str)
def test_the_newest_entry_has_weight_1_however_strong_the_decay(o: Options, capacity: int, held: int, flush: Any) -> None:
    rings.check_last(o, capacity, held, flush)


FAR = "\n        at_r += ROWS * row_stride"
"""In the loop that reads, and in the one that folds."""


def check_far_rows(module: ModuleType) -> None:
    rings.check_far_rows(module.delta_buffered, t=2, capacity=4)


def test_rows_that_stream_from_beyond_2_to_the_31_elements_are_read_and_written() -> None:
    check_far_rows(verify)


def test_planted_totals_of_another_entry_are_caught_by_strong_decays() -> None:
    for module, of in (verify, by_window), (delta_flush, by_hand):
        mutant = of(mutated(module, "last(G_l, count - 1)", "last(G_l, count - 2)"))
        with pytest.raises(AssertionError, match="the newest token's weight"):
            rings.check_last(*STRONG[0], mutant)


def test_an_fp32_checkpoint_is_kept_as_fp32_after_many_flushes() -> None:
    """bf16 activations, u in fp32: the checkpoint never passes through bf16, in which every element would be a bf16 value."""
    o = Options(t=2, io="bf16", gentle=True)
    first, ring = cases.draw(o), rings.ring_of(o, 4, torch.float32)
    for n in range(4):
        window_case(first, o, n).call(verify.delta_buffered, ring=ring)
        cursors.commit_window(ring.origin, ring.held, torch.full((o.b,), 2), capacity=4, window=2, slots=first.slots)
    S = first.S[first.slots[first.slots >= 0].long()]
    assert (S.bfloat16().float() != S).float().mean() > 0.9


def check_history(module: ModuleType) -> None:
    """What u of a ring adds to an output has no rounding to bf16 but that of u: the same u in a ring of fp32 adds the same.

    Both are sums in fp32 of the same products, of at most 14 entries and three parts each, some 2^-19 of the terms apart. A
    weight without its second part would be 2^-9 off.
    """
    o, made = Options(io="bf16", t=3, g=1, h=2, b=2, k=128, v=32, gentle=True, seed=12), []
    for u in (torch.bfloat16, torch.float32):
        case, ring = cases.draw(o, padding=False), rings.ring_of(replace(o, poison=0.0), 17, u)
        rng = np.random.default_rng(1)
        for name in ("u", "k"):
            x = getattr(ring, name)
            x.copy_(torch.from_numpy(rng.normal(size=x.shape) * 30).bfloat16())
        ring.g.fill_(-0.01)
        ring.held.fill_(14)
        case.S.zero_()
        made.append(case.call(module.delta_buffered, ring=ring, short=True, out=torch.empty(case.v.shape)))
    assert (made[0] - made[1]).abs().max() <= 2.0**-16 * made[1].abs().max()


def test_weights_of_a_history_in_bf16_are_kept_as_fp32() -> None:
    check_history(verify)


def check_window_bytes(module: ModuleType, o: Options, held: int, u: str, window: int | None = None, **changes: Any) -> None:
    longest = window or o.t
    case, ring = cases.draw(o, padding=False), rings.ring_of(replace(o, poison=0.25), 9, DTYPES[u])
    ring.held.fill_(held)
    sizes = sizes_of(module, case, u=ring.u.element_size())
    expected = module.traffic_bytes([held] * o.b, o.t, o.g, o.h, o.k, o.v, capacity=9, window=longest, **sizes)
    due = held + 2 * longest > 9
    again = due and o.k == 64  # a flush asks the level-2 cache for a tile that was streamed
    run = partial(case.call, module.delta_buffered, ring=ring, window=window, **changes)
    rings.check_moved(case, ring, run, expected, 1 + again, int(due))


@pytest.mark.parametrize("held", [0, 3, 6])
@pytest.mark.parametrize(
    ("o", "u"),
    [
        (Options(t=3, v=33), "fp32"),
        (Options(t=2, channel=True, io="bf16", g=1), "bf16"),
        (Options(b=2, k=64, v=16), "fp32"),
    ],
    ids=str,
)
def test_a_window_moves_the_bytes_of_the_formula(o: Options, held: int, u: str) -> None:
    check_window_bytes(verify, o, held, u)


def test_a_window_shorter_than_the_longest_is_flushed_as_that_one() -> None:
    check_window_bytes(verify, Options(t=2, v=33), 3, "bf16", window=4)


@pytest.mark.parametrize("held", [0, 3, 5])
def test_a_short_window_moves_the_bytes_of_the_formula(held: int) -> None:
    check_window_bytes(verify, Options(t=3, io="bf16", b=2, h=2, k=128, v=36), held, "bf16", short=True)


def test_a_flush_by_hand_moves_the_bytes_of_the_formula() -> None:
    o = Options(t=1, v=33, g=1)
    case, ring = cases.draw(o, padding=False), rings.ring_of(replace(o, poison=0.25), 5, torch.bfloat16)
    ring.held.fill_(4)
    expected = delta_flush.traffic_bytes([4] * o.b, o.g, o.h, o.k, o.v, io=4)
    run = partial(delta_flush.delta_flush, case.S, ring, o.b, slots=case.slots)
    rings.check_moved(case, ring, run, expected, 1, 1)


def check_short(module: ModuleType) -> None:
    check_window_bytes(module, Options(t=3, io="bf16", b=2, h=2, k=128, v=36), 3, "bf16", short=True)
    check_tiles(module)
    for o, capacity, u, windows in SHORT[:2]:
        check_windows(module, o, capacity, u, windows, short=True)


def check_all_windows(module: ModuleType) -> None:
    for o, capacity, u in (STREAMED, *WINDOWS[:3]):
        check_windows(module, o, capacity, u, windows=3)
    check_window_bytes(module, Options(t=3, v=33), 3, "fp32")


FAULTS: dict[Callable[[ModuleType], object], list[tuple[str, str, str | None]]] = {
    check_all_windows: [
        ("if is_due(count, WINDOW, CAPACITY) &", "if (count + WINDOW > CAPACITY) &", None),
        (" & (length > 0):", ":", None),
        ("G_x = total + tl.sum(", "G_x = tl.sum(", None),
        ("place(first + count + t, CAPACITY)", "place(first + t, CAPACITY)", None),
        ("place(first + count + t, CAPACITY), real & is_key,", "place(first + count + t, CAPACITY), (t < T) & is_key,", None),
        ("(l < count)[None, :]", "(l < count - 1)[None, :]", None),
        ("Y = (r_x * tl.exp(G_x))[:, None] * Y if", "Y = r_x[:, None] * Y if", None),
        ("    Y += past\n", "", None),
        ("Y = dot_onto_right(Y, x_r, part, SPLIT)", "Y += 0", None),
        ("tl.where(is_key, beta_x, -1.0)[:, None]", "tl.where(is_key, 1.0, -1.0)[:, None]", None),
        ("(t[:, None] > t[None, :]) |", "(t[:, None] > t[None, :] + 1) |", None),
        ("owns_g & (h % HEADS_PER_KEY == 0), owns_g, CHANNEL", "h < 0, owns_g, CHANNEL", None),
        ("part.to(at_r.dtype.element_ty)", "part.to(tl.bfloat16).to(at_r.dtype.element_ty)", "fold_stream"),
        ("part = left * part", "part = part", "fold_stream"),
        ("norms(x, tl.where(is_key, 1.0, scale), eps, L2_NORM), norms(k_l, 1.0, eps, L2_NORM)",
         "norms(x, tl.where(is_key, 1.0, scale), eps, L2_NORM), norms(k_l, 1.0, eps, False)", None),
        ("at >= CAPACITY, at - CAPACITY, at)", "at >= CAPACITY, at - CAPACITY + 1, at)", "place"),
        ("past = l < held", "past = l <= held", "load_history"),
        ("u.to(ring_u.dtype.element_ty), mask=new", "u.to(tl.bfloat16).to(ring_u.dtype.element_ty), mask=new", "append"),
    ],
    check_short: [
        ("if (length > 0) & is_due(count, WINDOW, CAPACITY):", "if (length > 0) & (count + WINDOW > CAPACITY):", None),
        ("if (length > 0) & is_due(count, WINDOW, CAPACITY):", "if is_due(count, WINDOW, CAPACITY):", None),
        ("real, past = t < length, l < count", "real, past = t < T, l < count", None),
        ("real, past = t < length, l < count", "real, past = t < length, l < count - 1", None),
        ("load_left(start, real, 3)", "load_left(start, real, 0)", None),
        ("tl.where(row_x < 8, at_q + t_x * stride.q.t, at_k + t_x * stride.k.t)", "at_k + t_x * stride.k.t", None),
        ("g_x, mask=real & is_key)", "g_x, mask=is_key & (t <= tl.sum((real & is_key).to(tl.int64), axis=0)))", None),
        ("if h % HEADS_PER_KEY == 0:", "if h >= 0:", None),
        ("if tl.program_id(0) == 0:", "if tl.program_id(0) >= 0:", None),
        ("total = last(G_l, count - 1)", "total = last(G_l, count - 2)", "_short_sums"),
        ("t[:, None] > t[None, :]) |", "t[:, None] > t[None, :] + 1) |", "_short_inverse"),
        ("tl.where(is_key, beta_x, -1.0)[:, None]", "tl.where(is_key, 1.0, -1.0)[:, None]", "_short_inverse"),
        ("since[:, None] - since_c[None, :]", "since[:, None]", None),
        ("since[:, None] + behind[None, :]", "behind[None, :]", None),
        ("r_c * tl.exp(total + since_c)", "r_c * tl.exp(total)", None),
        ("r_l * tl.exp(tl.where(past, behind", "tl.exp(tl.where(past, behind", None),
        ("far = load_part(S, j, True, part + AHEAD", "far = load_part(S, j, True, part", None),
        ("j + 32, more, part + AHEAD - parts", "j, more, part + AHEAD - parts", None),
        ("dot_onto(Y, state, tl.trans(xs[part]))", "dot_onto(Y, state, tl.trans(xs[0]))", None),
        ("Y = tl.dot(u_l, h_hi, acc=Y)", "Y += 0", None),
        ("Y += dot_both(u_l, history, True)", "Y += 0", None),
        ("hi, mid, lo, i_hi, i_mid, i_lo, False", "hi, mid, lo, i_hi, i_lo, i_lo, False", None),
        ("mask=(~of_key & (t < T))", "mask=(~of_key & (t < length))", None),
        ("following = left * state", "following = state", None),
        ("place(again + n * 16 + l, CAPACITY)", "place(again + l, CAPACITY)", None),
        ("beside(16, RUN, n * 16,", "beside(16, RUN, 0,", None),
        ("dot_cut_onto(following, hi, mid, lo, keys)", "dot_cut_onto(following, hi, lo, lo, keys)", None),
        ("(j + v < V) | WHOLE\n    at_part", "(j + v < V) | (V % 4 == 0)\n    at_part", None),
        ("& (t < length))[:, None] & in_v)  # (4)", ")[:, None] & in_v)  # (4)", None),
    ],
    check_steep: [(f"        g_x = tl.where({of}, g_x, 0.0)\n", "", "_sums") for of in ("of_k", "real")],
    check_far_rows: [
        (FAR, FAR.replace("row_stride", "tl.cast(row_stride, tl.int32)"), at) for at in ("_read_stream", "fold_stream")
    ],
    check_history: [(f"            Y = tl.dot(u_l, h_{part}, acc=Y)\n", "", None) for part in ("mid", "hi")],
}  # fmt: skip


@pytest.mark.parametrize(("check", "old", "new", "at"), [(check, *row) for check, rows in FAULTS.items() for row in rows])
def test_planted_fault_is_caught(check: Callable[[ModuleType], object], old: str, new: str, at: str | None) -> None:
    assert rejected(mutated(verify, old, new, at=at), check)
